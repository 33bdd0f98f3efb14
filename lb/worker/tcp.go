package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// trackTCP follows packet p of an entry's flow.
func (w *flows) trackTCP(p *pkt, c *conntrack.Conn, ref conntrack.Ref) verdict {
	if v := w.mayOpen(p, c, ref); v != pass {
		return v
	}
	l4 := header.TCP(p.data[p.L4:])
	off := l4.DataOffset()
	g := conntrack.Segment{
		Flags: p.Flags, Seq: l4.Seq(), Ack: l4.Ack(),
		Length: uint32(p.L4Len() - off), Options: l4[header.TCPLen:off],
	}
	switch w.conns.TrackTCP(ref, &g, w.tick) {
	case conntrack.Reopen:
		return w.supersede(ref)
	case conntrack.Restart:
		w.counts[counter.ReplacedFlows]++
		return w.mayReopen(p, ref)
	case conntrack.Stale:
		if !ref.Forward() {
			return drop(DropNoConntrackEntry)
		}
		return again // a SYN of this very batch has followed it
	case conntrack.Gone:
		return again
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
	if fe != nil && !w.node.Draining && fe.Pool.Lists(w.conns.EndpointAddr(ref)) {
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
	case conntrack.StateSynSent, conntrack.StateSynRecv:
		if !ref.Forward() {
			return pass
		}
	case conntrack.StateClose:
	case conntrack.StateUnreplied:
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

// checkTCPSum passes packet p if the TCP checksum is right. It looks at segments with SYN, FIN
// or RST only: damaged or carelessly forged segments change no connection, and the receiver
// checks the others. A partial checksum is right by definition, and a fragment has none.
func (w *admission) checkTCPSum(p *pkt) verdict {
	if p.Proto != header.ProtoTCP || p.Flags&(header.SYN|header.FIN|header.RST) == 0 || p.Partial || p.Frag != 0 {
		return pass
	}
	ip := p.data[p.L3:]
	var pseudo uint64
	if p.Family == 4 {
		pseudo = header.PseudoSum4(ip, p.Proto, p.L4Len())
	} else {
		pseudo = header.PseudoSum6(ip, p.Proto, p.L4Len())
	}
	if header.Fold(w.sum(p, pseudo, int(p.L4), int(p.L3)+int(p.Len))) == 0xffff {
		return pass
	}
	return drop(DropBadChecksum)
}

// tcpSamples are the segments that are to be noted in their connections. These are read
// by nothing else on the fast path: the segments of a group are noted after the next
// group, when the lines that they need have arrived, or before a packet takes the slow path.
type tcpSamples struct {
	n    int
	list [2 * groupSize]tcpSample
}

type tcpSample struct {
	ref           conntrack.Ref
	seq, end, ack uint32
}

// sample has packet p of an established flow noted, the first of its direction in the
// tick or at a conntrack.Milestone. Not inlined, to keep the path of the others short.
//
//go:noinline
func (w *flows) sample(p *pkt, r conntrack.Ref) {
	if p.Proto != header.ProtoTCP || p.Flags&header.ACK == 0 {
		return
	}
	if w.tcpSamples.n == len(w.tcpSamples.list) {
		w.noteSamples(w.tcpSamples.n)
	}
	l4 := header.TCP(w.frame(p)[p.L4:])
	seq := l4.Seq()
	w.tcpSamples.list[w.tcpSamples.n] = tcpSample{r, seq, seq + uint32(p.L4Len()-l4.DataOffset()), l4.Ack()}
	w.tcpSamples.n++
	w.conns.PrefetchConn(r)
}

// noteSamples notes the first n segments of sample.
func (w *flows) noteSamples(n int) {
	if n == 0 {
		return
	}
	t := &w.tcpSamples
	for _, s := range t.list[:n] {
		w.conns.Sample(s.ref, s.seq, s.end, s.ack)
	}
	t.n = copy(t.list[:], t.list[n:t.n])
}
