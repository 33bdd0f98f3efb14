package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/tcp"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
)

// pendingConn is a connection that is about to be made, for packet p.
type pendingConn struct {
	p     *pkt // nil: the packet has been dealt with
	fe    *table.FrontendEntry
	ep    *table.EndpointEntry // nil: to be selected
	route *cachedRoute         // to the endpoint; nil: not cached
	flow  conntrack.NewFlow
	// named: no other endpoint may be selected. unreached: the endpoint cannot be reached now, since its next
	// hop is silent if that is not 0. moved: it is in the place of one that cannot be.
	named, unreached, moved bool
	silent                  uint32
}

// pendingConns are the connections that a group of packets begins. While dispatch collects,
// they wait for each other, and each step is taken for all of them: a step needs lines of
// memory that are in no cache, and these are fetched together. At any other time a
// connection is made at once. It takes the last place, which is free again as soon as the
// connection's first packet goes on.
type pendingConns struct {
	n       int
	collect bool
	list    [groupSize + 1]pendingConn
}

// next returns the place for another connection.
func (o *pendingConns) next() *pendingConn {
	if !o.collect {
		return &o.list[groupSize]
	}
	o.n++
	return &o.list[o.n-1]
}

// has reports whether a packet of that hash has begun a connection which is not made yet.
func (o *pendingConns) has(hash uint64) bool {
	for k := range o.list[:o.n] {
		if o.list[k].p.hash == hash {
			return true
		}
	}
	return false
}

// connMaker decides how connections are made: endpoint, path and SNAT source.
type connMaker struct {
	fastPath
	watch     attemptWatch
	exhausted exhaustion // endpoints without an SNAT port left
	failed    failedTries
}

// beginConn begins a connection to endpoint ep, or if that is nil to an endpoint of the
// frontend. It is made, and the first packet sent, at once or, while dispatch collects, by
// createPending.
func (w *flows) beginConn(p *pkt, fe *table.FrontendEntry, ep *table.EndpointEntry) verdict {
	o := w.pending.next()
	o.p, o.fe, o.ep, o.route = p, fe, ep, nil
	o.named, o.moved = ep != nil, false
	switch {
	case !w.pending.collect:
		w.selectFor(o)
		if v := w.decide(o); v != pass {
			return v
		}
		w.conntrack.PickPort(&o.flow)
		return w.createConn(o)
	case fe.Policy != nil || fe.Pool.Algorithm() == table.LeastConn:
		w.createPending() // the next choice may depend on how many connections there are
	}
	return pending
}

// selectFor selects the endpoint of a connection.
func (w *connMaker) selectFor(o *pendingConn) {
	switch {
	case o.ep != nil:
	case o.fe.Mode.DSR() && !opens(&o.p.Packet):
		// The middle of a connection: the endpoint was chosen by the tuple, or the choice
		// is lost.
		o.ep = w.pickByTuple(o.fe, &o.p.key)
	case o.p.silent != 0:
		o.ep = w.selectOther(o.fe, &o.p.key, o.p.silent)
	default:
		o.ep = w.selectEndpoint(o.fe, &o.p.key)
	}
}

// A new flow does not begin at an endpoint that cannot be reached now while another can be: no route leads
// there, or none that the mode can take, or the next hop did not answer when it was last asked for.
const (
	// otherPaths is the number of endpoints that are tried in place of one that cannot be reached.
	otherPaths = 8
	// keepUnreached has connMaker.failed count these tries apart from those for SNAT ports.
	keepUnreached = conntrack.KeepStreams + 1
)

// decide decides the path of a connection, and another endpoint where the one that was selected cannot be
// reached now. Where none can be, it stays. Every node with the same routes tries the same in the same order.
func (w *connMaker) decide(o *pendingConn) verdict {
	v := w.decideTo(o)
	if !o.unreached {
		return v
	}
	if first, silent := o.ep, o.silent; !o.named && opens(&o.p.Packet) {
		if w.decideElsewhere(o) {
			w.askSilent(silent)
			return pass
		}
		o.ep = first
		v = w.decideTo(o)
	}
	if v != pass {
		w.watch.attempts.Unanswered(o.ep.ID, w.tick)
	}
	return v
}

