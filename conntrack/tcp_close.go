package conntrack

import "sync/atomic"

// reset moves to CLOSE on a RST that the receiver accepts: in an established connection it
// has exactly the number that the receiver expects (RFC 5961, section 3.2). Any other
// changes nothing, as in nf_conntrack, but for the timeout of the doubted: the samples
// may be behind, and a true RST then looks slightly wrong.
func (k *tracker) reset(g *Segment) {
	switch k.state() {
	case StateTimeWait: // RFC 1337
	case StateSynSent:
		if k.refuses(g) {
			k.close(clientKnown | synAckNoted)
		} else if k.is(endpointKnown) && k.exact(g) {
			k.close(clientKnown | endpointKnown | synNoted | synAckNoted)
		}
	case StateSynRecv:
		if k.refuses(g) || !g.forward && g.Seq == k.n.endpoint {
			k.close(clientKnown | synAckNoted)
		}
	default:
		switch {
		case k.exact(g):
			k.close(clientKnown | endpointKnown | finBits | ackedClient | ackedEndpoint | endpointFirst |
				synNoted | synAckNoted)
		case k.plausible(g):
			k.doubt()
		}
	}
}

// refuses reports whether the RST ends a handshake: the endpoint's if it acknowledges a SYN
// (RFC 9293, section 3.10.7.3), the client's if it follows a SYN.
func (k *tracker) refuses(g *Segment) bool {
	number := g.Seq
	if !g.forward {
		if number = g.Ack; !g.has(flagACK) {
			return false
		}
	}
	if k.reopened() {
		return !g.forward && k.is(synNoted) && acks(number, k.n.extra)
	}
	if g.forward || k.state() == StateSynRecv {
		return number == k.n.client // the SYN-ACK has told it
	}
	return acks(number, k.n.client) // the refusal of another SYN, perhaps forged, does not count
}

// close moves to CLOSE. keep are the bits that may still be needed: without both numbers
// the connection cannot be revived.
func (k *tracker) close(keep uint32) {
	k.heard = k.heard || k.state() != StateClose
	k.s = k.s&(lasting|keep) | uint32(StateClose)
	k.since()
}

// exact reports whether a RST has the number that the receiver expects. After a FIN of the
// sender that is the FIN's number until the receiver has it.
func (k *tracker) exact(g *Segment) bool {
	own, other, known, fin := k.sides(g)
	return known && (g.Seq == own || fin && g.Seq == own-1) && (!g.has(flagACK) || span(g.Ack-other) < plausibly)
}

// revives reports whether segment g shows that a connection lives which a RST seemed to
// have ended, and takes it back: a host that has accepted a RST falls silent. In the state
// SYN_SENT, after a SYN in its place, the next segment of either side shows it.
func (k *tracker) revives(g *Segment) bool {
	if !k.is(endpointKnown) || !k.is(clientKnown) || !k.near(g) {
		return false
	}
	if k.state() == StateClose && !k.settled(g) {
		k.learn(g) // a RST that answers it has that number
		return false
	}
	// In doubt, with the SYN or SYN-ACK noted: it may have overtaken the segment. Of a
	// segment of the client the endpoint may be gone for good.
	k.become(StateEstablished)
	k.doubt()
	return true
}

// fins follows segment g, which is of this connection, through the close.
func (k *tracker) fins(g *Segment) {
	own, ownAcked := uint32(finEndpoint), uint32(ackedEndpoint)
	other, otherAcked := uint32(finClient), uint32(ackedClient)
	if g.forward {
		own, ownAcked, other, otherAcked = other, otherAcked, own, ownAcked
	}
	if k.is(own) {
		k.goesOn(g, ownAcked)
	}
	if k.is(other) && !k.is(otherAcked) {
		k.acknowledges(g, other, otherAcked)
	}
	k.learn(g)
	if g.has(flagFIN) {
		k.fin(g, own)
	}
	k.timestamp(g)
	k.become(closing(k.s))
}

// fin notes the FIN of the side whose bit is own.
func (k *tracker) fin(g *Segment, own uint32) {
	// Sent before the client's FIN had come: the endpoint closed first, or at
	// the same time (CLOSING). Either way it will hold TIME_WAIT.
	if own == finEndpoint && !k.is(finEndpoint) && !k.is(ackedClient) {
		k.s |= endpointFirst
	}
	k.s |= own
	k.since()
	*k.n.of(g.forward) = g.end()
}

