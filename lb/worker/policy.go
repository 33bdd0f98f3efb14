package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/table"
)

// admitted says whether the client may use the frontend at all. One that may
// not gets no answer, as from kube-proxy, whatever its packet is.
func (w *Worker) admitted(p *pkt, fe *table.FrontendEntry) bool {
	if fe.Policy == nil || fe.Policy.Admits(fe.Kind, p.key.Src().Addr()) {
		return true
	}
	w.drop(p, DropSourceRange)
	return false
}

// withinLimits says whether the frontend's Service may have another connection
// now. What is too much is dropped without an answer, so that a client asks
// again a second later and finds room then.
func (w *Worker) withinLimits(p *pkt, fe *table.FrontendEntry) bool {
	policy := fe.Policy
	if policy == nil {
		return true
	}
	if !w.roomFor(policy, fe.Service) {
		w.drop(p, DropConnectionLimit)
		return false
	}
	if !policy.TakeConnection(w.tick) {
		w.drop(p, DropConnectionRate)
		return false
	}
	return true
}

// roomFor reports whether the Service with that number has room for another open
// connection. Workers that look at the same time may each let one more in.
func (w *Worker) roomFor(p *table.Policy, service uint32) bool {
	return p.MaxConnections == 0 || w.conns.FrontendOpen(service) < p.MaxConnections
}

// choose is the endpoint for a new flow of the tuple. The frontend's pool has
// one.
func (w *Worker) choose(fe *table.FrontendEntry, k *conntrack.Key) *table.EndpointEntry {
	pool := fe.Pool
	if seconds := pool.AffinitySeconds(); seconds != 0 {
		return w.choosePinned(fe, k, uint32(seconds))
	}
	if pool.Algorithm() == table.LeastConn {
		return w.leastLoaded(pool)
	}
	return pool.Select(&k.W, &w.rng, w.tick)
}

// choosePinned is the endpoint that the client used last, while it is one that
// may be used and was so within the affinity's time; else one that follows from
// the client's address alone, so that another node would choose it too.
func (w *Worker) choosePinned(fe *table.FrontendEntry, k *conntrack.Key, seconds uint32) *table.EndpointEntry {
	ep := w.pinned(fe, k, seconds)
	w.affinity.Put(fe.AffinityKey(&k.W), ep.Number, w.tick/secondTicks)
	return ep
}

// pinned is choosePinned without remembering it; nil from an empty pool.
func (w *Worker) pinned(fe *table.FrontendEntry, k *conntrack.Key, seconds uint32) *table.EndpointEntry {
	if number, ok := w.affinity.Get(fe.AffinityKey(&k.W), w.tick/secondTicks, seconds); ok {
		if ep := fe.Pool.Find(number); ep != nil {
			return ep
		}
	}
	return fe.Pool.Select(&k.W, &w.rng, w.tick)
}

// scanned is up to how many endpoints least connections looks at all of. Of
// more it draws two and takes the better one, which is nearly as good
// (Mitzenmacher, The Power of Two Choices, 2001): a new flow costs at most this
// many loads.
const scanned = 8

// leastLoaded is the endpoint with the fewest open connections for its weight,
// those of this node's Weir counted.
func (w *Worker) leastLoaded(pool *table.PoolEntry) *table.EndpointEntry {
	eps := pool.Endpoints()
	if len(eps) > scanned {
		a, b := pool.Draw(&w.rng), pool.Draw(&w.rng)
		if w.lessLoaded(pool, b, a) {
			return b
		}
		return a
	}
	at := int(w.rng.Uint32n(uint32(len(eps)))) // of equals not always the first
	best := &eps[at]
	for range len(eps) - 1 {
		if at++; at == len(eps) {
			at = 0
		}
		if w.lessLoaded(pool, &eps[at], best) {
			best = &eps[at]
		}
	}
	return best
}

// lessLoaded says whether one more connection would load a less than b.
func (w *Worker) lessLoaded(pool *table.PoolEntry, a, b *table.EndpointEntry) bool {
	return w.load(a)*pool.Share(b, w.tick) < w.load(b)*pool.Share(a, w.tick)
}

// load is the load of an endpoint by its connections, one more included. One that is not open, as only its client was
// heard or it is over, weighs a 256th, as in IPVS (ip_vs_dest_conn_overhead):
// connections that begin at the same time spread, and a flood of SYNs hides nothing.
func (w *Worker) load(ep *table.EndpointEntry) uint64 {
	open := uint64(w.conns.EndpointOpen(ep.Number))
	all := max(open, uint64(w.conns.EndpointFlows(ep.Number)))
	return open<<8 + all - open + 1
}

// affinityClients is for how many clients of Services with session affinity
// there is room: 8 MiB, of which those pages take memory that are used.
const affinityClients = 1 << 20

// NewAffinity makes the store of clients' endpoints.
func NewAffinity(flows *conntrack.Table) *affinity.Store {
	seed := flows.Seed()
	return affinity.New(affinityClients, [2]uint64{seed[2], seed[3]})
}
