package conntrack

import (
	"encoding/binary"
	"sync/atomic"
)

// TCP header flags (RFC 9293, section 3.1).
const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagPSH = 0x08
	flagACK = 0x10
)

// Verdict says what the caller should do with a packet that it tracked.
type Verdict uint8

// Verdicts.
const (
	Pass Verdict = iota
	// Reopen: the client begins a new connection with the tuple of one that is
	// over. The caller calls [Worker.Supersede] and creates a new one.
	Reopen
	// Gone: the connection was deleted after it was looked up, by another worker or
	// by a packet of the same batch. The caller looks again.
	Gone
	// Stale: the endpoint speaks of a connection that the client has followed by
	// another with the same tuple. The packet is to be dropped.
	Stale
)

// TrackTCP follows one TCP packet of the entry r. tcpFlags is byte 13 of the TCP
// header, seq and ack its sequence and acknowledgment numbers in host order,
// payloadLen the bytes after the header, options the bytes between the fixed header and the payload (read only
// while the connection closes, for the timestamp of RFC 7323).
//
// An ACK of an established connection costs two loads.
func (t *Table) TrackTCP(r Ref, tcpFlags uint8, seq, ack, payloadLen uint32, options []byte, tick uint32) Verdict {
	c := t.Conn(r)
	s := atomic.LoadUint32(&c.state)
	if s&(stateMask|finBits) == uint32(StateEstablished) && tcpFlags&(flagFIN|flagSYN|flagRST) == 0 {
		c.Touch(tick)
		return Pass
	}
	return t.track(c, s, segment{forward: r.Forward(), flags: tcpFlags, seq: seq, ack: ack, length: payloadLen, options: options}, tick)
}

type segment struct {
	forward bool // from the client
	flags   uint8
	seq     uint32
	ack     uint32
	length  uint32
	options []byte
}

func (g *segment) has(flag uint8) bool { return g.flags&flag != 0 }

// track is TrackTCP but for established connections that go on.
func (t *Table) track(c *Conn, s uint32, g segment, tick uint32) Verdict {
	for {
		if s&superseded != 0 {
			return Stale
		}
		if s&stateMask == 0 {
			return Gone
		}
		if g.forward && g.flags&(flagSYN|flagACK|flagRST) == flagSYN && synBeginsAnew(s) {
			return Reopen
		}
		n := next(s, &g, atomic.LoadUint32(&c.nextSeq))
		n = c.noteClient(n, &g)
		if t.setState(c, s, n) {
			c.Touch(tick)
			return Pass
		}
		s = atomic.LoadUint32(&c.state)
	}
}

// next returns the state word after segment g. mark is Conn.nextSeq.
func next(s uint32, g *segment, mark uint32) uint32 {
	switch {
	case g.has(flagRST):
		return reset(s, g)
	case s&stateMask == uint32(StateClose):
		return revive(s, g, mark)
	case g.has(flagSYN):
		return handshake(s, g)
	}
	return proceed(s, g, mark)
}

// reset moves to CLOSE on a RST. Its sequence number is not checked against a
// window, so the connection is kept for the short timeout of that state, and
// revive takes it back if the RST's sender goes on.
func reset(s uint32, g *segment) uint32 {
	if s&resetBits != 0 {
		return s
	}
	by := uint32(resetByServer)
	if g.forward {
		by = resetByClient
	}
	return s&^clearedByReset | uint32(StateClose) | by
}

// revive undoes CLOSE when the side whose RST was seen sends data or an ACK from
// beyond that RST: a real RST is the last thing that a connection sends, so that
// one was forged (RFC 5961) and the receiver has most likely ignored it.
func revive(s uint32, g *segment, mark uint32) uint32 {
	by := uint32(resetByServer)
	if g.forward {
		by = resetByClient
	}
	if s&by == 0 || g.has(flagSYN) || !g.has(flagACK) || int32(g.seq+g.length-mark) <= 0 {
		return s
	}
	return proceed(s&^clearedByReset|uint32(StateEstablished), g, mark)
}

// handshake handles SYN and SYN-ACK. A SYN of an open connection changes nothing:
// the endpoint answers it with a challenge ACK (RFC 5961, section 4).
func handshake(s uint32, g *segment) uint32 {
	if !g.forward && g.has(flagACK) && s&stateMask == uint32(StateSynSent) {
		return s&^stateMask | uint32(StateSynRecv)
	}
	return s
}

