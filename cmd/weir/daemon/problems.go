package daemon

import (
	"context"
	"time"

	"github.com/weirlb/weir/cmd/weir/changes"
	"github.com/weirlb/weir/cmd/weir/complaints"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/aligned"
)

// lookEvery is how often the parts are asked that do not complain by
// themselves.
const lookEvery = 5 * time.Second

// watchProblems keeps the list of problems up to date.
func (d *Daemon) watchProblems(ctx context.Context) error {
	tick := aligned.NewTicker(lookEvery)
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
func (d *Daemon) lookForProblems() {
	d.problems.Refresh(complaints.Source, d.source.Problems)
	d.problems.Refresh(complaints.HealthChecks, func() []problem.Problem { return complaints.OfChecks(d.checks.Faults()) })
	d.problems.Refresh(complaints.PacketPath, func() []problem.Problem { return complaints.OfPacketPath(d.lb) })
	d.problems.Refresh(complaints.Conflicts, func() []problem.Problem { return complaints.OfConflicts(d.lb) })
	d.problems.Refresh(complaints.Health, d.health.Problems)
	d.problems.Refresh(complaints.Node, d.nodeProblems)
	d.problems.Refresh(complaints.FlowLog, func() []problem.Problem { return complaints.OfFlowLog(d.flowLog.Status()) })
	d.problems.Refresh(complaints.Announcement, d.announcer.Problems)
}

// nodeProblems are those of the node as a whole.
func (d *Daemon) nodeProblems() []problem.Problem {
	var out []problem.Problem
	if reason := d.notEligible(); reason != "" {
		out = append(out, problem.Problem{Kind: problem.Node, Object: "Node " + d.cfg.NodeName, Reason: reason})
	}
	return append(out, d.publisher.NodeProblems()...)
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
	reason, text := complaints.EventOf(d.problems.Of(object))
	src.Complain(discovery.ServiceName{Namespace: namespace, Name: name}, reason, text)
}
