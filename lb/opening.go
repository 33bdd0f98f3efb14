package lb

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// opening is a connection that is about to be made, for packet i.
type opening struct {
	i    int
	way  uint64 // of the client's packets; 0: to be found
	fe   *table.FrontendEntry
	ep   *table.EndpointEntry
	flow conntrack.NewFlow
}

// openings are those of one group of packets. They are made together, once all are
// decided upon: each needs lines of memory that are in no cache, and these are on
// their way meanwhile. The last place is for what turns up while they are made.
type openings struct {
	n    int
	busy bool
	list [groupSize + 1]opening
}

// next is the place for another.
func (o *openings) next() *opening {
	if o.busy {
		return &o.list[groupSize]
	}
	o.n++
	return &o.list[o.n-1]
}

// has says whether a packet of that hash has begun a connection which is not made yet.
func (o *openings) has(b *batch, hash uint64) bool {
	for k := range o.list[:o.n] {
		if b.hash[o.list[k].i] == hash {
			return true
		}
	}
	return false
}

// begin decides how a new connection goes. It is made, and its first packet sent, by
// openAll, which the caller of miss calls before anything else is done with the batch.
func (w *worker) begin(b *batch, i int, fe *table.FrontendEntry, ep *table.EndpointEntry) {
	p := &b.pkt[i]
	if p.TTL <= 1 {
		w.reply(b, i, header.TimeExceeded, 0, DropTTL)
		return
	}
	known, ok := w.pathTo(ep, uint32(b.hash[i]))
	path := &known.path
	if !ok {
		w.noRoute(b, i, path.Kind)
		return
	}
	mode := w.modeOf(b, i, fe, ep, path)
	if !oneWay(mode) && !opens(p) {
		w.midstream(b, i)
		return
	}
	if oneWay(mode) && !w.reaches(path, mode, ep.AddrPort) {
		w.drop(b, i, DropNotOnLink)
		return
	}
	src, ok := w.plan.source(path, ep, b.hash[i])
	if !ok && mode != conntrack.ModeL2DSR && mode != conntrack.ModeDNAT {
		w.drop(b, i, DropNoRoute)
		return
	}
	o := w.openings.next()
	o.i, o.fe = i, fe
	f := &o.flow
	f.Client = b.key[i]
	f.FrontendNumber = fe.Service
	f.Tick = w.tick
	f.HasTS, f.Watched = false, fe.FollowsConnectionIDs()
	o.to(ep, mode, known.way, src)
	if p.Proto == header.ProtoTCP {
		l4 := header.TCP(w.frame(b, i)[p.L4:])
		f.Seq = l4.Seq()
		f.TSval, f.HasTS = conntrack.Timestamp(l4[header.TCPLen:l4.DataOffset()])
	}
	w.ct.Plan(f, b.hash[i])
	switch {
	case w.openings.busy:
		w.ct.Draw(f)
		w.open(b, o)
	case fe.Policy != nil || fe.Pool.Algorithm() == table.LeastConn:
		w.openAll(b) // the next choice may depend on how many connections there are
	}
}

// modeOf is the mode of packet i's flow to an endpoint by a path.
func (w *worker) modeOf(b *batch, i int, fe *table.FrontendEntry, ep *table.EndpointEntry, path *route.Path) conntrack.Mode {
	mode := modeTo(fe, ep, path, w.plan)
	if mode == conntrack.ModeDNAT && !w.mayKeepClient(b, i, ep, path) {
		return conntrack.ModeNAT
	}
	return mode
}

// to sets the endpoint of a connection, how packets reach it, and the SNAT source.
func (o *opening) to(ep *table.EndpointEntry, mode conntrack.Mode, way uint64, src SNATSource) {
	f := &o.flow
	o.ep, o.way = ep, way
	if mode == conntrack.ModeDNAT {
		o.way = 0 // it may have another next hop: see throughHostPort
	}
	f.Endpoint, f.EndpointNumber, f.Mode = ep.AddrPort, ep.Number, mode
	f.SNAT, f.PortLo, f.PortHi = src.Addr, src.Lo, src.Hi
}

// openAll makes the connections that were decided upon, in the order of their packets.
func (w *worker) openAll(b *batch) {
	all := w.openings.list[:w.openings.n]
	w.openings.busy = true
	for k := range all {
		w.ct.Draw(&all[k].flow)
	}
	for k := range all {
		w.open(b, &all[k])
	}
	w.openings.busy, w.openings.n = false, 0
}

// open makes the flow entries of a new connection and sends its first packet.
func (w *worker) open(b *batch, o *opening) {
	i, f := o.i, &o.flow
	ref, outcome := w.ct.Create(f)
	if outcome == conntrack.NoPort && f.Mode == conntrack.ModeDNAT && f.SNAT.IsValid() {
		// The client's port is in use towards this endpoint, by another frontend.
		f.Mode = conntrack.ModeNAT
		ref, outcome = w.ct.Create(f)
	}
	if outcome == conntrack.NoPort {
		ref, outcome = w.otherPort(b, o)
	}
	switch outcome {
	case conntrack.Created:
		w.t.newFlows++
		if o.way != 0 {
			atomic.StoreUint64(&w.table.Conn(ref).Adj[0], o.way)
		}
		w.clearPort(b, i, ref)
	case conntrack.Existed:
	case conntrack.NoPort:
		w.exhausted.note(f.Endpoint, f.SNAT)
		w.drop(b, i, DropSNATPorts)
		return
	case conntrack.Unfit:
		w.drop(b, i, DropUnsupported)
		return
	default:
		w.withoutFlow(b, o)
		return
	}
	if outcome == conntrack.Created && !opens(&b.pkt[i]) {
		w.takeUp(b, i, ref)
		return
	}
	if !b.plain[i] || !w.established(b, i, ref) {
		w.carry(b, i, ref)
	}
}
