package lb

import (
	"net/netip"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// flow deals with packet i, for which the flow entry was found.
func (w *worker) flow(b *batch, i int, ref conntrack.Ref) {
	if !w.verified(b, i) {
		return
	}
	if w.anyGone && w.orphaned(b, i, ref) {
		return
	}
	w.carry(b, i, ref)
}

// carry sends packet i on by the flow entry that it belongs to.
func (w *worker) carry(b *batch, i int, ref conntrack.Ref) {
	b.ref[i] = ref
	p := &b.pkt[i]
	c := w.table.Conn(ref)
	if p.TTL <= 1 {
		w.reply(b, i, header.TimeExceeded, 0, DropTTL)
		return
	}
	e := w.table.Entry(ref)
	adj, dst, mtu := w.adjacency(b, i, c, e, ref)
	if adj == nil {
		return // held, or answered
	}
	var t *tunnel
	if oneWay(e.Mode) {
		t = w.tunnelOf(b, i, e, ref)
		mtu = t.within(mtu)
		if uint32(p.Len) > mtu && w.tooBigDirect(b, i, mtu) {
			return
		}
	} else if uint32(p.Len) > mtu && w.tooBig(b, i, adj, mtu) {
		return
	}
	if p.Proto == header.ProtoTCP {
		if !w.trackTCP(b, i, c, ref) {
			return
		}
	} else if p.Proto == header.ProtoSCTP {
		if !w.trackSCTP(b, i, ref) {
			return
		}
	} else {
		if c.State() == conntrack.StateNone {
			w.lookAgain(b, i)
			return
		}
		if !w.mayOpen(b, i, c, ref) {
			return
		}
		w.table.TrackUDP(ref, w.tick)
		if e.Flags&conntrack.FlagWatched != 0 && !oneWay(e.Mode) {
			w.learnServer(b, i, c, ref)
		}
	}
	if p.Frag != 0 && !w.fragmentGoes(b, i, e) {
		return
	}
	if t != nil {
		w.direct(b, i, t, adj, dst, mtu)
		return
	}
	w.translate(b, i, e)
	w.leave(b, i, adj, dst)
}

// lookAgains bounds how often a packet is looked up again: who ends a flow may
// be kept from running between its two steps, and workers do not wait.
const lookAgains = 8

// lookAgain deals with a packet whose flow went away after it was looked up:
// ended by another worker, by ageing, or by a packet of this very batch.
func (w *worker) lookAgain(b *batch, i int) {
	if b.tries[i]++; b.tries[i] > lookAgains {
		w.drop(b, i, DropNoFlow)
		return
	}
	if ref := w.ct.Lookup(b.hash[i], &b.key[i]); ref != 0 {
		w.carry(b, i, ref)
		return
	}
	w.miss(b, i)
}

// leave puts the adjacency's MAC addresses on packet i and sends it.
func (w *worker) leave(b *batch, i int, adj *route.Adjacency, dst uint64) {
	src, out := adj.Src()
	adj.Touch(w.tick)
	if b.pkt[i].L3 != header.EthernetLen {
		w.untag(b, i)
	}
	route.PutMACs(w.frame(b, i), dst, src)
	if b.pkt[i].Partial {
		w.completeChecksum(b, i, &w.ports[out])
	}
	w.send(b, i, int32(out))
}

// way is a connection's word for one direction: the epoch of the routes under
// which the adjacency was chosen in bits 32..63, the route's MTU in 16..31 and
// the adjacency's number in 0..15.
func way(epoch uint32, path *route.Path, n uint32) uint64 {
	return uint64(epoch)<<32 | uint64(min(path.MTU, 0xffff))<<16 | uint64(n&0xffff)
}

// adjacency is the way out for a packet of the entry, with the MAC address to
// send to and the MTU of link and route; nil when it cannot be used now, the
// packet then having been dealt with. The connection's word holds what was
// found: after a change of routes each flow asks once again, at its next
// packet.
func (w *worker) adjacency(b *batch, i int, c *conntrack.Conn, e *conntrack.Entry, ref conntrack.Ref) (*route.Adjacency, uint64, uint32) {
	adjWord := &c.Adj[0]
	if !ref.Forward() {
		adjWord = &c.Adj[1]
	}
	word := atomic.LoadUint64(adjWord)
	if uint32(word>>32) != w.epoch {
		path, ok := w.routes.Lookup(w.table.NewDst(ref).Addr(), uint32(b.hash[i]))
		if !ok {
			w.noRoute(b, i, path.Kind)
			return nil, 0, 0
		}
		if oneWay(e.Mode) && !w.reaches(&path, e.Mode, w.table.NewDst(ref)) {
			w.drop(b, i, DropNotOnLink)
			return nil, 0, 0
		}
		if ref.Forward() {
			path.NextHop = throughHostPort(&path, e.Mode)
		}
		n, ok := w.router.Adjacency(path.Port, path.NextHop)
		if !ok {
			w.hold(b, i, int32(path.Port), path.NextHop, 0)
			return nil, 0, 0
		}
		word = way(w.epoch, &path, n)
		atomic.StoreUint64(adjWord, word)
	}
	return w.hop(b, i, word)
}

// hop is adjacency by a word that is current.
func (w *worker) hop(b *batch, i int, word uint64) (*route.Adjacency, uint64, uint32) {
	n := uint32(word & 0xffff)
	adj := &w.adjacencies[n]
	mac, state := adj.Dst()
	switch state {
	case route.Valid:
		return adj, mac, min(adj.MTU(), uint32(word)>>16)
	case route.Failed:
		adj.Touch(w.tick) // still wanted: the kernel is asked again
		w.reply(b, i, header.HostUnreachable, 0, DropNeighbour)
	default:
		w.hold(b, i, 0, netip.Addr{}, n)
	}
	return nil, 0, 0
}

// noRoute deals with a packet whose destination cannot be reached.
func (w *worker) noRoute(b *batch, i int, why route.Kind) {
	if why == route.Blackhole {
		w.drop(b, i, DropNoRoute)
		return
	}
	w.reply(b, i, header.HostUnreachable, 0, DropNoRoute)
}

// miss deals with a packet that belongs to no flow. It may leave a connection to be
// made by openAll.
func (w *worker) miss(b *batch, i int) {
	k := frontendKey(&b.key[i])
	fe := w.snapshot.Lookup(&k)
	if fe == nil || fe.Kind == table.ClusterIP && b.in[i] == w.hostPort {
		w.stray(b, i)
		return
	}
	if w.martianSource(b, i) {
		w.drop(b, i, DropMartian)
		return
	}
	if !w.admitted(b, i, fe) {
		return
	}
	if !oneWay(fe.Mode) && !opens(&b.pkt[i]) {
		w.midstream(b, i)
		return
	}
	if !w.verified(b, i) {
		return
	}
	if b.pkt[i].Proto == header.ProtoSCTP && !w.singleHomed(b, i) {
		return
	}
	ep := w.serverAsked(b, i, fe)
	if ep == nil && w.plan.draining {
		w.decline(b, i)
		return
	}
	if ep == nil && fe.Pool.Len() == 0 {
		w.empty(b, i, fe.Pool)
		return
	}
	if !w.withinLimits(b, i, fe) {
		return
	}
	switch {
	case ep != nil:
	case oneWay(fe.Mode) && !opens(&b.pkt[i]):
		// The middle of a connection: what made it chose by the tuple, or the choice
		// is lost.
		ep = w.byTuple(fe, &b.key[i])
	default:
		ep = w.choose(fe, &b.key[i])
	}
	w.begin(b, i, fe, ep)
}

// martianSource says whether a packet claims to come from where none can come
// from that an attached interface receives: the node itself, or a broadcast
// address (RFC 1812 section 5.3.7), a frontend, or a port from which Weir
// translates. Nothing is to be sent there: it would come back as a request, and
// servers that answer answers would never end.
func (w *worker) martianSource(b *batch, i int) bool {
	if b.in[i] == w.hostPort {
		return false
	}
	kind, local := w.routes.Kind(b.key[i].Src().Addr())
	if local || kind == route.NotUnicast {
		return true
	}
	back := b.key[i].Reverse()
	k := frontendKey(&back)
	return w.snapshot.Lookup(&k) != nil || w.plan.ownsDestination(&back)
}

// opens says whether a packet may begin a flow of its own: any datagram, of
// TCP a SYN and of SCTP an INIT.
func opens(p *header.Packet) bool {
	if p.Proto == header.ProtoSCTP {
		return p.Flags == header.ChunkInit
	}
	return p.Proto != header.ProtoTCP || p.Flags&(header.SYN|header.ACK|header.RST|header.FIN) == header.SYN
}

// frontendKey is the destination half of a tuple, as the tables look it up.
func frontendKey(k *conntrack.Key) table.Key {
	w2 := k.W[4] >> 16 & 0xffff // destination port
	w2 |= k.W[4] >> 32 << 16    // protocol and family
	if k.Family() == 4 {
		return table.Key{W0: k.W[0] >> 32, W2: w2}
	}
	return table.Key{W0: k.W[2], W1: k.W[3], W2: w2}
}
