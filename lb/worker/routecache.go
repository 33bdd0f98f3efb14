package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// routeCacheSize is the number of endpoints whose routes a worker caches: those of nearly
// all new connections. A miss costs a route look-up and a next hop look-up.
const routeCacheSize = 1024

// cachedRoute is the route to an endpoint in an epoch of the routes. Numbers of endpoints
// are reused, so the address decides.
type cachedRoute struct {
	epoch, number uint32
	family        uint8
	w0, w1        uint64
	// nextHop is the connection's word for path.NextHop; 0: no adjacency yet.
	nextHop uint64
	path    route.Path
}

// cachedRouteTo is the cached route to an endpoint, nil if there is none. It holds until
// routeTo takes the place for another endpoint, whose number then is in it.
func (w *forwarder) cachedRouteTo(ep *table.EndpointEntry) *cachedRoute {
	k := &w.routeCache[ep.ID%routeCacheSize]
	if k.epoch == w.epoch && k.number == ep.ID && k.w0 == ep.W0 && k.w1 == ep.W1 && k.family == ep.Family &&
		uint32(k.nextHop>>32) == w.adjacencies[k.nextHop&0xffff].Stamp() {
		return k
	}
	return nil
}

// routeTo is the route of packet p, of the client, to an endpoint. The result holds until the next
// call; without a route only path.Kind is valid.
func (w *forwarder) routeTo(p *pkt, ep *table.EndpointEntry, hash uint32) (*cachedRoute, bool) {
	if k := w.cachedRouteTo(ep); k != nil {
		return k, true
	}
	k := &w.routeCache[ep.ID%routeCacheSize]
	w.counts[counter.RouteLookups]++
	// The client's address, as where the kernel translates: its look-up comes before the
	// translation of the source.
	as := route.Packet{Src: p.key.Src(), Dst: ep.AddrPort, Proto: p.Proto}
	path, ok := w.lookUp(p, as, hash)
	*k = cachedRoute{path: path}
	if !ok {
		return k, false
	}
	n, ok := w.router.Adjacency(path.Port, path.NextHop)
	if !ok {
		return k, true
	}
	adj := &w.adjacencies[n]
	stamp := adj.Stamp()
	// As in hop: numbers of next hops that have never answered are soon another's.
	if adj.State() == route.Valid && adj.Is(path.Port, path.NextHop) && w.router.Load() == w.routes {
		k.nextHop = nextHopRef(stamp, &path, n)
		if !w.routes.HasRules() && w.routes.NumPaths(&as) == 1 {
			k.epoch, k.number, k.family, k.w0, k.w1 = w.epoch, ep.ID, ep.Family, ep.W0, ep.W1
		}
	}
	return k, true
}

// hopCacheSize is the number of addresses whose next hops a worker caches, of clients and of
// endpoints: those that the slow path sends packets to while flows begin and end.
const hopCacheSize = 1024

// cachedHop is the next hop to an address. Like that of a flow it holds until the adjacency has
// another stamp, but at most until the routes change: a new flow does not wait for Reroute.
type cachedHop struct {
	w0, w1  uint64 // the address
	nextHop uint64 // the connection's word; 0: none
	hash    uint32
	kind    uint16 // direction, mode and family: see throughHostVeth and canReach
	divided bool   // of several paths: that of flows with hash
}

// cachedHopTo returns the place of the next hop for packets to the destination of a tuple, and
// whether it is there. If it is not, the place is empty, and the caller's to fill.
func (w *forwarder) cachedHopTo(
	to *conntrack.Key, mode conntrack.Mode, forward bool, hash uint32,
) (k *cachedHop, known bool) {
	w0, w1 := to.W[2], to.W[3]
	if to.Family() == 4 {
		w0, w1 = to.W[0]>>32, 0
	}
	kind := uint16(to.Family())<<8 | uint16(mode)<<1
	if forward {
		kind |= 1
	}
	const odd = 0x9e3779b97f4a7c15
	k = &w.hopCache[(w0^w1*odd)*odd>>32%hopCacheSize]
	if k.w0 == w0 && k.w1 == w1 && k.kind == kind && (!k.divided || k.hash == hash) {
		return k, true
	}
	k.w0, k.w1, k.kind, k.nextHop = w0, w1, kind, 0
	return k, false
}
