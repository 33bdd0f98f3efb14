package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/changes"
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

// Parts of the daemon that complain, as problem.Registry.Set takes them.
const (
	partDiscovery   = "discovery"   // per Service
	partTranslation = "translation" // per Service
	partPublication = "publication" // per Service, and of all
	partConflicts   = "conflicts"   // as a whole
	partSource      = "source"      // as a whole
	partChecks      = "health checks"
	partHealth      = "health of endpoints"
	partPacketPath  = "packet path"
	partReload      = "reload"
	partNode        = "node"
	partUpdate      = "update"
	partAnnounce    = "announcement" // as a whole
)

// lookEvery is how often the parts are asked that do not complain by
// themselves.
const lookEvery = 5 * time.Second

// watchProblems keeps the list of problems up to date.
func (d *Daemon) watchProblems(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var refused changes.Refusals
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			d.lookForProblems()
			path := d.lb.Status()
			refused.Follow(&path, d.events, lookEvery)
		}
	}
}

// lookForProblems asks the parts that do not complain by themselves.
// Preconditions: d.mu is not held.
func (d *Daemon) lookForProblems() {
	d.problems.Refresh(partSource, d.source.Problems)
	d.problems.Refresh(partChecks, func() []problem.Problem { return checkProblems(d.checks.Faults()) })
	d.problems.Refresh(partPacketPath, func() []problem.Problem { return packetPathProblems(d.lb) })
	d.problems.Refresh(partConflicts, func() []problem.Problem { return conflictProblems(d.lb) })
	d.problems.Refresh(partHealth, d.health.Problems)
	d.problems.Refresh(partNode, d.nodeProblems)
	d.problems.Refresh(partAnnounce, d.announcer.Problems)
}

// serviceProblems sets the problems that discovery finds with the Services of an update.
func (d *Daemon) serviceProblems(up *discovery.Update) {
	for _, name := range up.Deleted {
		object := objectOf(name)
		d.problems.Set(partDiscovery, object)
		d.problems.Set(partPublication, object)
	}
	for _, svc := range up.Put {
		d.problems.Set(partDiscovery, objectOf(svc.Name), translate.Discovered(svc)...)
	}
}

func objectOf(name discovery.ServiceName) string { return problem.Service(name.Namespace, name.Name) }

// publicationProblems sets the problems of an Apply. Services that were put without an
// error, or deleted, have none of that kind any more.
func (d *Daemon) publicationProblems(b *translate.Batch, err error) {
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
		d.problems.Set(partPublication, "Service "+b.Put[i].Name, byService[b.Put[i].Name]...)
	}
	for _, name := range b.Delete {
		d.problems.Set(partPublication, "Service "+name)
	}
	d.problems.Set(partPublication, problem.Weir, rest...)
}

// packetPathProblems are those of the packet path.
func packetPathProblems(l *lb.LB) []problem.Problem {
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
		out = append(out, problem.Problem{
			Kind: problem.NoSteeringRoom, Object: "Service " + f.ServiceName,
			Reason: fmt.Sprintf("%s %s: no room in the steering program's map: its packets go to the kernel", f.Kind, f.AddrPort),
		})
	}
	return out
}

// conflictProblems are the frontends that a Service claims and another holds.
func conflictProblems(l *lb.LB) []problem.Problem {
	var out []problem.Problem
	for _, c := range l.Tables().Conflicts() {
		out = append(out, translate.Conflict(&c)...)
	}
	return out
}

func checkProblems(faults []healthcheck.Fault) []problem.Problem {
	var out []problem.Problem
	for _, f := range faults {
		p := problem.Problem{
			Kind: problem.HealthCheckPort, Object: objectOf(f.Service), Field: "spec.healthCheckNodePort",
			Reason: f.Err.Error(), Logged: true,
		}
		if f.Shared {
			p.Kind = problem.HealthCheckShared
		}
		out = append(out, p)
	}
	return out
}

// nodeProblems are those of the node as a whole.
func (d *Daemon) nodeProblems() []problem.Problem {
	var out []problem.Problem
	if reason := d.notEligible(); reason != "" {
		out = append(out, problem.Problem{Kind: problem.Node, Object: "Node " + d.cfg.NodeName, Reason: reason})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	out = append(out, d.drainProblems()...)
	if d.synced && d.translate.WantsNodeAddress() {
		out = append(out, problem.Problem{
			Kind: problem.NoNodeAddress, Object: problem.Weir, Field: "nodePortAddresses",
			Reason: fmt.Sprintf("none of the node's addresses is in %s: node ports are not served", strings.Join(d.cfg.NodePortAddresses, ", ")),
		})
	}
	return out
}

// tellService has an Event recorded on a Service whose problems have changed,
// where the source can do that.
func (d *Daemon) tellService(object string) {
	namespace, name, ok := problem.ServiceOf(object)
	src, can := d.source.(interface {
		Complain(name discovery.ServiceName, reason, text string)
	})
	if !ok || !can {
		return
	}
	reason, text := eventOf(d.problems.Of(object))
	src.Complain(discovery.ServiceName{Namespace: namespace, Name: name}, reason, text)
}

// eventOf is an Event for all problems of a Service, with the reason of the worst. Both
// are "" for none.
func eventOf(problems []problem.Problem) (reason, text string) {
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
