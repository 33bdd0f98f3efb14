package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
)

// A new connection that finds no SNAT port, or no room in the flow table, is not
// refused while another choice can serve it.

const (
	// otherSources and otherEndpoints bound the tries in place of an exhausted SNAT source
	// and endpoint. Each failed try costs as much as a refusal.
	otherSources   = 15
	otherEndpoints = 3
	// nextPick takes a hash to that of the next try (odd; 2^64 / golden ratio).
	nextPick = 0x9e3779b97f4a7c15
)

// maxFailedTries is how often, for an exhausted endpoint, others may fail in a tick: a
// refusal is not to cost more than a connection that is made.
const maxFailedTries = 8

// failedTries counts such tries, by a hash of the endpoint's number and the Keep.
type failedTries [64]struct{ of, tick, n uint32 }

func (v *failedTries) of(ep *table.EndpointEntry, keep conntrack.Keep) (key uint32) {
	return ep.ID<<2 | uint32(keep)
}

// may reports whether others are to be tried for key at tick.
func (v *failedTries) may(key, tick uint32) bool {
	e := &v[key%uint32(len(v))]
	return e.of != key || e.tick != tick || e.n < maxFailedTries
}

// note notes a failed try.
func (v *failedTries) note(key, tick uint32) {
	e := &v[key%uint32(len(v))]
	if e.of != key || e.tick != tick {
		e.of, e.tick, e.n = key, tick, 0
	}
	e.n++
}

// createPressed makes a connection for which its SNAT source has no port towards the endpoint
// that the flows of KeepStreams leave: from another source, or else to another endpoint, and then
// by the ports of more flows. A port of a flow that is in use is thus the last choice before a
// refusal.
func (w *connMaker) createPressed(o *pendingConn) (conntrack.Ref, conntrack.Outcome) {
	f := &o.flow
	if f.Mode != conntrack.ModeNAT {
		return 0, conntrack.NoPort
	}
	first, source, except, nextHop := o.ep, snat.Source{Addr: f.SNAT, Lo: f.PortLo, Hi: f.PortHi}, f.Except, f.NextHop
	for {
		ref, outcome := w.createElsewhere(o)
		if outcome != conntrack.NoPort {
			return ref, outcome
		}
		o.setEndpoint(first, conntrack.ModeNAT, nextHop, source, except)
		if !f.TakeMore() {
			return 0, outcome
		}
		if ref, outcome := w.conntrack.Create(f); outcome != conntrack.NoPort {
			return ref, outcome
		}
	}
}

// createElsewhere makes a connection from another SNAT source, or else to another endpoint. Every
// node tries the same endpoints in the same order.
func (w *connMaker) createElsewhere(o *pendingConn) (conntrack.Ref, conntrack.Outcome) {
	f, hash := &o.flow, o.p.hash
	key := w.failed.of(o.ep, f.Keep)
	if !w.failed.may(key, w.tick) {
		return 0, conntrack.NoPort
	}
	known, _ := w.routeTo(o.p, o.ep, uint32(hash))
	for n := 1; n <= otherSources; n++ {
		src, ok := w.node.OtherSource(&known.path, o.ep, hash, n)
		if !ok {
			break
		}
		o.setEndpoint(o.ep, conntrack.ModeNAT, f.NextHop, src, w.node.Except(src.Shared))
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
	w.failed.note(key, w.tick)
	return 0, conntrack.NoPort
}

// mayMove reports whether any endpoint of the pool serves the connection: not where the
// client or the connection ID names an endpoint.
func (o *pendingConn) mayMove() bool {
	pool := o.fe.Pool
	return pool.Len() > 1 && pool.AffinitySeconds() == 0 && !o.fe.FollowsConnectionIDs()
}

// otherEndpoint is the n-th endpoint to try for a tuple's hash: of a small pool each in
// turn, of a larger pool the endpoint of another slot.
func otherEndpoint(pool *table.PoolEntry, hash, n uint64) *table.EndpointEntry {
	if size := uint64(pool.Len()); size <= otherEndpoints {
		return &pool.Endpoints()[(hash+n)%size]
	}
	return pool.Pick(hash + (n+1)*nextPick)
}

// createTo makes a connection to another endpoint than the present. It does nothing, and
// returns NoPort, if that is the same endpoint, needs another mode, or its next hop is silent.
func (w *connMaker) createTo(o *pendingConn, ep *table.EndpointEntry) (conntrack.Ref, conntrack.Outcome) {
	if ep == o.ep {
		return 0, conntrack.NoPort
	}
	hash := o.p.hash
	known, ok := w.routeTo(o.p, ep, uint32(hash))
	if !ok || w.modeOf(o.p, o.fe, ep, &known.path) != conntrack.ModeNAT ||
		known.nextHop == 0 && w.silentHop(&known.path, conntrack.ModeNAT) != 0 {
		return 0, conntrack.NoPort
	}
	src, ok := w.node.Source(&known.path, ep, hash)
	if !ok {
		return 0, conntrack.NoPort
	}
	o.setEndpoint(ep, conntrack.ModeNAT, known.nextHop, src, w.node.Except(src.Shared))
	return w.conntrack.Create(&o.flow)
}
