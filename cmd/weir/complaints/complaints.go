// Package complaints has the problems of the parts of a daemon that do not complain by themselves.
package complaints

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/healthcheck"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/warning"
)

// The parts that complain, as problem.Registry.Set takes them.
const (
	Discovery    = "discovery"   // per Service
	Translation  = "translation" // per Service
	Publication  = "publication" // per Service, and of all
	Conflicts    = "conflicts"   // as a whole
	Source       = "source"      // as a whole
	HealthChecks = "health checks"
	Health       = "health of endpoints"
	PacketPath   = "packet path"
	Reload       = "reload"
	DenyLists    = "deny lists" // as a whole
	Node         = "node"
	Update       = "update"
	FlowLog      = "flow log"
	Announcement = "announcement" // as a whole
)

// OfUpdate sets the problems that discovery finds with the Services of an update.
func OfUpdate(r *problem.Registry, up *discovery.Update) {
	for _, name := range up.Deleted {
		object := Object(name)
		r.Set(Discovery, object)
		r.Set(Publication, object)
	}
	for _, svc := range up.Put {
		r.Set(Discovery, Object(svc.Name), translate.Discovered(svc)...)
	}
}

// Object is the name of a Service in problems.
func Object(name discovery.ServiceName) string { return problem.Service(name.Namespace, name.Name) }

// OfPublication sets the problems of an Apply. Services that were put without an
// error, or deleted, have none of that kind any more.
func OfPublication(r *problem.Registry, b *translate.Batch, err error) {
	byService := map[string][]problem.Problem{}
	var rest []problem.Problem
	for _, e := range problem.Flatten(err) {
		var of *table.ServiceError
		switch {
		case errors.Is(e, table.ErrFrontendTaken), errors.Is(e, steer.ErrFull):
			// Problems of the packet path, for as long as they last.
		case errors.As(e, &of):
			byService[of.Service] = append(byService[of.Service], problem.New(problem.Publication, "", "%v", of.Err))
		default:
			rest = append(rest, problem.New(problem.Publication, "", "%v", e))
		}
	}
	for i := range b.Put {
		r.Set(Publication, "Service "+b.Put[i].Name, byService[b.Put[i].Name]...)
	}
	for _, name := range b.Delete {
		r.Set(Publication, "Service "+name)
	}
	r.Set(Publication, problem.Weir, rest...)
}

// OfPacketPath are those of the packet path.
func OfPacketPath(l *lb.LB) []problem.Problem {
	var out []problem.Problem
	for _, w := range l.Status().Warnings {
		p := problem.Problem{Kind: problem.PacketPathWarning, Object: problem.Weir, Reason: w.Text, Logged: true}
		switch w.Kind {
		case warning.Interface, warning.Queues, warning.Member, warning.MTU, warning.Unreadable:
			p.Kind, p.Object = problem.InterfaceWarning, problem.Interface(w.Object)
		case warning.Offloads:
			p.Kind, p.Object = problem.InterfaceNote, problem.Interface(w.Object)
		case warning.InterfaceGone:
			p.Kind, p.Object = problem.InterfaceGone, problem.Interface(w.Object)
		case warning.Mode:
			p.Kind, p.Object = problem.ForwardingMode, "Service "+w.Object
		}
		out = append(out, p)
	}
	for _, r := range l.Router().Unfollowed.Rules() {
		out = append(out, problem.Problem{
			Kind: problem.RoutingRule, Object: problem.Weir, Reason: route.NotFollowed + ": " + r, Logged: true,
		})
	}
	for _, f := range l.Unsteered() {
		why := "no room in the steering program's map"
		if f.LastPort != 0 {
			why = fmt.Sprintf("no room in the steering program, which has %d ranges of ports of an address and protocol, and %d of these with ranges", lb.MaxRanges, lb.MaxRanged)
		}
		out = append(out, problem.Problem{
			Kind: problem.NoSteeringRoom, Object: "Service " + f.ServiceName,
			Reason: fmt.Sprintf("%s %s: %s: its packets go to the kernel", f.Kind, f.Address(), why),
		})
	}
	return out
}

// OfFlowLog are the reasons for which records of connections are lost now.
func OfFlowLog(l *api.FlowLog) []problem.Problem {
	var out []problem.Problem
	if l == nil {
		return nil
	}
	add := func(reason string) {
		out = append(out, problem.Problem{Kind: problem.FlowLog, Object: problem.Weir, Field: "flowLog", Logged: true, Reason: reason})
	}
	if l.Fault != "" {
		add("records are lost: " + l.Fault)
	}
	for _, to := range l.Targets {
		if to.Fault != "" {
			add(fmt.Sprintf("%s: records are lost: %s", to.Name, to.Fault))
		}
	}
	return out
}

// OfConflicts are the frontends that a Service claims and another holds.
func OfConflicts(l *lb.LB) []problem.Problem {
	var out []problem.Problem
	for _, c := range l.Tables().Conflicts() {
		out = append(out, translate.Conflict(&c)...)
	}
	return out
}

// OfChecks are those of the servers of healthCheckNodePorts.
func OfChecks(faults []healthcheck.Fault) []problem.Problem {
	var out []problem.Problem
	for _, f := range faults {
		p := problem.Problem{
			Kind: problem.HealthCheckPort, Object: Object(f.Service), Field: "spec.healthCheckNodePort",
			Reason: f.Err.Error(), Logged: true,
		}
		if f.Shared {
			p.Kind = problem.HealthCheckShared
		}
		out = append(out, p)
	}
	return out
}

// EventOf is an Event for all problems of a Service, with the reason of the worst. Both
// are "" for none.
func EventOf(problems []problem.Problem) (reason, text string) {
	var texts []string
	for _, p := range problems {
		if !p.Kind.Describe().Event {
			continue
		}
		if reason == "" {
			reason = p.Kind.EventReason()
		}
		line := p.Reason
		if p.Field != "" {
			line = p.Field + ": " + line
		}
		texts = append(texts, line)
	}
	return reason, strings.Join(slices.Compact(texts), "; ")
}
