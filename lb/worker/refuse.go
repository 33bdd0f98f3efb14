package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// empty answers for a frontend that has no endpoint to offer.
func (w *Worker) empty(p *pkt, pool *table.PoolEntry) {
	if pool.OnEmpty() == table.Drop {
		w.drop(p, DropNoLocalEndpoint)
		return
	}
	if p.Proto == header.ProtoTCP {
		w.reset(p, DropNoEndpoint)
		return
	}
	w.reply(p, header.PortUnreachable, 0, DropNoEndpoint)
}

// midstream deals with a TCP or SCTP packet to a frontend that neither belongs to a
// flow nor begins one. For some time after start it may be of a connection
// that kube-proxy began, and during a drain of one that was left to it: the kernel
// gets it. Otherwise it is refused.
func (w *Worker) midstream(p *pkt) {
	if (w.tick < w.takeoverUntil || w.node.Draining) && w.hostPort >= 0 && p.in != w.hostPort {
		w.giveBack(p, DropNoFlow)
		return
	}
	if p.Proto == header.ProtoSCTP {
		w.refuseSCTP(p, DropNoFlow)
		return
	}
	w.reset(p, DropNoFlow)
}

// stray deals with a packet that is neither of a flow nor to a frontend: one
// to an SNAT address and port of Weir is refused and never reaches a
// listener, any other is the kernel's. During a drain the kernel has connections of
// its own there: what kube-proxy masquerades may get such a port.
func (w *Worker) stray(p *pkt) {
	if w.node.Draining || !w.node.OwnsTuple(&p.key) {
		w.giveBack(p, DropNotOurs)
		return
	}
	switch p.Proto {
	case header.ProtoTCP:
		w.reset(p, DropNoFlow)
	case header.ProtoSCTP:
		w.refuseSCTP(p, DropNoFlow)
	default:
		w.drop(p, DropNoFlow)
	}
}

// reset answers packet p with a RST, at the rate that is allowed, unless it is one
// itself (RFC 9293 section 3.10.7.1).
func (w *Worker) reset(p *pkt, reason Drop) {
	if p.Flags&header.RST != 0 || !w.answerable(p) {
		w.drop(p, reason)
		return
	}
	if !w.resets.Take(w.source(p), w.tick) {
		w.drop(p, DropReplyLimit)
		return
	}
	w.t.drops[reason]++
	w.sampleDrop(p, reason)
	w.t.resets++
	w.answer(p, header.Reset(w.frame(p), &p.Packet))
}

// reply answers packet p with an ICMP error, at the rate that is allowed.
func (w *Worker) reply(p *pkt, e header.Error, mtu int, reason Drop) {
	if !w.answerable(p) || !w.errors.Take(w.source(p), w.tick) {
		w.drop(p, reason)
		return
	}
	w.t.drops[reason]++
	w.sampleDrop(p, reason)
	w.t.icmp++
	f := w.frame(p)
	w.answer(p, header.Unreachable(f[:cap(f)], len(f), &p.Packet, e, mtu))
}

// answerable says whether a packet may be answered with a refusal (RFC 1122
// section 3.2.2, RFC 1812 section 4.3.2.7, RFC 4443 section 2.4): not if it is
// ICMP itself or a later fragment, nor if it was sent to or by a group of
// stations. The answer goes to the MAC address that the packet came from.
func (w *Worker) answerable(p *pkt) bool {
	f := w.frame(p)
	if p.Proto == header.ProtoICMP || p.Proto == header.ProtoICMPv6 || (f[0]|f[6])&1 != 0 {
		return false
	}
	if p.Frag == 0 {
		return true
	}
	fragment := p.Fragment(f)
	return fragment.Offset == 0
}

// answer sends what packet p's first frame was turned into back by the way it
// came.
func (w *Worker) answer(p *pkt, n int) {
	w.becomes(p, n)
	w.sendBack(p)
}

// sendBack sends what was made of packet p back by the port that it came by, and into
// its VLAN. A priority tag (VLAN 0, IEEE 802.1Q section 6.9.1) names no VLAN: the
// sender alone chose it, and the answer has none.
func (w *Worker) sendBack(p *pkt) {
	if p.L3 == header.EthernetLen+header.TagLen && binary.BigEndian.Uint16(w.frame(p)[header.EthernetLen:])&0xfff == 0 {
		w.untag(p)
	}
	w.send(p, p.in)
}

// becomes leaves of packet p the first n bytes of its first frame, and frees its
// other frames.
func (w *Worker) becomes(p *pkt, n int) {
	w.freeBuffers(p.bufs()[1:])
	p.n, p.size = 1, uint32(n)
	d := p.head()
	d.Len, d.Options = uint32(n), 0
}
