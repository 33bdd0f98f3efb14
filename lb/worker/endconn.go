package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// endConn ends the TCP connection or SCTP association of packet p on both sides. The sender is
// refused, and the other side gets a RST or ABORT as if the sender ended the connection: that side
// may be waiting for data, and would never send. A RST or ABORT of the sender's own goes on.
//
// The flow stays aborted for the timeout of CLOSE. A side that did not take the RST answers with a
// challenge ACK (RFC 5961 section 3.2), or sends again, and gets a RST of the number that it expects.
func (w *flows) endConn(p *pkt, ref conntrack.Ref, reason Drop) verdict {
	if endsConn(p) {
		return pass
	}
	w.conns.Abort(ref, w.tick)
	if !w.dryRun && !w.tellOther(p, ref) {
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
func (w *flows) tellOther(p *pkt, ref conntrack.Ref) bool {
	if w.resets.Empty() || !w.resets.Take(w.sourceOf(p.data[p.L3:], p.Family), w.tick) {
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
	if next, known := w.conns.Conn(ref).Next(ref.Forward()); known && int32(next-last) > 0 {
		last = next
	}
	w.resetReceiver(p, ref, first, true)
	if last != first {
		w.resetReceiver(p, ref, last, true)
	}
	return true
}

// onAborted handles packet p of a connection that was ended before its sides know, by
// [conntrack.Table.Abort].
func (w *flows) onAborted(p *pkt, ref conntrack.Ref) verdict {
	if ref.Forward() && opens(&p.Packet) {
		w.conntrack.Delete(ref) // the client begins anew
		return again
	}
	return w.endConn(p, ref, DropNoConntrackEntry)
}
