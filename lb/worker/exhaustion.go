package worker

import (
	"net/netip"
	"sync/atomic"
)

// exhaustion names, for the control object, the endpoints that have run out of SNAT
// ports: a few slots that a worker fills and a single reader empties.
type exhaustion struct {
	slot [8]struct {
		full     atomic.Bool
		endpoint netip.AddrPort
		source   netip.Addr
	}
	next int
}

// note adds an endpoint, once until it is read: an endpoint leaves room for others.
func (e *exhaustion) note(endpoint netip.AddrPort, source netip.Addr) {
	for i := range e.slot {
		if s := &e.slot[i]; s.full.Load() && s.endpoint == endpoint {
			return
		}
	}
	s := &e.slot[e.next%len(e.slot)]
	if s.full.Load() {
		return
	}
	s.endpoint, s.source = endpoint, source
	s.full.Store(true)
	e.next++
}

// each calls f for the endpoints that were added since the last call.
func (e *exhaustion) each(f func(endpoint netip.AddrPort, source netip.Addr)) {
	for i := range e.slot {
		if s := &e.slot[i]; s.full.Load() {
			f(s.endpoint, s.source)
			s.full.Store(false)
		}
	}
}
