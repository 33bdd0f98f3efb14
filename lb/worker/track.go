package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// track follows packet p of an entry's flow by its protocol.
func (w *flows) track(p *pkt, ref conntrack.Ref) verdict {
	c := w.conns.Conn(ref)
	switch p.Proto {
	case header.ProtoTCP:
		return w.trackTCP(p, c, ref)
	case header.ProtoSCTP:
		return w.trackSCTP(p, ref)
	}
	if c.State() == flowstate.None {
		return again
	}
	if v := w.mayOpen(p, c, ref); v != pass {
		return v
	}
	if !ref.Forward() && c.State() == flowstate.Unreplied {
		w.watch.attempts.Answered(atomic.LoadUint32(&c.EndpointID))
	}
	w.conns.TrackUDP(ref, w.tick)
	if e := w.conns.Entry(ref); e.Flags&conntrack.FlagWatched != 0 && !e.Mode.DSR() {
		w.learnCID(p, c, ref)
	}
	return pass
}

// trackTCP follows packet p of an entry's flow.
func (w *flows) trackTCP(p *pkt, c *conntrack.Conn, ref conntrack.Ref) verdict {
	if v := w.mayOpen(p, c, ref); v != pass {
		return v
	}
	l4 := header.TCP(p.data[p.L4:])
	off := l4.DataOffset()
	g := tcp.Segment{
		Flags: p.Flags, Seq: l4.Seq(), Ack: l4.Ack(),
		Length: uint32(p.L4Len() - off), Options: l4[header.TCPLen:off],
	}
	attempt := w.watch.before(c, w.tick)
	switch w.conns.TrackTCP(ref, &g, w.tick) {
	case flowstate.Reopen:
		return w.supersede(ref)
	case flowstate.Restart:
		w.counts[counter.ReplacedFlows]++
		return w.mayReopen(p, ref)
	case flowstate.Stale:
		if !ref.Forward() {
			return drop(DropNoConntrackEntry)
		}
		return again // a SYN of this very batch has followed it
	case flowstate.Gone:
		return again
	}
	if p.began {
		return pass
	}
	w.tracked(attempt, c, ref, g.Resent)
	if g.Resent {
		w.watch.countResent(c, p.Flags)
	}
	if !ref.Forward() && isSYNACK(p) {
		w.watch.noteSYNACK(c, ref, w.tick)
	}
	return pass
}

// supersede ends the entry's flow, so that another takes its place.
func (w *flows) supersede(ref conntrack.Ref) verdict {
	if !w.conntrack.Supersede(ref) {
		return drop(DropNoConntrackEntry) // another worker is at it; the client asks again
	}
	w.counts[counter.ReplacedFlows]++
	return again
}

// mayReopen decides whether packet p, a SYN, may open the entry's connection again. It is a
// new connection to the frontend: the client must be admitted, within the limits, and the
// endpoint must take new connections, else another is chosen. During a drain it
// is the kernel's. A connection that is refused leaves no entry: the SYN sent again
// would bypass it.
func (w *flows) mayReopen(p *pkt, ref conntrack.Ref) verdict {
	fe, v := w.frontendOf(ref), again
	if fe != nil && !w.node.Draining && fe.Pool.Lists(fe.Listed(w.conns.EndpointAddr(ref))) {
		v = w.admit(p, fe)
	}
	if v != pass {
		w.conntrack.Delete(ref)
	}
	return v
}

// frontendOf returns the frontend of an entry's flow, nil if there is none any more.
func (w *admission) frontendOf(ref conntrack.Ref) *table.FrontendEntry {
	if !ref.Forward() {
		ref = ref.Other()
	}
	k := table.DestinationKey(&w.conns.Entry(ref).Key.W)
	return w.snapshot.Lookup(&k)
}

// mayOpen passes packet p unless it completes a connection that may not be completed: the last
// segment of a TCP handshake, the first answer to a datagram, a segment after a RST that
// ended nothing. The limit of open connections holds here too: incomplete connections do
// not count, and more may begin than go on. A packet beyond the limit is dropped, and sent
// again, until there is room.
func (w *admission) mayOpen(p *pkt, c *conntrack.Conn, ref conntrack.Ref) verdict {
	switch c.State() {
	case flowstate.SynSent, flowstate.SynRecv:
		if !ref.Forward() {
			return pass
		}
	case flowstate.Close:
	case flowstate.Unreplied:
		if ref.Forward() {
			return pass
		}
	default:
		return pass
	}
	if p.Flags&(header.SYN|header.RST) != 0 {
		return pass
	}
	return w.roomToOpen(ref)
}

// roomToOpen passes a packet by which the entry's flow becomes an open connection, if there
// is room for another.
func (w *admission) roomToOpen(ref conntrack.Ref) verdict {
	fe := w.frontendOf(ref)
	if fe == nil || fe.Policy == nil || w.roomFor(fe.Policy, fe.ServiceID) {
		return pass
	}
	return drop(DropConnectionLimit)
}
