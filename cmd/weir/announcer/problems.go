package announcer

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/announce"
)

// Problems are sessions that are down, and addresses that cannot be announced.
func (a *Announcer) Problems() (out []problem.Problem) {
	s := a.Status()
	if s == nil {
		return nil
	}
	for _, p := range s.Peers {
		if !p.Established {
			reason := "the session is down: this router has no routes of this node"
			if p.Reason != "" {
				reason += "; " + p.Reason
			}
			out = append(out, problem.Problem{Kind: problem.PeerDown, Object: "Peer " + p.Peer, Reason: reason})
		}
	}
	for _, x := range s.Addresses {
		if x.Reason == announce.TooMany.String() {
			out = append(out, problem.Problem{Kind: problem.NotAnnounced, Object: "Address " + x.Address.String(), Reason: x.Reason + ": " + x.Detail})
			for _, service := range x.Services {
				out = append(out, problem.Problem{
					Kind: problem.OverLimit, Object: "Service " + service, Reason: fmt.Sprintf("%s is not announced: %s", x.Address, x.Detail),
				})
			}
		}
	}
	out = append(out, linkProblems(s, time.Now())...)
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.losses {
		l := &a.losses[i]
		out = append(out, problem.Problem{Kind: problem.NotAnnounced, Object: "Address " + l.Address.String(), Reason: fmt.Sprintf(
			"this node loses its packets: %s is announced, and Service %s (externalTrafficPolicy: Local) has no endpoint here; announce it without aggregation",
			l.Aggregate, l.Service)})
	}
	faults := a.unheard
	if a.objects != nil {
		faults = append(slices.Clip(faults), a.objects.faults...)
	}
	for _, f := range faults {
		out = append(out, problem.New(problem.NotAnnounced, "", "announce.objects: %v", f))
	}
	if a.err != nil {
		out = append(out, problem.New(problem.NotAnnounced, "", "%v", a.err))
	}
	if a.unkept != nil {
		out = append(out, problem.Problem{Kind: problem.StateFile, Object: "File " + a.source.kept.path, Reason: a.unkept.Error()})
	}
	return append(out, a.source.problems()...)
}