// decideElsewhere decides on another endpoint of the pool, which can be reached, if possible one whose last
// attempt has not failed. It reports whether there is one.
func (w *connMaker) decideElsewhere(o *pendingConn) bool {
	first, hash := o.ep.ID, table.Hash(&o.p.key.W)
	key := w.failed.of(o.ep, keepUnreached)
	if !w.failed.may(key, w.tick) {
		return false
	}
	var failing *table.EndpointEntry
	for n := range uint64(otherPaths) {
		ep := o.fe.Pool.PickOther(hash+n, first)
		if ep == nil {
			break
		}
		if ep == failing || !w.reaches(o, ep) {
			continue
		}
		if w.watch.attempts.Of(ep.ID).InARow == 0 {
			return w.move(o)
		}
		if failing == nil {
			failing = ep
		}
	}
	if failing != nil && w.reaches(o, failing) {
		return w.move(o)
	}
	w.failed.note(key, w.tick)
	return false
}

// reaches decides on an endpoint, and reports whether it can be reached now.
func (w *connMaker) reaches(o *pendingConn, ep *table.EndpointEntry) bool {
	o.ep, o.route = ep, nil
	return w.decideTo(o) == pass && !o.unreached
}

// move has a connection begin at the endpoint that was decided on, in place of the one selected. It
// returns true.
func (w *connMaker) move(o *pendingConn) bool {
	if o.fe.Pool.AffinitySeconds() != 0 {
		w.affinity.Put(o.fe.AffinityKey(&o.p.key.W), o.ep.ID, w.tick/secondTicks)
	}
	o.moved = true
	return true
}

// decideTo decides the path of a connection to its endpoint, and whether that can be reached now.
func (w *connMaker) decideTo(o *pendingConn) verdict {
	p, fe, ep := o.p, o.fe, o.ep
	o.unreached, o.silent = false, 0
	if p.TTL <= 1 {
		return rejectICMP(header.TimeExceeded, 0, DropTTL)
	}
	known := o.route
	if known == nil || known.number != ep.ID { // another route may have taken the place
		ok := false
		if known, ok = w.routeTo(p, ep, uint32(p.hash)); !ok {
			o.unreached = true
			return noRoute(known.path.Kind)
		}
	}
	path := &known.path
	mode := w.modeOf(p, fe, ep, path)
	if !mode.DSR() && !opens(&p.Packet) {
		return w.onMidstream(p, fe)
	}
	if mode.DSR() && !w.canReach(path, mode, ep.AddrPort) {
		o.unreached = true
		return drop(DropNotAdjacent)
	}
	src, ok := w.node.Source(path, ep, p.hash)
	if !ok && mode != conntrack.ModeL2DSR && mode != conntrack.ModeDNAT {
		o.unreached = true
		return drop(DropNoRoute)
	}
	if known.nextHop == 0 {
		o.silent = w.silentHop(path, mode)
		o.unreached = o.silent != 0
	}
	f := &o.flow
	f.Client = p.key
	f.ServiceID = fe.ServiceID
	f.Tick = w.tick
	f.HasTS, f.Watched, f.Keep = false, fe.FollowsConnectionIDs(), conntrack.KeepStreams
	o.setEndpoint(ep, mode, known.nextHop, src, w.node.Except(src.Shared))
	if p.Proto == header.ProtoTCP {
		l4 := header.TCP(p.data[p.L4:])
		f.Seq = l4.Seq()
		f.TSval, f.HasTS = tcp.Timestamp(l4[header.TCPLen:l4.DataOffset()])
	}
	w.conntrack.Prefetch(f, p.hash)
	return pass
}

// modeOf is the mode of packet p's flow to an endpoint by a path.
func (w *connMaker) modeOf(
	p *pkt, fe *table.FrontendEntry, ep *table.EndpointEntry, path *route.Path,
) conntrack.Mode {
	mode := ModeTo(fe, ep, path, w.node)
	if mode == conntrack.ModeDNAT && !w.mayKeepClient(p, ep, path) {
		return conntrack.ModeNAT
	}
	return mode
}

