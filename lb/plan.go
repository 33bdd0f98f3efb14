package lb

import (
	"net/netip"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// SNATSource is an address that Weir translates clients' addresses to, with
// the range of ports that it may use there.
type SNATSource struct {
	Addr   netip.Addr
	Lo, Hi uint16 // inclusive
}

// Ports of an SNAT address that is Weir's alone (RFC 6335: the user and the
// dynamic ports).
const (
	ownPortLo = 1024
	ownPortHi = 65535
)

// plan is what workers know of the addresses of the node, immutable: the
// control plane makes another when they change.
type plan struct {
	// sources are the configured SNAT addresses by family; none: the address
	// of the way out, with the shared range.
	sources4, sources6 []SNATSource
	lo, hi             uint16 // on the host's own addresses
	// wayBack says that answers to clients' own addresses come back to the host
	// port.
	wayBack bool
	// listeners are the sources towards the node's own addresses.
	listeners []listenerSource
	// owned are all SNAT sources, to tell stray answers.
	owned []ownedSource
	// draining leaves new connections to the kernel.
	draining bool
}

type listenerSource struct {
	w0, w1 uint64 // the node's address, as in table.EndpointEntry
	source netip.Addr
}

type ownedSource struct {
	key    table.Key // W2 holds family<<24
	lo, hi uint16
}

// configured is the list of configured SNAT sources of a family.
func (p *plan) configured(family uint8) []SNATSource {
	if family == 6 {
		return p.sources6
	}
	return p.sources4
}

// source is the SNAT source of a flow to ep by path.
func (p *plan) source(path *route.Path, ep *table.EndpointEntry, hash uint64) (SNATSource, bool) {
	list := p.configured(ep.Family)
	if path.Kind == route.Host {
		// The host port's own prefix: addresses that only Weir uses.
		a := path.Source
		switch {
		case path.Local:
			a = p.towardsListener(path, ep)
		case ep.Local:
			a = path.LocalSource
		}
		return SNATSource{a, ownPortLo, ownPortHi}, a.IsValid()
	}
	if len(list) > 0 {
		// Not the hash's low bits: those chose the next hop.
		return list[hash>>32%uint64(len(list))], true
	}
	return SNATSource{path.Source, p.lo, p.hi}, path.Source.IsValid()
}

// otherSource is the n-th source after source's choice, n from 1; false when there
// are no more.
func (p *plan) otherSource(path *route.Path, ep *table.EndpointEntry, hash uint64, n int) (SNATSource, bool) {
	list := p.configured(ep.Family)
	if path.Kind == route.Host || n >= len(list) {
		return SNATSource{}, false
	}
	return list[(hash>>32+uint64(n))%uint64(len(list))], true
}

// towardsListener is the source towards one of the node's own addresses.
func (p *plan) towardsListener(path *route.Path, ep *table.EndpointEntry) netip.Addr {
	for i := range p.listeners {
		if l := &p.listeners[i]; l.w0 == ep.W0 && l.w1 == ep.W1 && l.source.Is6() == (ep.Family == 6) {
			return l.source
		}
	}
	return path.LocalSource
}

// ownsDestination says whether a packet is to an SNAT address and port.
func (p *plan) ownsDestination(k *conntrack.Key) bool {
	d := frontendKey(k)
	raw := uint16(d.W2)
	port := raw<<8 | raw>>8
	for i := range p.owned {
		o := &p.owned[i]
		if o.key.W0 == d.W0 && o.key.W1 == d.W1 && o.key.W2>>24 == d.W2>>24 && port >= o.lo && port <= o.hi {
			return true
		}
	}
	return false
}

// exhaustion tells the control plane which endpoint has run out of SNAT
// ports: a few slots that a worker fills and one reader empties.
type exhaustion struct {
	slot [8]struct {
		full     atomic.Bool
		endpoint netip.AddrPort
		source   netip.Addr
	}
	next int
}

// note notes an endpoint, once until it is read: one endpoint leaves room for others.
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

// each calls f for what was noted since the last call.
func (e *exhaustion) each(f func(endpoint netip.AddrPort, source netip.Addr)) {
	for i := range e.slot {
		if s := &e.slot[i]; s.full.Load() {
			f(s.endpoint, s.source)
			s.full.Store(false)
		}
	}
}
