package worker

import (
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

// routeTo is the route to an endpoint. The result holds until the next call; without a
// route only path.Kind is valid.
func (w *forwarder) routeTo(ep *table.EndpointEntry, hash uint32) (*cachedRoute, bool) {
	if k := w.cachedRouteTo(ep); k != nil {
		return k, true
	}
	k := &w.routeCache[ep.ID%routeCacheSize]
	w.counts[counter.RouteLookups]++
	addr := ep.AddrPort.Addr()
	path, ok := w.routes.Lookup(addr, hash)
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
		if w.routes.NumPaths(addr) == 1 {
			k.epoch, k.number, k.family, k.w0, k.w1 = w.epoch, ep.ID, ep.Family, ep.W0, ep.W1
		}
	}
	return k, true
}
