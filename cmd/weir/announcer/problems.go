package announcer

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/l2"
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
	out = append(out, a.links.unansweredProblems(s, time.Now())...)
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

// unansweredProblems are addresses of the LAN that no node owns, a problem for each reason why this one does not.
// Those without endpoints, and those that start, have no owner.
func (k *links) unansweredProblems(s *api.Announce, now time.Time) (out []problem.Problem) {
	if k == nil {
		return nil
	}
	since, byReason := map[netip.Addr]time.Time{}, map[string][]netip.Addr{}
	for i := range s.Addresses {
		x := &s.Addresses[i]
		if !mayBeOwned(x) || x.L2.State == string(l2.Owner) || x.L2.Owner != "" {
			continue
		}
		at, known := k.unanswered[x.Address]
		if !known {
			at = now
		}
		if since[x.Address] = at; now.Sub(at) >= unansweredFor {
			byReason[x.L2.Reason] = append(byReason[x.L2.Reason], x.Address)
		}
	}
	k.unanswered = since
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		list, more := byReason[reason], ""
		if n := len(list) - 1; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		out = append(out, problem.Problem{
			Kind: problem.NotAnnounced, Object: "Address " + list[0].String(),
			Reason: fmt.Sprintf("no node on the LAN answers for %s%s; this node does not since: %s", list[0], more, reason),
		})
	}
	return out
}

// mayBeOwned reports whether a node is to answer for an address.
func mayBeOwned(x *api.AnnouncedAddress) bool {
	if x.L2 == nil || x.L2.Reason == onlyRouters {
		return false
	}
	switch x.Reason {
	case announce.NotAllowed.String(), announce.Stopping.String(), announce.NotSynced.String(), announce.Settling.String():
		return false
	case announce.NotServed.String():
		return x.Detail != announce.NoEndpoint
	}
	return true
}