// goesOn withdraws the FIN of segment g's sender if g shows that the FIN was forged: data
// beyond the FIN, or an ACK with another number than the next. Data before the FIN,
// after a second, is data sent again or that of a living connection.
func (k *tracker) goesOn(g *Segment, acked uint32) {
	end, own := g.end(), *k.n.of(g.forward)
	age := uint8(k.tick) - uint8(k.s>>sinceShift)
	switch {
	case end == own && (g.has(flagFIN) || g.Length == 0):
	case end == own-1 && !g.has(flagFIN): // data before the FIN, or a keepalive
	case g.has(flagFIN), int32(end-own) >= 0:
		k.withdraw(g.forward, end)
	case g.Length == 0 && age > endpointSettles:
		k.withdraw(g.forward, end)
	case age > TicksPerSecond && !k.is(acked):
		k.s |= doubted
	}
}

// repeatsFIN reports whether segment g is the sender's FIN sent again. It ends the doubt
// about a FIN that the receiver seemed to ignore: a forged FIN would be answered again.
func (k *tracker) repeatsFIN(g *Segment) bool {
	own, _, _, fin := k.sides(g)
	return fin && g.has(flagFIN) && g.end() == own
}

// acknowledges notes the acknowledgment of the other side's FIN. Only that of the FIN's own
// number counts. An acknowledgment beyond it shows that the FIN was forged. A lower number
// leaves doubt, for as long as it takes: data before the FIN may be lost or in flight.
func (k *tracker) acknowledges(g *Segment, fin, acked uint32) {
	age := uint8(k.tick) - uint8(k.s>>sinceShift)
	switch number := *k.n.of(!g.forward); {
	case span(g.Seq-*k.n.of(g.forward)) >= plausibly: // whose FIN is forged too
	case g.Ack == number:
		k.s = k.s&^doubted | acked
	case age > TicksPerSecond && int32(g.Ack-number) > 0:
		k.withdraw(!g.forward, g.Ack)
	default:
		k.s |= doubted
	}
}

// withdraw forgets the FIN of a side, whose next sequence number is next.
func (k *tracker) withdraw(client bool, next uint32) {
	bits := uint32(finEndpoint | ackedEndpoint | endpointFirst)
	if client {
		bits = finClient | ackedClient
	}
	k.s &^= bits
	if k.s&finBits == 0 {
		k.s &^= doubted
	}
	*k.n.of(client) = next
}

// closing returns the state that follows from the FINs seen and acknowledged.
func closing(s uint32) State {
	const bothAcked = ackedClient | ackedEndpoint
	switch fins := s & finBits; {
	case fins == 0:
		return StateEstablished
	case fins == finBits && s&bothAcked == bothAcked:
		return StateTimeWait
	case fins == finBits:
		return StateLastAck
	case s&bothAcked != 0:
		return StateCloseWait
	}
	return StateFinWait
}

// Abort moves the TCP connection or SCTP association of r to CLOSE before either side knows: the
// caller tells both at the next packet of either, for which [Conn.Aborted] asks.
func (t *Table) Abort(r Ref, tick uint32) {
	c := t.Conn(r)
	for {
		s := atomic.LoadUint32(&c.state)
		if s&published == 0 || s&superseded != 0 {
			return
		}
		k := tracker{s: s, tick: tick}
		k.close(clientKnown | endpointKnown)
		if t.setState(c, s, k.s|aborted) {
			c.Touch(tick)
			return
		}
	}
}

// Aborted reports whether [Table.Abort] has ended the connection.
func (c *Conn) Aborted() bool {
	return atomic.LoadUint32(&c.state)&(stateMask|aborted) == uint32(StateClose)|aborted
}

// Next is the TCP sequence number after the last that the client, or the endpoint, is known to have
// sent. known is false where none is noted.
func (c *Conn) Next(client bool) (seq uint32, known bool) {
	s := atomic.LoadUint32(&c.state)
	if client {
		return atomic.LoadUint32(&c.clientNext), s&clientKnown != 0
	}
	return atomic.LoadUint32(&c.endpointNext), s&endpointKnown != 0
}

// acceptsSYN reports whether the endpoint of a connection that is over would take
// a SYN from the same address and port. If the endpoint closed first it holds
// TIME_WAIT, and accepts the same as Linux's tcp_timewait_state_process: a sequence number
// after the last, or a newer timestamp, and never an older timestamp
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
		age := int32(tsval - atomic.LoadUint32(&c.extra))
		if age < 0 {
			return false
		}
		newer = age > 0
	}
	return newer || s&clientKnown != 0 && int32(seq-atomic.LoadUint32(&c.clientNext)) > 0
}
