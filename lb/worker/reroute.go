package worker

import (
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/route"
)

// rerouteFor is how long Reroute walks at most: until it ends, flows that it has not come to
// go by the old routes.
const rerouteFor = 250 * time.Millisecond

// Reroute sets the new next hops of flows that a change of routes affects, so that their
// packets stay on the fast path, unless routing rules ask by which interface a packet came. affected has the numbers of the adjacencies; their stamps
// have not changed yet. The next packet of a flow on the fast path sets it in three cases: the new next hop is
// affected too or not resolved, the flow is not translated, or the time is up. It returns the
// number of directions that have another next hop. It is for a control goroutine, beside the
// workers.
func Reroute(flows *conntrack.Table, router *route.Watcher, affected []bool) (n int) {
	r := rerouter{flows, router, router.Load(), router.Adjacencies(), affected}
	if r.routes.ByArrival() {
		return 0 // known of a packet, not of a flow
	}
	until, walked := time.Now().Add(rerouteFor), 0
	flows.Range(func(ref conntrack.Ref) bool {
		if walked++; walked%1024 == 0 && time.Now().After(until) {
			return false
		}
		if !flows.Entry(ref).Mode.DSR() {
			n += r.direction(ref) + r.direction(ref.Other())
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

// direction replaces the next-hop word of entry ref, unless a worker has replaced it
// meanwhile. It returns the number of words replaced.
func (r *rerouter) direction(ref conntrack.Ref) int {
	was := r.flows.NextHop(ref)
	old := was & 0xffff
	if was>>32 == 0 || old >= uint64(len(r.affected)) || !r.affected[old] ||
		(uint32(was>>32)^r.adjacencies[old].Stamp())&^uint32(conntrack.Followed>>32) != 0 {
		return 0
	}
	e := r.flows.Entry(ref)
	key := e.Tuple()
	as := routedAs(r.flows, ref)
	path, ok := r.routes.Lookup(&as, uint32(r.flows.Hash(&key)))
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
	r.flows.Conn(ref) // has the TCP numbers of the entries, which Resettle forgets
	if !r.flows.Resettle(ref, was, nextHopRef(stamp, &path, number)) {
		return 0
	}
	return 1
}
