package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
)

// opening is a connection that is about to be made, for packet p.
type opening struct {
	p    *pkt
	way  uint64 // of the client's packets; 0: to be found
	fe   *table.FrontendEntry
	ep   *table.EndpointEntry
	flow conntrack.NewFlow
}

// openings are the connections that a group of packets begins. While forward collects,
// they wait until all are decided upon and are made together: each needs lines of memory
// that are in no cache, and these are on their way meanwhile. At any other time a
// connection is made at once. It takes the last place, which is free again as soon as
// the connection's first packet goes on.
type openings struct {
	n       int
	collect bool
	list    [groupSize + 1]opening
}

// next returns the place for another connection.
func (o *openings) next() *opening {
	if !o.collect {
		return &o.list[groupSize]
	}
	o.n++
	return &o.list[o.n-1]
}

// has reports whether a packet of that hash has begun a connection which is not made yet.
func (o *openings) has(hash uint64) bool {
	for k := range o.list[:o.n] {
		if o.list[k].p.hash == hash {
			return true
		}
	}
	return false
}

// begin decides how a new connection goes. The connection is made, and its first packet
// sent, at once or, while forward collects, by openAll.
func (w *Worker) begin(p *pkt, fe *table.FrontendEntry, ep *table.EndpointEntry) {
	if p.TTL <= 1 {
		w.reply(p, header.TimeExceeded, 0, DropTTL)
		return
	}
	known, ok := w.pathTo(ep, uint32(p.hash))
	path := &known.path
	if !ok {
		w.noRoute(p, path.Kind)
		return
	}
	mode := w.modeOf(p, fe, ep, path)
	if !oneWay(mode) && !opens(&p.Packet) {
		w.midstream(p)
		return
	}
	if oneWay(mode) && !w.reaches(path, mode, ep.AddrPort) {
		w.drop(p, DropNotOnLink)
		return
	}
	src, ok := w.node.Source(path, ep, p.hash)
	if !ok && mode != conntrack.ModeL2DSR && mode != conntrack.ModeDNAT {
		w.drop(p, DropNoRoute)
		return
	}
	o := w.openings.next()
	o.p, o.fe = p, fe
	f := &o.flow
	f.Client = p.key
	f.FrontendNumber = fe.Service
	f.Tick = w.tick
	f.HasTS, f.Watched = false, fe.FollowsConnectionIDs()
	o.to(ep, mode, known.way, src)
	if p.Proto == header.ProtoTCP {
		l4 := header.TCP(w.frame(p)[p.L4:])
		f.Seq = l4.Seq()
		f.TSval, f.HasTS = conntrack.Timestamp(l4[header.TCPLen:l4.DataOffset()])
	}
	w.conntrack.Plan(f, p.hash)
	switch {
	case !w.openings.collect:
		w.conntrack.Draw(f)
		w.open(o)
	case fe.Policy != nil || fe.Pool.Algorithm() == table.LeastConn:
		w.openAll() // the next choice may depend on how many connections there are
	}
}

// modeOf is the mode of packet p's flow to an endpoint by a path.
func (w *Worker) modeOf(p *pkt, fe *table.FrontendEntry, ep *table.EndpointEntry, path *route.Path) conntrack.Mode {
	mode := ModeTo(fe, ep, path, w.node)
	if mode == conntrack.ModeDNAT && !w.mayKeepClient(p, ep, path) {
		return conntrack.ModeNAT
	}
	return mode
}

// to sets the endpoint of a connection, how packets reach it, and the SNAT source.
func (o *opening) to(ep *table.EndpointEntry, mode conntrack.Mode, way uint64, src snat.Source) {
	f := &o.flow
	o.ep, o.way = ep, way
	if mode == conntrack.ModeDNAT {
		o.way = 0 // it may have another next hop: see throughHostPort
	}
	f.Endpoint, f.EndpointNumber, f.Mode = ep.AddrPort, ep.Number, mode
	f.SNAT, f.PortLo, f.PortHi = src.Addr, src.Lo, src.Hi
}

// openAll makes the connections that were decided upon, in the order of their packets.
// Only forward, which collects them, and begin call it.
func (w *Worker) openAll() {
	all := w.openings.list[:w.openings.n]
	w.openings.collect, w.openings.n = false, 0
	for k := range all {
		w.conntrack.Draw(&all[k].flow)
	}
	for k := range all {
		w.open(&all[k])
	}
	w.openings.collect = true
}

// open makes the flow entries of a new connection and sends its first packet.
func (w *Worker) open(o *opening) {
	p, f := o.p, &o.flow
	ref, outcome := w.conntrack.Create(f)
	if outcome == conntrack.NoPort && f.Mode == conntrack.ModeDNAT && f.SNAT.IsValid() {
		// The client's port is in use towards this endpoint, by another frontend.
		f.Mode = conntrack.ModeNAT
		ref, outcome = w.conntrack.Create(f)
	}
	if outcome == conntrack.NoPort {
		ref, outcome = w.otherPort(o)
	}
	switch outcome {
	case conntrack.Created:
		w.t.newFlows++
		if o.way != 0 {
			atomic.StoreUint64(&w.conns.Conn(ref).Adj[0], o.way)
		}
		w.clearPort(p, ref)
	case conntrack.Existed:
	case conntrack.NoPort:
		w.exhausted.note(f.Endpoint, f.SNAT)
		w.drop(p, DropSNATPorts)
		return
	case conntrack.Unfit:
		w.drop(p, DropUnsupported)
		return
	default:
		w.withoutFlow(o)
		return
	}
	if outcome == conntrack.Created && !opens(&p.Packet) {
		w.takeUp(p, ref)
		return
	}
	if p.state != fast || !w.established(p, ref) {
		w.carry(p, ref)
	}
}
