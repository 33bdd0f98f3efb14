package statuspage

import (
	"bytes"
	"context"
	"errors"
	"html/template"
	"net/http"
	"slices"
	"strings"

	_ "embed" // the template

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/view"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// serveNode answers with the node and the list of Services.
func (p *Page) serveNode(w http.ResponseWriter, r *http.Request) {
	p.serve(w, r, func(ctx context.Context) (v *content, err error) {
		err = p.sampler.view(ctx, func(s *sample) error {
			v = nodeView(s)
			v.Title, v.List = s.status.Node, listOf(s, r)
			return nil
		})
		if err != nil {
			return nil, err
		}
		for i := range v.List.Rows {
			row := &v.List.Rows[i]
			list, more, err := p.endpointsOf(ctx, row.Name)
			if err != nil {
				return nil, err
			}
			row.addEndpoints(list, more, v.Node)
		}
		return v, nil
	})
}

// serveService answers with a Service.
func (p *Page) serveService(w http.ResponseWriter, r *http.Request) {
	name := r.FormValue("name")
	p.serve(w, r, func(ctx context.Context) (v *content, err error) {
		err = p.sampler.view(ctx, func(s *sample) error {
			at, ok := slices.BinarySearchFunc(s.services, name, func(s *service, name string) int { return strings.Compare(s.name, name) })
			if !ok {
				return api.ErrNotFound
			}
			svc := s.services[at]
			v = nodeView(s)
			v.Title, v.Service = name, &serviceView{serviceRow: newRow(svc, s.at)}
			v.Service.describe(svc)
			v.of(name)
			return nil
		})
		if err != nil {
			return nil, err
		}
		list, more, err := p.endpointsOf(ctx, name)
		v.Service.Endpoints, v.Service.More = list, more
		v.Service.Zones = zonesOf(list, v.Node)
		if len(list) > 0 {
			v.Service.Policy = list[0].Policy
		}
		return v, err
	})
}

func (v *serviceView) describe(s *service) {
	v.Charts = []chart{newChart("Packets (estimate)", s.rate.Packets, "/s", &s.packetChart), newChart("New connections", s.rate.Flows, "/s", &s.flowChart)}
	maximum := ""
	if s.maximum > 0 {
		maximum = "of at most " + number(uint64(s.maximum))
	}
	v.Facts = []fact{
		{"Open", v.Open, maximum},
		{"Half-open", number(uint64(s.halfOpen)), ""},
		{"New since the start", number(s.Totals.Flows), rateText(s.rate.Flows) + "/s now"},
		{"Failed handshakes", number(s.Totals.Failed), rateText(s.rate.Failed) + "/s now"},
		{"Bytes (estimate)", "~" + view.Short(float64(s.Totals.Bytes)), rateText(s.rate.Bytes) + "/s now"},
		{"Drops", v.Drops, v.DropsNote},
	}
}

// serve makes the content, and then sends it: a slow reader holds nothing up.
func (p *Page) serve(w http.ResponseWriter, r *http.Request, contentOf func(context.Context) (*content, error)) {
	if err := p.admit(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	var b bytes.Buffer
	err := func() error {
		defer p.leave()
		v, err := contentOf(r.Context())
		if err != nil {
			return err
		}
		return page.Execute(&b, v)
	}()
	switch {
	case errors.Is(err, api.ErrNotFound):
		http.Error(w, "no such Service", http.StatusNotFound)
	case err != nil:
		p.log.Debug("status page", "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(b.Bytes()) // the client went away
	}
}
