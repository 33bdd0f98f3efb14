package worker

import (
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/route"
)

// rerouteFor is how long Reroute walks at most: until it ends, flows that it has not come to
// go by the old routes.
const rerouteFor = 250 * time.Millisecond

// Reroute sets the new next hops of flows that a change of routes affects, so that their
// packets stay on the fast path. affected has the numbers of the adjacencies; their stamps
// have not changed yet. The next packet of a flow sets it in three cases: the new next hop is
// affected too or not resolved, the flow is not translated, or the time is up. It returns the
// number of directions that have another next hop. It is for a control goroutine, beside the
// workers.
func Reroute(flows *conntrack.Table, router *route.Watcher, affected []bool) (n int) {
	r := rerouter{flows, router, router.Load(), router.Adjacencies(), affected}
	until, walked := time.Now().Add(rerouteFor), 0
	flows.Range(func(ref conntrack.Ref) bool {
		if walked++; walked%1024 == 0 && time.Now().After(until) {
			return false
		}
		adj := flows.NextHops(ref)
		if moved := r.direction(&adj[0], ref) + r.direction(&adj[1], ref.Other()); moved > 0 {
			flows.Conn(ref) // has the TCP numbers of the entries, which Settle forgets
			flows.Settle(ref)
			n += moved
		}
		return true
	})
	return n
}

type rerouter struct {
	flows       *conntrack.Table
	router      *route.Watcher
	routes      *route.Table
	adjacencies []route.Adjacency
	affected    []bool
}

// direction replaces the connection's word for the direction of entry ref, unless a worker
// has replaced it meanwhile. It returns the number of words replaced.
func (r *rerouter) direction(at *uint64, ref conntrack.Ref) int {
	was := atomic.LoadUint64(at)
	old := was & 0xffff
	if was>>32 == 0 || old >= uint64(len(r.affected)) || !r.affected[old] ||
		uint32(was>>32) != r.adjacencies[old].Stamp() {
		return 0
	}
	e := r.flows.Entry(ref)
	if e.Mode.DSR() {
		return 0
	}
	key := e.Tuple()
	path, ok := r.routes.Lookup(r.flows.NewDst(ref).Addr(), uint32(r.flows.Hash(&key)))
	if !ok {
		return 0
	}
	if ref.Forward() {
		path.NextHop = throughHostVeth(&path, e.Mode)
	}
	number, ok := r.router.Adjacency(path.Port, path.NextHop)
	if !ok || r.affected[number] {
		return 0
	}
	adj := &r.adjacencies[number]
	stamp := adj.Stamp()
	if adj.State() != route.Valid || !adj.Is(path.Port, path.NextHop) {
		return 0
	}
	if !atomic.CompareAndSwapUint64(at, was, nextHopRef(stamp, &path, number)) {
		return 0
	}
	return 1
}
