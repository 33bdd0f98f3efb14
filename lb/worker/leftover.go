package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

// resetLeftover resets the endpoint's half-open connection whose SNAT port the flow of entry
// ref has taken over. The endpoint then accepts packet p, the new flow's SYN. Otherwise it
// answers with a challenge ACK, and the client loses a second.
func (w *flows) resetLeftover(p *pkt, ref conntrack.Ref) {
	seq, ok := w.conntrack.Leftover(ref)
	if ok && p.Proto == header.ProtoTCP {
		w.resetReceiver(p, ref, seq, false)
	}
}

// resetReceiver sends a RST with number seq to the other side of the connection of ref, as if the
// sender of TCP packet p ended it. acknowledges is that of [header.ResetReceiver].
func (w *flows) resetReceiver(p *pkt, ref conntrack.Ref, seq uint32, acknowledges bool) {
	rst, ok := w.copyHeaders(p, header.TCPLen)
	if !ok {
		return
	}
	header.ResetReceiver(rst.data, &rst.Packet, seq, acknowledges)
	rst.Flags = header.RST
	if w.sendCopy(&rst, ref) {
		w.counts[counter.Resets]++
	}
}

// abortReceiver sends an ABORT to the other side of the association of ref, as if the sender of SCTP
// packet p ended it.
func (w *flows) abortReceiver(p *pkt, ref conntrack.Ref) {
	abort, ok := w.copyHeaders(p, header.AbortLen)
	if !ok {
		return
	}
	header.AbortReceiver(abort.data, &abort.Packet)
	abort.Flags = header.ChunkAbort
	if w.sendCopy(&abort, ref) {
		w.counts[counter.Aborts]++
	}
}

// copyHeaders returns a packet with the headers of whole packet p in a frame of its own, up to n
// bytes of the transport protocol. ok is false for a fragment, and when all frames are in use.
func (w *flows) copyHeaders(p *pkt, n int) (c pkt, ok bool) {
	if p.Frag != 0 || len(p.data) < int(p.L4)+n {
		return c, false
	}
	a, ok := w.free.pop()
	if !ok {
		return c, false
	}
	n += int(p.L4)
	c = *p
	c.n, c.size, c.data = 1, uint32(n), w.area[a+xsk.Headroom:][:n]
	copy(c.data, p.data)
	c.desc[0] = xsk.Desc{Addr: a + xsk.Headroom, Len: uint32(n)}
	c.Len, c.Partial, c.state = uint16(n-int(p.L3)), false, untracked
	return c, true
}

// sendCopy sends packet c of copyHeaders by entry ref. It reports whether c has left.
func (w *flows) sendCopy(c *pkt, ref conntrack.Ref) bool {
	switch w.forwardSlow(c, ref) {
	case sent:
		return true
	case queued:
	default:
		w.freeBuffers(c.desc[:1])
	}
	return false
}
