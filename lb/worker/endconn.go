package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

// endings end connections before their sides do, and tell the sides.
type endings struct{ via *fastPath }

// endConn ends the TCP connection or SCTP association of packet p on both sides. The sender is
// refused, and the other side gets a RST or ABORT as if the sender ended the connection: that side
// may be waiting for data, and would never send. A RST or ABORT of the sender's own goes on.
//
// The flow stays aborted for the timeout of CLOSE. A side that did not take the RST answers with a
// challenge ACK (RFC 5961 section 3.2), or sends again, and gets a RST of the number that it expects.
func (w *endings) endConn(p *pkt, ref conntrack.Ref, reason Drop) verdict {
	if endsConn(p) {
		return pass
	}
	w.via.conns.Abort(ref, w.via.tick)
	if !w.via.dryRun && !w.tellOther(p, ref) {
		return drop(DropReplyLimit) // the sender sends again
	}
	return reject(reason)
}

// endsConn reports whether packet p ends its connection.
func endsConn(p *pkt) bool {
	switch p.Proto {
	case header.ProtoTCP:
		return p.Flags&header.RST != 0
	case header.ProtoSCTP:
		c := p.Chunks(p.data)
		return c.Has(header.ChunkAbort) || c.Has(header.ChunkShutdownComplete)
	}
	return false
}

// tellOther tells the side that packet p is for that the connection is over. It reports false when
// the limit of such packets leaves no room.
func (w *endings) tellOther(p *pkt, ref conntrack.Ref) bool {
	if w.via.resets.Empty() || !w.via.resets.Take(w.via.sourceOf(p.data[p.L3:], p.Family), w.via.tick) {
		return false
	}
	if p.Proto == header.ProtoSCTP {
		w.abortReceiver(p, ref)
		return true
	}
	// The receiver expects the number of the packet, unless it has the packet already: then the
	// number after it, or after a later packet that has passed. A RST with another number that is
	// in the window is answered by a challenge ACK, below the window by nothing.
	l4 := header.TCP(p.data[p.L4:])
	first := l4.Seq()
	last := first + uint32(p.L4Len()-l4.DataOffset())
	if p.Flags&(header.SYN|header.FIN) != 0 {
		last++
	}
	if next, known := w.via.conns.Conn(ref).Next(ref.Forward()); known && int32(next-last) > 0 {
		last = next
	}
	w.resetReceiver(p, ref, first, true)
	if last != first {
		w.resetReceiver(p, ref, last, true)
	}
	return true
}

// resetReceiver sends a RST with number seq to the other side of the connection of ref, as if the
// sender of TCP packet p ended it. acknowledges is that of [header.ResetReceiver].
func (w *endings) resetReceiver(p *pkt, ref conntrack.Ref, seq uint32, acknowledges bool) {
	rst, ok := w.copyHeaders(p, header.TCPLen)
	if !ok {
		return
	}
	header.ResetReceiver(rst.data, &rst.Packet, seq, acknowledges)
	rst.Flags = header.RST
	if w.sendCopy(&rst, ref) {
		w.via.counts[counter.Resets]++
	}
}

// abortReceiver sends an ABORT to the other side of the association of ref, as if the sender of SCTP
// packet p ended it.
func (w *endings) abortReceiver(p *pkt, ref conntrack.Ref) {
	abort, ok := w.copyHeaders(p, header.AbortLen)
	if !ok {
		return
	}
	header.AbortReceiver(abort.data, &abort.Packet)
	abort.Flags = header.ChunkAbort
	if w.sendCopy(&abort, ref) {
		w.via.counts[counter.Aborts]++
	}
}

// copyHeaders returns a packet with the headers of whole packet p in a frame of its own, up to n
// bytes of the transport protocol. ok is false for a fragment, when the TTL expires, and when all
// frames are in use.
func (w *endings) copyHeaders(p *pkt, n int) (c pkt, ok bool) {
	if p.Frag != 0 || p.TTL <= 1 || len(p.data) < int(p.L4)+n {
		return c, false
	}
	a, ok := w.via.free.pop()
	if !ok {
		return c, false
	}
	n += int(p.L4)
	c = *p
	c.n, c.size, c.data = 1, uint32(n), w.via.area[a+xsk.Headroom:][:n]
	copy(c.data, p.data)
	c.desc[0] = xsk.Desc{Addr: a + xsk.Headroom, Len: uint32(n)}
	c.Len, c.Partial, c.state = uint16(n-int(p.L3)), false, untracked
	return c, true
}

// sendCopy sends packet c of copyHeaders by entry ref. It reports whether c has left.
func (w *endings) sendCopy(c *pkt, ref conntrack.Ref) bool {
	var out egress
	v := w.via.egressOf(c, ref, &out)
	if v == pass {
		w.via.conns.Conn(ref).Touch(w.via.tick)
		if !out.dsr {
			w.via.translate(c, w.via.conns.Entry(ref))
		}
		v = w.via.output(c, &out)
	}
	switch v {
	case sent:
		return true
	case queued:
	default:
		w.via.freeBuffers(c.desc[:1])
	}
	return false
}

// onAborted handles packet p of a connection that was ended before its sides know, by
// [conntrack.Table.Abort].
func (w *endings) onAborted(p *pkt, ref conntrack.Ref) verdict {
	if ref.Forward() && opens(&p.Packet) {
		w.via.conntrack.Delete(ref) // the client begins anew
		return again
	}
	return w.endConn(p, ref, DropNoConntrackEntry)
}
