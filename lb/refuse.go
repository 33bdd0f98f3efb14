package lb

import (
	"encoding/binary"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// empty answers for a frontend that has no endpoint to offer.
func (w *worker) empty(b *batch, i int, pool *table.PoolEntry) {
	if pool.OnEmpty() == table.Drop {
		w.drop(b, i, DropNoLocalEndpoint)
		return
	}
	if b.pkt[i].Proto == header.ProtoTCP {
		w.reset(b, i, DropNoEndpoint)
		return
	}
	w.reply(b, i, header.PortUnreachable, 0, DropNoEndpoint)
}

// midstream deals with a TCP or SCTP packet to a frontend that neither belongs to a
// flow nor begins one. For some time after start it may be of a connection
// that kube-proxy began, and during a drain of one that was left to it: the kernel
// gets it. Otherwise it is refused.
func (w *worker) midstream(b *batch, i int) {
	if (w.tick < w.takeoverUntil || w.plan.draining) && w.hostPort >= 0 && b.in[i] != w.hostPort {
		w.giveBack(b, i, DropNoFlow)
		return
	}
	if b.pkt[i].Proto == header.ProtoSCTP {
		w.refuseSCTP(b, i, DropNoFlow)
		return
	}
	w.reset(b, i, DropNoFlow)
}

// stray deals with a packet that is neither of a flow nor to a frontend: one
// to an SNAT address and port of Weir is refused and never reaches a
// listener, any other is the kernel's. During a drain the kernel has connections of
// its own there: what kube-proxy masquerades may get such a port.
func (w *worker) stray(b *batch, i int) {
	p := &b.pkt[i]
	if w.plan.draining || !w.plan.ownsDestination(&b.key[i]) {
		w.giveBack(b, i, DropNotOurs)
		return
	}
	switch p.Proto {
	case header.ProtoTCP:
		w.reset(b, i, DropNoFlow)
	case header.ProtoSCTP:
		w.refuseSCTP(b, i, DropNoFlow)
	default:
		w.drop(b, i, DropNoFlow)
	}
}

// reset answers packet i with a RST, at the rate that is allowed, unless it is one
// itself (RFC 9293 section 3.10.7.1).
func (w *worker) reset(b *batch, i int, reason Drop) {
	if b.pkt[i].Flags&header.RST != 0 || !w.answerable(b, i) {
		w.drop(b, i, reason)
		return
	}
	if !w.resets.Take(w.source(b, i), w.tick) {
		w.drop(b, i, DropReplyLimit)
		return
	}
	w.t.drops[reason]++
	w.sampleDrop(b, i, reason)
	w.t.resets++
	w.answer(b, i, header.Reset(w.frame(b, i), &b.pkt[i]))
}

// reply answers packet i with an ICMP error, at the rate that is allowed.
func (w *worker) reply(b *batch, i int, e header.Error, mtu int, reason Drop) {
	if !w.answerable(b, i) || !w.errors.Take(w.source(b, i), w.tick) {
		w.drop(b, i, reason)
		return
	}
	w.t.drops[reason]++
	w.sampleDrop(b, i, reason)
	w.t.icmp++
	f := w.frame(b, i)
	w.answer(b, i, header.Unreachable(f[:cap(f)], len(f), &b.pkt[i], e, mtu))
}

// answerable says whether a packet may be answered with a refusal (RFC 1122
// section 3.2.2, RFC 1812 section 4.3.2.7, RFC 4443 section 2.4): not if it is
// ICMP itself or a later fragment, nor if it was sent to or by a group of
// stations. The answer goes to the MAC address that the packet came from.
func (w *worker) answerable(b *batch, i int) bool {
	p, f := &b.pkt[i], w.frame(b, i)
	if p.Proto == header.ProtoICMP || p.Proto == header.ProtoICMPv6 || (f[0]|f[6])&1 != 0 {
		return false
	}
	if p.Frag == 0 {
		return true
	}
	fragment := p.Fragment(f)
	return fragment.Offset == 0
}

// answer sends what packet i's first frame was turned into back by the way it
// came.
func (w *worker) answer(b *batch, i int, n int) {
	w.becomes(b, i, n)
	w.sendBack(b, i)
}

// sendBack sends what was made of packet i back by the port that it came by, and into
// its VLAN. A priority tag (VLAN 0, IEEE 802.1Q section 6.9.1) names no VLAN: the
// sender alone chose it, and the answer has none.
func (w *worker) sendBack(b *batch, i int) {
	if b.pkt[i].L3 == header.EthernetLen+header.TagLen && binary.BigEndian.Uint16(w.frame(b, i)[header.EthernetLen:])&0xfff == 0 {
		w.untag(b, i)
	}
	w.send(b, i, b.in[i])
}

// becomes leaves of packet i the first n bytes of its first frame, and frees its
// other frames.
func (w *worker) becomes(b *batch, i int, n int) {
	w.freeBuffers(b.buffers(i)[1:])
	b.bufs[i], b.size[i] = 1, uint32(n)
	d := b.head(i)
	d.Len, d.Options = uint32(n), 0
}

// tooBig deals with packet i, to be translated, which is larger than mtu: that of the
// link and the route. It reports false when the packet goes on: an IPv4 packet without
// DF that the link takes whole (a router beyond fragments it, or the host's kernel if
// that is behind it), or that depart can send in fragments.
func (w *worker) tooBig(b *batch, i int, adj *route.Adjacency, mtu uint32) bool {
	p, f := &b.pkt[i], w.frame(b, i)
	if p.Family == 4 && !header.IPv4(f[p.L3:]).DontFragment() {
		if uint32(p.Len) <= adj.MTU() || w.divisible(p, mtu) {
			return false
		}
		w.drop(b, i, DropTooBig)
		return true
	}
	w.reply(b, i, header.TooBig, int(mtu), DropTooBig)
	return true
}
