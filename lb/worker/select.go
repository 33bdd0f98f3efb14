package worker

import (
	"sync/atomic"

	"github.com/valyala/fastrand"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/table"
)

// selector selects the endpoint of a new flow.
type selector struct {
	admission
	affinity *affinity.Store // the endpoints of clients, for all workers
	cidMap   *affinity.Store // the endpoints of QUIC connection IDs
	rng      fastrand.RNG
}

// selectEndpoint is the endpoint for a new flow of the tuple. The frontend's pool is not
// empty.
func (w *selector) selectEndpoint(fe *table.FrontendEntry, k *conntrack.Key) *table.EndpointEntry {
	pool := fe.Pool
	if seconds := pool.AffinitySeconds(); seconds != 0 {
		return w.selectSticky(fe, k, uint32(seconds))
	}
	if pool.Algorithm() == table.LeastConn {
		return w.leastLoaded(pool)
	}
	return pool.Select(&k.W, &w.rng, w.tick)
}

// selectSticky is the endpoint that the client used last, while that may be used and was
// used within the affinity's time; else the endpoint that follows from the client's address
// alone, so that another node would choose it too. A client that comes back after that time is
// chosen for anew, as Kubernetes asks for; not without translation, where the flow may have begun at
// another node.
func (w *selector) selectSticky(
	fe *table.FrontendEntry, k *conntrack.Key, seconds uint32,
) *table.EndpointEntry {
	ep := w.stickyEndpoint(fe, k, seconds, !fe.Mode.DSR())
	w.affinity.Put(fe.AffinityKey(&k.W), ep.ID, w.tick/secondTicks)
	return ep
}

// stickyEndpoint is selectSticky without remembering it; nil from an empty pool. anew is whether a client that comes
// back too late is chosen for anew.
func (w *selector) stickyEndpoint(
	fe *table.FrontendEntry, k *conntrack.Key, seconds uint32, anew bool,
) *table.EndpointEntry {
	now := w.tick / secondTicks
	number, ok := w.affinity.Get(fe.AffinityKey(&k.W), now, seconds)
	switch {
	case ok:
		if ep := fe.Pool.Find(number); ep != nil {
			return ep
		}
	case anew && number != 0:
		return fe.Pool.SelectAnew(&k.W, now/seconds, w.tick)
	}
	return fe.Pool.Select(&k.W, &w.rng, w.tick)
}

// leastConnScan is the size of the largest pool that least connections scans whole. In a
// larger pool it draws two and takes the better, which is nearly as good
// (Mitzenmacher, The Power of Two Choices, 2001): a new flow costs at most this
// many loads.
const leastConnScan = 8

// leastLoaded is the endpoint with the fewest open connections for its weight,
// counting those of this node.
func (w *selector) leastLoaded(pool *table.PoolEntry) *table.EndpointEntry {
	eps := pool.Endpoints()
	if len(eps) > leastConnScan {
		a, b := pool.PickRandom(&w.rng), pool.PickRandom(&w.rng)
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

// lessLoaded reports whether another connection would load a less than b.
func (w *selector) lessLoaded(pool *table.PoolEntry, a, b *table.EndpointEntry) bool {
	return w.load(a)*pool.Share(b, w.tick) < w.load(b)*pool.Share(a, w.tick)
}

// load is the load of an endpoint by its connections and another one. A connection that is
// not open, half-open or over, weighs a 256th, as in IPVS (ip_vs_dest_conn_overhead):
// connections that begin at the same time spread, and a flood of SYNs hides nothing.
func (w *selector) load(ep *table.EndpointEntry) uint64 {
	open := uint64(w.conns.EndpointOpen(ep.ID))
	all := max(open, uint64(w.conns.EndpointFlows(ep.ID)))
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

// RestoreAffinity remembers the client of a flow of an earlier process, whose frontend and endpoint have numbers.
func RestoreAffinity(store *affinity.Store, flows *conntrack.Table, fe *table.FrontendEntry, ref conntrack.Ref) {
	c, seconds, now := flows.Conn(ref), uint32(fe.Pool.AffinitySeconds()), flows.Tick()/secondTicks
	if began := c.Created() / secondTicks; seconds != 0 && now-began <= seconds {
		store.Restore(fe.AffinityKey(&flows.Entry(ref).Key.W), atomic.LoadUint32(&c.EndpointID), began, now)
	}
}

// consistentPick is the endpoint of a flow of the tuple on every node, as far as this node
// can know; nil where the choice does not follow from the tuple.
func (w *selector) consistentPick(fe *table.FrontendEntry, k *conntrack.Key) *table.EndpointEntry {
	pool := fe.Pool
	if seconds := pool.AffinitySeconds(); seconds != 0 {
		return w.stickyEndpoint(fe, k, uint32(seconds), false)
	}
	if pool.Algorithm() != table.Maglev {
		return nil
	}
	return pool.Select(&k.W, &w.rng, w.tick)
}

// pickByTuple is the endpoint that follows from a tuple, for packets without a flow.
func (w *selector) pickByTuple(fe *table.FrontendEntry, k *conntrack.Key) *table.EndpointEntry {
	if ep := w.consistentPick(fe, k); ep != nil {
		return ep
	}
	return fe.Pool.Pick(table.Hash(&k.W))
}