// setEndpoint sets the endpoint of a connection, how packets reach it, and the SNAT source with the
// ports that it does not give.
func (o *pendingConn) setEndpoint(
	ep *table.EndpointEntry, mode conntrack.Mode, nextHop uint64, src snat.Source, except *conntrack.PortSet,
) {
	f := &o.flow
	o.ep, f.NextHop = ep, nextHop
	if mode == conntrack.ModeDNAT {
		f.NextHop = 0 // it may have another next hop: see throughHostVeth
	}
	f.Endpoint, f.EndpointID, f.Mode = ep.AddrPort, ep.ID, mode
	if o.fe.LastPort != 0 {
		f.Endpoint = o.fe.Target(ep, o.p.key.Dst().Port())
	}
	f.SNAT, f.PortLo, f.PortHi, f.Except = src.Addr, src.Lo, src.Hi, except
}

// createPending makes the connections that were begun, in the order of their packets.
// Only dispatch, which collects them, and beginConn call it.
func (w *flows) createPending() {
	all := w.pending.list[:w.pending.n]
	w.pending.collect, w.pending.n = false, 0
	for k := range all {
		w.selectFor(&all[k])
	}
	for k := range all {
		all[k].route = w.cachedRouteTo(all[k].ep)
	}
	for k := range all {
		if v := w.decide(&all[k]); v != pass {
			w.conclude(all[k].p, v)
			all[k].p = nil
		}
	}
	for k := range all {
		if all[k].p != nil {
			w.conntrack.PickPort(&all[k].flow)
		}
	}
	for k := range all {
		if all[k].p != nil {
			w.conclude(all[k].p, w.createConn(&all[k]))
		}
	}
	w.pending.collect = true
}

// createConn makes the flow entries of a new connection and sends the first packet.
func (w *flows) createConn(o *pendingConn) verdict {
	p, f := o.p, &o.flow
	ref, outcome := w.conntrack.Create(f)
	if outcome == conntrack.NoPort && f.Mode == conntrack.ModeDNAT && f.SNAT.IsValid() {
		// The client's port is in use towards this endpoint, by another frontend.
		f.Mode = conntrack.ModeNAT
		ref, outcome = w.conntrack.Create(f)
	}
	if outcome == conntrack.NoPort {
		ref, outcome = w.createPressed(o)
	}
	switch outcome {
	case conntrack.Created:
		p.began = true
		w.counts[counter.NewFlows]++
		w.services.add(f.ServiceID, serviceNewFlows, 1)
		if p.Proto == header.ProtoTCP && !f.Mode.DSR() {
			w.watch.noteSYN(ref)
		}
		// The endpoint accepts the SYN of the flow that has taken over the SNAT port of a
		// half-open connection only after a RST. It would answer with a challenge ACK, and
		// the client lose a second.
		if seq, ok := w.conntrack.Leftover(ref); ok && p.Proto == header.ProtoTCP {
			w.endings.resetReceiver(p, ref, seq, false)
		}
	case conntrack.Existed:
	case conntrack.NoPort:
		w.exhausted.note(f.Endpoint, f.SNAT)
		return drop(DropSNATPorts)
	case conntrack.Invalid:
		return drop(DropUnsupported)
	default:
		return w.onTableFull(o)
	}
	if p.Frag == 0 {
		w.conntrack.CountPacket(ref, uint32(p.Len))
	}
	if outcome == conntrack.Created && !opens(&p.Packet) {
		// Of a TCP connection that began elsewhere. The flow counts as half open until it
		// goes on: the table keeps no flow of a forged packet that is older than a real flow.
		p.state = untracked
	} else if p.state == fast && w.forwardFast(p, ref) {
		return sent
	} else if outcome == conntrack.Created {
		if v := w.sendSYN(p, f, ref); v != pass {
			return v
		}
	}
	return w.forwardSlow(p, ref)
}

// sendSYN sends packet p, a SYN, by the entry ref that was made for it. The entry has all
// that trackTCP would note of the SYN. It passes p, and has done nothing, where p is no SYN
// to a next hop that is known.
func (w *flows) sendSYN(p *pkt, f *conntrack.NewFlow, ref conntrack.Ref) verdict {
	if p.Proto != header.ProtoTCP || f.Mode != conntrack.ModeNAT || p.Frag != 0 {
		return pass
	}
	adj := &w.adjacencies[f.NextHop&0xffff]
	if uint32(f.NextHop>>32) != adj.Stamp() {
		return pass
	}
	mac, state := adj.Dst()
	if state != route.Valid || uint32(p.Len) > min(adj.MTU(), uint32(f.NextHop)>>16) {
		return pass
	}
	p.ref = ref
	w.translate(p, w.conns.Entry(ref))
	return w.outputTo(p, adj, mac)
}
