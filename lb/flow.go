package lb

import (
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
	w.depart(b, i, adj, dst, mtu)
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

// way is a connection's word for one direction: the stamp of the adjacency in bits
// 32..63, the route's MTU in 16..31 and the adjacency's number in 0..15.
func way(stamp uint32, path *route.Path, n uint32) uint64 {
	return uint64(stamp)<<32 | uint64(min(path.MTU, 0xffff))<<16 | uint64(n&0xffff)
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
	if adj := &w.adjacencies[word&0xffff]; uint32(word>>32) == adj.Stamp() {
		if mac, state := adj.Dst(); state == route.Valid {
			return adj, mac, min(adj.MTU(), uint32(word)>>16)
		}
	}
	path, ok := w.routes.Lookup(w.table.NewDst(ref).Addr(), uint32(b.hash[i]))
	if !ok {
		w.noRoute(b, i, path.Kind)
		return nil, 0, 0
	}
	if oneWay(e.Mode) && !w.reaches(&path, e.Mode, w.table.NewDst(ref)) {
		w.drop(b, i, DropNotOnLink)
		return nil, 0, 0
	}
	needed := ref.Forward() || path.NextHop != w.table.NewDst(ref).Addr()
	if ref.Forward() {
		path.NextHop = throughHostPort(&path, e.Mode)
	}
	adj, mac, word := w.hop(b, i, &path, needed)
	if adj == nil {
		return nil, 0, 0
	}
	if word != 0 {
		atomic.StoreUint64(adjWord, word)
	}
	return adj, mac, min(adj.MTU(), path.MTU)
}

// hop is the next hop of a path, with the MAC address to send to, and the word by which a
// connection may find it again, 0 for none; nil when it cannot be used now, the packet
// then having been dealt with. needed is true where an endpoint or a gateway is there.
// Only next hops that have answered get a word: another's number is soon given away.
func (w *worker) hop(b *batch, i int, path *route.Path, needed bool) (adj *route.Adjacency, mac, word uint64) {
	n, ok := w.router.Adjacency(path.Port, path.NextHop)
	if !ok {
		w.hold(b, i, path, needed, true)
		return nil, 0, 0
	}
	adj = &w.adjacencies[n]
	stamp := adj.Stamp()
	mac, state := adj.Dst()
	if !adj.Is(path.Port, path.NextHop) {
		state = route.Unresolved // it has become another's meanwhile
	}
	adj.Touch(w.tick)
	switch state {
	case route.Valid:
		if w.router.Load() == w.routes {
			word = way(stamp, path, n)
		}
		return adj, mac, word
	case route.Failed:
		w.reply(b, i, header.HostUnreachable, 0, DropNeighbour)
	default:
		w.hold(b, i, path, needed, state == route.Unresolved || needed && !adj.Needed())
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
	if !w.validSource(b, i, fe) || !w.admitted(b, i, fe) {
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
