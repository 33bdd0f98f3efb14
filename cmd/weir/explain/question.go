package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/manifest"
	"github.com/weirlb/weir/topology"
)

// Question names the Services to explain, and the sources of the answer.
type Question struct {
	Services []*discovery.Service
	Node     topology.Node          // that chooses
	Only     *discovery.ServiceName // nil: every Service
	Change   *Change                // to imagine; nil: none
	Report   *manifest.Report       // of the manifests; nil: there are none
	View     *View                  // nil: frontends and problems are left out
	Guard    *translate.Guard       // without a View; nil: it refuses no endpoint
	// Why says what the node itself has against an endpoint, "" for nothing; nil: nothing is known.
	Why func(*discovery.Service, *discovery.Port, netip.AddrPort) string
}

// Parse reads a query of the admin socket into the Question.
func (q *Question) Parse(query api.ExplainQuery) (err error) {
	if query.WhatIf != "" {
		if q.Change, err = ParseChange(query.WhatIf); err != nil {
			return fmt.Errorf("what-if: %w", err)
		}
	}
	if query.Service != "" {
		namespace, name, _ := strings.Cut(query.Service, "/")
		q.Only = &discovery.ServiceName{Namespace: namespace, Name: name}
	}
	return nil
}

// subject is a Service to explain; svc is nil of a Service of which only
// errors are known.
type subject struct {
	name discovery.ServiceName
	svc  *discovery.Service
}

// Answer explains. The error wraps api.ErrNotFound where Only is not known.
// The Services are explained while the Output is iterated over.
func (q *Question) Answer() (*Output, error) {
	out := &Output{Node: q.Node.Name}
	if q.Change != nil {
		out.WhatIf = q.Change.String()
	}
	faults, warnings := map[discovery.ServiceName][]string{}, map[discovery.ServiceName][]string{}
	if q.Report != nil {
		for _, e := range q.Report.Errors {
			out.Errors = append(out.Errors, e.Error())
			if e.Service.Name != "" {
				faults[e.Service] = append(faults[e.Service], e.Error())
			}
		}
		for _, e := range q.Report.Warnings {
			if e.Unserved { // an error, as in weir check
				out.Errors = append(out.Errors, e.Error())
			} else if e.Service.Name == "" {
				out.Notes = append(out.Notes, e.Error())
			} else {
				warnings[e.Service] = append(warnings[e.Service], e.Error())
			}
		}
		for _, n := range q.Report.Notes {
			out.Notes = append(out.Notes, n.String())
		}
	}
	subjects := q.subjects()
	if q.Only != nil && len(subjects) == 0 {
		return nil, fmt.Errorf("service %s: %w", q.Only, api.ErrNotFound)
	}
	if q.Change != nil {
		if err := q.Change.find(q.Services, &q.Node); err != nil {
			return nil, err
		}
	}
	out.Services = func(yield func(*Service, error) bool) {
		for _, s := range subjects {
			if !yield(q.explain(s, faults[s.name], warnings[s.name]), nil) {
				return
			}
		}
	}
	return out, nil
}

// subjects are the Services to explain, sorted by namespace and name. Some of
// the manifests with errors are not among q.Services.
func (q *Question) subjects() []subject {
	var out []subject
	known := make(map[discovery.ServiceName]bool, len(q.Services))
	add := func(name discovery.ServiceName, svc *discovery.Service) {
		if !known[name] && (q.Only == nil || *q.Only == name) {
			known[name] = true
			out = append(out, subject{name, svc})
		}
	}
	for _, svc := range q.Services {
		add(svc.Name, svc)
	}
	if q.Report != nil {
		for _, e := range q.Report.Errors {
			if e.Service.Name != "" && e.Object.Kind == "Service" {
				add(e.Service, nil)
			}
		}
	}
	slices.SortFunc(out, func(a, b subject) int {
		if c := strings.Compare(a.name.Namespace, b.name.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.name.Name, b.name.Name)
	})
	return out
}

// explain explains a Service.
func (q *Question) explain(s subject, faults, warnings []string) *Service {
	out := Service{Namespace: s.name.Namespace, Name: s.name.Name, Errors: []string{}, Ports: []Port{}}
	if s.svc != nil && q.View != nil {
		s.svc = (&translate.Readiness{Guard: &q.View.Guard}).Of(s.svc)
	}
	if s.svc != nil {
		out = buildService(s.svc, q.Node)
	}
	if s.svc != nil {
		q.reasons(&out, s.svc)
	}
	out.Errors = append(out.Errors, faults...)
	out.Warnings = slices.Concat(out.Warnings, warnings)
	if q.Change != nil {
		for i := range out.Ports {
			out.Ports[i].WhatIf = whatIf(s.svc.Policy, s.svc.Ports[i].Endpoints, q.Node, q.Change)
		}
	}
	if q.View != nil {
		out.Problems = q.View.Problems(problem.Service(out.Namespace, out.Name))
		if s.svc != nil {
			out.Frontends = q.View.frontends(s.svc)
		}
	}
	return &out
}
