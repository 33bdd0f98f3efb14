package l2

import (
	"net/netip"
	"time"
)

// EventKind is the kind of an Event.
type EventKind string

// Kinds.
const (
	Took      EventKind = "took"
	GaveUp    EventKind = "gave up"
	TwoOwners EventKind = "two owners heard"
)

// Event is a change of several addresses on an interface.
type Event struct {
	Kind      EventKind
	Interface string
	Addresses []netip.Addr
	Why       string
}

// news are changes that have not been told yet.
type news struct {
	took, lost      []netip.Addr
	rivals, foreign []netip.Addr // claimed by a member, by another host
	why             string       // of lost
}

// report tells what has changed. Preconditions: l.mu is held.
func (l *link) report() {
	n := l.news
	l.news = news{}
	l.took += uint64(len(n.took))
	l.gaveUp += uint64(len(n.lost))
	l.rivals += uint64(len(n.rivals) + len(n.foreign))
	if l.Event == nil {
		return
	}
	for _, e := range []Event{
		{Took, l.name, n.took, ""}, {GaveUp, l.name, n.lost, n.why},
		{TwoOwners, l.name, n.rivals, "another node announced it too"},
		{TwoOwners, l.name, n.foreign, "a host that is none of these nodes claims it"},
	} {
		if len(e.Addresses) > 0 {
			l.Event(e)
		}
	}
}

// preempts reports whether this node takes back addresses. Preconditions: l.mu is held.
func (l *link) preempts(now time.Time) bool { return l.Preempt || now.Before(l.reclaimUntil) }

// preemptEnded reports once that the time of Reclaim is over. Preconditions: l.mu is held.
func (l *link) preemptEnded(now time.Time) bool {
	if l.reclaimUntil.IsZero() {
		return false
	}
	if now.Before(l.reclaimUntil) {
		l.sooner(l.reclaimUntil)
		return false
	}
	l.reclaimUntil = time.Time{}
	return true
}

// member is the name of this node among the members. Preconditions: l.mu is held.
func (l *link) member() string { return l.node + "/" + l.local.String() }
