package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
)

// A new connection that finds no SNAT port, or no room in the flow table, is not
// refused while there is another way to serve it.

const (
	// otherSources and otherEndpoints bound what is tried in place of an exhausted
	// SNAT source and endpoint. Each try in vain costs as much as a refusal.
	otherSources   = 3
	otherEndpoints = 3
	// nextPick takes a hash to that of the next try (odd; 2^64 / golden ratio).
	nextPick = 0x9e3779b97f4a7c15
)

// vainTries is how often, for an exhausted endpoint, others are tried in vain in a tick:
// a refusal is not to cost more than a connection that is made.
const vainTries = 8

// vain counts such tries, by a hash of the endpoint's number.
type vain [64]struct{ endpoint, tick, n uint32 }

// may reports whether others are to be tried for the endpoint at tick.
func (v *vain) may(endpoint, tick uint32) bool {
	e := &v[endpoint%uint32(len(v))]
	return e.endpoint != endpoint || e.tick != tick || e.n < vainTries
}

// note notes a try in vain.
func (v *vain) note(endpoint, tick uint32) {
	e := &v[endpoint%uint32(len(v))]
	if e.endpoint != endpoint || e.tick != tick {
		e.endpoint, e.tick, e.n = endpoint, tick, 0
	}
	e.n++
}

// otherPort makes a connection whose SNAT ports towards its endpoint are exhausted
// from another SNAT source, or else to another endpoint. Every node tries the same
// endpoints in the same order.
func (w *Worker) otherPort(o *opening) (conntrack.Ref, conntrack.Outcome) {
	f, hash, outcome := &o.flow, o.p.hash, conntrack.NoPort
	if f.Mode != conntrack.ModeNAT || !w.vain.may(o.ep.Number, w.tick) {
		return 0, outcome
	}
	first, source := o.ep, snat.Source{Addr: f.SNAT, Lo: f.PortLo, Hi: f.PortHi}
	known, _ := w.pathTo(first, uint32(hash))
	for n := 1; n <= otherSources; n++ {
		src, ok := w.node.OtherSource(&known.path, first, hash, n)
		if !ok {
			break
		}
		o.to(first, conntrack.ModeNAT, o.way, src)
		if ref, outcome := w.conntrack.Create(f); outcome != conntrack.NoPort {
			return ref, outcome
		}
	}
	if o.mayMove() {
		for n := range uint64(otherEndpoints) {
			ref, outcome := w.createTo(o, otherEndpoint(o.fe.Pool, table.Hash(&f.Client.W), n))
			if outcome != conntrack.NoPort {
				return ref, outcome
			}
		}
	}
	w.vain.note(first.Number, w.tick)
	o.to(first, conntrack.ModeNAT, 0, source) // which is told of
	return 0, outcome
}

// mayMove reports whether any endpoint of the pool serves the connection: not where
// the client or its connection ID has one of its own.
func (o *opening) mayMove() bool {
	pool := o.fe.Pool
	return pool.Len() > 1 && pool.AffinitySeconds() == 0 && !o.fe.FollowsConnectionIDs()
}

// otherEndpoint is the n-th endpoint to try for a tuple's hash: of a small pool each in
// turn, of a larger one that of another slot.
func otherEndpoint(pool *table.PoolEntry, hash, n uint64) *table.EndpointEntry {
	if size := uint64(pool.Len()); size <= otherEndpoints {
		return &pool.Endpoints()[(hash+n)%size]
	}
	return pool.Pick(hash + (n+1)*nextPick)
}

// createTo makes a connection to another endpoint than its present one. It does
// nothing, and returns NoPort, where that would be the same one or take another mode.
func (w *Worker) createTo(o *opening, ep *table.EndpointEntry) (conntrack.Ref, conntrack.Outcome) {
	if ep == o.ep {
		return 0, conntrack.NoPort
	}
	hash := o.p.hash
	known, ok := w.pathTo(ep, uint32(hash))
	if !ok || w.modeOf(o.p, o.fe, ep, &known.path) != conntrack.ModeNAT {
		return 0, conntrack.NoPort
	}
	src, ok := w.node.Source(&known.path, ep, hash)
	if !ok {
		return 0, conntrack.NoPort
	}
	o.to(ep, conntrack.ModeNAT, known.way, src)
	return w.conntrack.Create(&o.flow)
}

// withoutFlow deals with the first packet of a connection for which the flow table
// has no room. In the one-way modes it goes to the endpoint that follows from its
// tuple, as do those after it: no packet of the connection needs a flow. Where that
// is not the choice of the Service's algorithm (random, least-conn), a full table
// takes the choice from it.
func (w *Worker) withoutFlow(o *opening) {
	p := o.p
	if !oneWay(o.flow.Mode) || p.Frag != 0 {
		w.drop(p, DropTableFull)
		return
	}
	if ep := w.byTuple(o.fe, &p.key); w.directTo(p, o.fe, ep, DropTableFull) {
		w.t.flowless++
	}
}

// byTuple is the endpoint that follows from a tuple, for packets without a flow.
func (w *Worker) byTuple(fe *table.FrontendEntry, k *conntrack.Key) *table.EndpointEntry {
	if ep := w.agreed(fe, k); ep != nil {
		return ep
	}
	return fe.Pool.Pick(table.Hash(&k.W))
}