// proceed handles segments without SYN and RST. mark is the sequence number
// after the client's FIN once that was seen: the endpoint acknowledges the FIN
// only with that number. Of the endpoint's FIN no number is kept; any later ACK
// of the client's counts, as in nf_conntrack.
func proceed(s uint32, g *segment, mark uint32) uint32 {
	switch State(s & stateMask) {
	case StateSynSent:
		// The client's ACK counts only where the endpoint's SYN-ACK does not pass.
		if s&clientOnly == 0 || !g.forward || !g.has(flagACK) {
			return s
		}
		s = s&^stateMask | uint32(StateEstablished)
	case StateSynRecv:
		if !g.forward || !g.has(flagACK) {
			return s
		}
		s = s&^stateMask | uint32(StateEstablished)
	}
	own, other, otherAcked := uint32(finEndpoint), uint32(finClient), uint32(ackedClient)
	if g.forward {
		own, other, otherAcked = finClient, finEndpoint, ackedEndpoint
	}
	if g.has(flagACK) && s&other != 0 && (g.forward || s&seqKnown == 0 || int32(g.ack-mark) >= 0) {
		s |= otherAcked
	}
	if g.has(flagFIN) {
		// Sent before the client's FIN had come: the endpoint closed first, or at
		// the same time (CLOSING). Either way it will hold TIME_WAIT.
		if !g.forward && s&finEndpoint == 0 && s&ackedClient == 0 {
			s |= endpointFirst
		}
		s |= own
	}
	return s&^stateMask | uint32(closing(s))
}

// closing returns the state that follows from the FINs seen and acknowledged.
func closing(s uint32) State {
	const bothAcked = ackedClient | ackedEndpoint
	switch fins := s & finBits; {
	case fins == 0:
		return State(s & stateMask)
	case fins == finBits && s&bothAcked == bothAcked:
		return StateTimeWait
	case fins == finBits:
		return StateLastAck
	case s&bothAcked != 0:
		return StateCloseWait
	}
	return StateFinWait
}

// noteClient keeps what the endpoint's TIME_WAIT will know of the client, and
// where a RST stood. It returns the state word with the bits that say so.
func (c *Conn) noteClient(s uint32, g *segment) uint32 {
	if s&resetBits != 0 {
		if g.has(flagRST) {
			atomic.StoreUint32(&c.nextSeq, g.seq)
		}
		return s
	}
	if !g.forward || s&finBits == 0 || g.has(flagSYN) {
		return s
	}
	end := g.seq + g.length
	if g.has(flagFIN) {
		end++
	}
	if s&seqKnown == 0 || int32(end-atomic.LoadUint32(&c.nextSeq)) > 0 {
		atomic.StoreUint32(&c.nextSeq, end)
	}
	if ts, ok := timestamp(g.options); ok {
		if s&tsKnown == 0 || int32(ts-atomic.LoadUint32(&c.tsval)) > 0 {
			atomic.StoreUint32(&c.tsval, ts)
		}
		s |= tsKnown
	}
	return s | seqKnown
}

// timestamp returns TSval of a TCP timestamps option (RFC 7323, section 3.2).
func timestamp(options []byte) (uint32, bool) {
	for len(options) > 0 {
		switch options[0] {
		case 0: // end of list
			return 0, false
		case 1: // no operation
			options = options[1:]
			continue
		}
		if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
			return 0, false
		}
		if options[0] == 8 && options[1] == 10 {
			return binary.BigEndian.Uint32(options[2:]), true
		}
		options = options[options[1]:]
	}
	return 0, false
}

// Timestamp returns the TSval of a SYN's options, for [NewFlow].
func Timestamp(options []byte) (tsval uint32, ok bool) { return timestamp(options) }

// acceptsSYN reports whether the endpoint of a connection that is over would take
// a SYN from the same address and port. If the endpoint closed first it holds
// TIME_WAIT, and takes what Linux's tcp_timewait_state_process does: a sequence
// number after the last one, or a newer timestamp, and never an older timestamp
// (PAWS). Otherwise it holds nothing.
func (c *Conn) acceptsSYN(s uint32, seq, tsval uint32, hasTS bool) bool {
	switch State(s & stateMask) {
	case StateClose:
		return true
	case StateTimeWait:
	default:
		return false
	}
	if s&endpointFirst == 0 {
		return true
	}
	newer := false
	if hasTS && s&tsKnown != 0 {
		age := int32(tsval - atomic.LoadUint32(&c.tsval))
		if age < 0 {
			return false
		}
		newer = age > 0
	}
	return newer || s&seqKnown != 0 && int32(seq-atomic.LoadUint32(&c.nextSeq)) > 0
}
