package l2

import (
	"net/netip"
	"time"
)

// stranger is a host on the link that says hello and is no member.
type stranger struct {
	heard  time.Time
	reason string // why it could not be joined, "" if that was not tried yet
	// key is true if its hello has another key: it cannot be joined.
	key bool
}

const (
	// joinFor bounds how long a node that was heard and is no member keeps this one from taking
	// addresses after it has listened: a hello may be forged.
	joinFor = 2 * time.Second
	// strangerFor is for how long a host that says hello no more is shown.
	strangerFor = 10 * time.Second
	// strangerWaits is for how long its last hello counts for joinFor: hellos come each second.
	strangerWaits = 1500 * time.Millisecond
	// maxOtherKeys are the hosts with another key that are kept.
	maxOtherKeys = 16
)

// heardHello notes a hello. join reports whether its sender is to be joined.
func (l *link) heardHello(h hello, now time.Time) (join bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.onLink(h.from) || h.from == l.local {
		return false
	}
	for _, o := range l.others {
		if o.address == h.from {
			return false
		}
	}
	s := l.strangers[h.from]
	switch {
	case s != nil && h.otherKey && !s.key && now.Sub(s.heard) < strangerWaits:
		return false // another host may have said it
	case s != nil && h.otherKey && !s.key && !l.room(true):
		l.crowded = now
		return false // it is forgotten as one without another key
	case s == nil:
		l.forgetStrangers(now)
		if !l.room(h.otherKey) {
			l.crowded = now
			return !h.otherKey
		}
		s = &stranger{}
		l.strangers[h.from] = s
	}
	s.heard = now
	switch {
	case h.otherKey:
		s.key, s.reason = true, "it has another key"
	case s.key: // no more
		s.key, s.reason = false, ""
	}
	return !h.otherKey
}

// room reports whether another stranger can be kept. Those with another key have a part of the room:
// every host can say such hellos of many addresses. Preconditions: l.mu is held.
func (l *link) room(otherKey bool) bool {
	if !otherKey {
		return len(l.strangers) < maxMembers
	}
	n := 0
	for _, s := range l.strangers {
		if s.key {
			n++
		}
	}
	return n < maxOtherKeys
}

// unjoined are the strangers that could not be joined, with the reason. Preconditions: l.mu is held.
func (l *link) unjoined(now time.Time) map[netip.Addr]string {
	l.forgetStrangers(now)
	list, more := map[netip.Addr]string{}, ""
	if now.Sub(l.crowded) < strangerFor {
		more = "; more hosts than are kept say that they are nodes"
	}
	for a, s := range l.strangers {
		if s.reason != "" {
			list[a] = s.reason + more
		}
	}
	return list
}

func (l *link) forgetStrangers(now time.Time) {
	for a, s := range l.strangers {
		if now.Sub(s.heard) > strangerFor {
			delete(l.strangers, a)
		}
	}
}

// notJoined notes why a node could not be joined. It may be that only the other one can: hello.
func (l *link) notJoined(a netip.Addr, err error, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.strangers[a]; s != nil {
		s.reason = err.Error()
	}
	if len(l.greet) == 0 && now.Before(l.ready.Add(joinFor)) {
		l.greetSoon(now)
		l.poke()
	}
}

// joining is a node that was heard and whose claims are not known yet; invalid for none. Both may own
// the same address until then. Preconditions: l.mu is held.
func (l *link) joining(now time.Time) (a netip.Addr) {
	if !now.Before(l.ready.Add(joinFor)) {
		return a
	}
	for _, o := range l.others {
		if o.peer == nil && (!a.IsValid() || o.address.Less(a)) {
			a = o.address
		}
	}
	for at, s := range l.strangers {
		if !s.key && now.Sub(s.heard) < strangerWaits && (!a.IsValid() || at.Less(a)) {
			a = at
		}
	}
	if a.IsValid() {
		l.sooner(now.Add(probePause))
	}
	return a
}
