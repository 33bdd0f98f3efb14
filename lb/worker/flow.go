package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// flow deals with packet p, for which the flow entry was found.
func (w *Worker) flow(p *pkt, ref conntrack.Ref) {
	if !w.verified(p) {
		return
	}
	if w.anyGone && w.orphaned(p, ref) {
		return
	}
	w.carry(p, ref)
}

// carry sends packet p on by the flow entry that it belongs to.
func (w *Worker) carry(p *pkt, ref conntrack.Ref) {
	c := w.conns.Conn(ref)
	if p.TTL <= 1 {
		w.reply(p, header.TimeExceeded, 0, DropTTL)
		return
	}
	var out egress
	if !w.egressOf(p, ref, &out) {
		return
	}
	e := w.conns.Entry(ref)
	if p.Proto == header.ProtoTCP {
		if !w.trackTCP(p, c, ref) {
			return
		}
	} else if p.Proto == header.ProtoSCTP {
		if !w.trackSCTP(p, ref) {
			return
		}
	} else {
		if c.State() == conntrack.StateNone {
			w.lookAgain(p)
			return
		}
		if !w.mayOpen(p, c, ref) {
			return
		}
		w.conns.TrackUDP(ref, w.tick)
		if e.Flags&conntrack.FlagWatched != 0 && !oneWay(e.Mode) {
			w.learnServer(p, c, ref)
		}
	}
	if p.Frag != 0 && !w.fragmentGoes(p, e) {
		return
	}
	if !out.oneWay {
		w.translate(p, e)
	}
	w.output(p, &out)
}

// lookAgains bounds how often a packet is looked up again: who ends a flow may
// be kept from running between its two steps, and workers do not wait.
const lookAgains = 8

// lookAgain deals with a packet whose flow went away after it was looked up:
// ended by another worker, by ageing, or by a packet of this very batch.
func (w *Worker) lookAgain(p *pkt) {
	if p.lookups++; p.lookups > lookAgains {
		w.drop(p, DropNoFlow)
		return
	}
	if ref := w.conntrack.Lookup(p.hash, &p.key); ref != 0 {
		w.carry(p, ref)
		return
	}
	w.miss(p)
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
func (w *Worker) adjacency(p *pkt, c *conntrack.Conn, e *conntrack.Entry, ref conntrack.Ref) (*route.Adjacency, uint64, uint32) {
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
	path, ok := w.routes.Lookup(w.conns.NewDst(ref).Addr(), uint32(p.hash))
	if !ok {
		w.noRoute(p, path.Kind)
		return nil, 0, 0
	}
	if oneWay(e.Mode) && !w.reaches(&path, e.Mode, w.conns.NewDst(ref)) {
		w.drop(p, DropNotOnLink)
		return nil, 0, 0
	}
	needed := ref.Forward() || path.NextHop != w.conns.NewDst(ref).Addr()
	if ref.Forward() {
		path.NextHop = throughHostPort(&path, e.Mode)
	}
	adj, mac, word := w.hop(p, &path, needed)
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
func (w *Worker) hop(p *pkt, path *route.Path, needed bool) (adj *route.Adjacency, mac, word uint64) {
	n, ok := w.router.Adjacency(path.Port, path.NextHop)
	if !ok {
		w.hold(p, path, needed, true)
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
		w.reply(p, header.HostUnreachable, 0, DropNeighbor)
	default:
		w.hold(p, path, needed, state == route.Unresolved || needed && !adj.Needed())
	}
	return nil, 0, 0
}

// noRoute deals with a packet whose destination cannot be reached.
func (w *Worker) noRoute(p *pkt, why route.Kind) {
	if why == route.Blackhole {
		w.drop(p, DropNoRoute)
		return
	}
	w.reply(p, header.HostUnreachable, 0, DropNoRoute)
}

// miss deals with a packet that belongs to no flow.
func (w *Worker) miss(p *pkt) {
	k := table.DestinationKey(&p.key.W)
	fe := w.snapshot.Lookup(&k)
	if fe == nil || fe.Kind == table.ClusterIP && p.in == w.hostPort {
		w.stray(p)
		return
	}
	if !w.validSource(p, fe) || !w.admitted(p, fe) {
		return
	}
	if !oneWay(fe.Mode) && !opens(&p.Packet) {
		w.midstream(p)
		return
	}
	if !w.verified(p) {
		return
	}
	if p.Proto == header.ProtoSCTP && !w.singleHomed(p) {
		return
	}
	ep := w.serverAsked(p, fe)
	if ep == nil && w.node.Draining {
		w.decline(p)
		return
	}
	if ep == nil && fe.Pool.Len() == 0 {
		w.empty(p, fe.Pool)
		return
	}
	if !w.withinLimits(p, fe) {
		return
	}
	switch {
	case ep != nil:
	case oneWay(fe.Mode) && !opens(&p.Packet):
		// The middle of a connection: what made it chose by the tuple, or the choice
		// is lost.
		ep = w.byTuple(fe, &p.key)
	default:
		ep = w.choose(fe, &p.key)
	}
	w.begin(p, fe, ep)
}

// opens says whether a packet may begin a flow of its own: any datagram, of
// TCP a SYN and of SCTP an INIT.
func opens(p *header.Packet) bool {
	if p.Proto == header.ProtoSCTP {
		return p.Flags == header.ChunkInit
	}
	return p.Proto != header.ProtoTCP || p.Flags&(header.SYN|header.ACK|header.RST|header.FIN) == header.SYN
}
