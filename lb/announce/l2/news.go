package l2

import (
	"maps"
	"net/netip"
	"slices"
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
	took, lost      reasoned
	rivals, foreign []netip.Addr // claimed by a member, by another host
}

// reasoned are addresses by the reason of their change.
type reasoned map[string][]netip.Addr

func (r *reasoned) add(why string, a netip.Addr) {
	if *r == nil {
		*r = reasoned{}
	}
	(*r)[why] = append((*r)[why], a)
}

// events are those of the reasons, and how many addresses they have.
func (r reasoned) events(kind EventKind, name string) (list []Event, n uint64) {
	for _, why := range slices.Sorted(maps.Keys(r)) {
		list = append(list, Event{kind, name, r[why], why})
		n += uint64(len(r[why]))
	}
	return list, n
}

// report tells what has changed. Preconditions: l.mu is held.
func (l *link) report() {
	n := l.news
	l.news = news{}
	took, i := n.took.events(Took, l.name)
	lost, j := n.lost.events(GaveUp, l.name)
	l.took += i
	l.gaveUp += j
	l.rivals += uint64(len(n.rivals) + len(n.foreign))
	if l.Event == nil {
		return
	}
	for _, e := range append(append(took, lost...),
		Event{TwoOwners, l.name, n.rivals, "another node announced it too"},
		Event{TwoOwners, l.name, n.foreign, "a host that is none of these nodes claims it"}) {
		if len(e.Addresses) > 0 {
			l.Event(e)
		}
	}
}

// preempts reports whether this node takes back addresses. Preconditions: l.mu is held.
func (l *link) preempts() bool { return l.Preempt || l.reclaimFor > 0 }

// preemptEnded reports once that the time of Reclaim is over. It is counted from when this node may first
// own an address, and not again where that comes and goes. Preconditions: l.mu is held.
func (l *link) preemptEnded(eligible bool, now time.Time) bool {
	switch {
	case l.reclaimFor == 0:
		return false
	case l.reclaimUntil.IsZero() && !eligible:
		return false
	case l.reclaimUntil.IsZero():
		l.reclaimUntil = now.Add(l.reclaimFor)
	}
	if now.Before(l.reclaimUntil) {
		l.sooner(l.reclaimUntil)
		return false
	}
	l.reclaimFor, l.reclaimUntil = 0, time.Time{}
	return true
}

// member is the name of this node among the members. Preconditions: l.mu is held.
func (l *link) member() string { return l.node + "/" + l.local.String() }
