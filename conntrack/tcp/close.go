package tcp

import "github.com/weirlb/weir/conntrack/flowstate"

// reset moves to CLOSE on a RST that the receiver accepts: in an established connection it
// has exactly the number that the receiver expects (RFC 5961, section 3.2). Any other
// changes nothing, as in nf_conntrack, but for the timeout of the doubted: the samples
// may be behind, and a true RST then looks slightly wrong.
func (k *Tracker) reset(g *Segment) {
	switch k.state() {
	case flowstate.TimeWait: // RFC 1337
	case flowstate.SynSent:
		if k.refuses(g) {
			k.close(flowstate.ClientKnown | flowstate.SynAckNoted)
		} else if k.is(flowstate.EndpointKnown) && k.exact(g) {
			k.close(flowstate.ClientKnown | flowstate.EndpointKnown | flowstate.SynNoted | flowstate.SynAckNoted)
		}
	case flowstate.SynRecv:
		if k.refuses(g) || !g.Forward && g.Seq == k.Numbers.Endpoint {
			k.close(flowstate.ClientKnown | flowstate.SynAckNoted)
		}
	default:
		switch {
		case k.exact(g):
			k.close(flowstate.ClientKnown | flowstate.EndpointKnown | flowstate.FinBits | flowstate.AckedClient | flowstate.AckedEndpoint | flowstate.EndpointFirst |
				flowstate.SynNoted | flowstate.SynAckNoted)
		case k.plausible(g):
			k.doubt()
		}
	}
}

// refuses reports whether the RST ends a handshake: the endpoint's if it acknowledges a SYN
// (RFC 9293, section 3.10.7.3), the client's if it follows a SYN.
func (k *Tracker) refuses(g *Segment) bool {
	number := g.Seq
	if !g.Forward {
		if number = g.Ack; !g.Has(FlagACK) {
			return false
		}
	}
	if k.reopened() {
		return !g.Forward && k.is(flowstate.SynNoted) && Acks(number, k.Numbers.Extra)
	}
	if g.Forward || k.state() == flowstate.SynRecv {
		return number == k.Numbers.Client // the SYN-ACK has told it
	}
	return Acks(number, k.Numbers.Client) // the refusal of another SYN, perhaps forged, does not count
}

// close moves to CLOSE. keep are the bits that may still be needed: without both numbers
// the connection cannot be revived.
func (k *Tracker) close(keep uint32) {
	k.Heard = k.Heard || k.state() != flowstate.Close
	k.Word = k.Word&(flowstate.Lasting|keep) | uint32(flowstate.Close)
	k.since()
}

// exact reports whether a RST has the number that the receiver expects. After a FIN of the
// sender that is the FIN's number until the receiver has it.
func (k *Tracker) exact(g *Segment) bool {
	own, other, known, fin := k.sides(g)
	return known && (g.Seq == own || fin && g.Seq == own-1) && (!g.Has(FlagACK) || Span(g.Ack-other) < plausibly)
}

// revives reports whether segment g shows that a connection lives which a RST seemed to
// have ended, and takes it back: a host that has accepted a RST falls silent. In the state
// SYN_SENT, after a SYN in its place, the next segment of either side shows it.
func (k *Tracker) revives(g *Segment) bool {
	if !k.is(flowstate.EndpointKnown) || !k.is(flowstate.ClientKnown) || !k.near(g) {
		return false
	}
	if k.state() == flowstate.Close && !k.settled(g) {
		k.learn(g) // a RST that answers it has that number
		return false
	}
	// In doubt, with the SYN or SYN-ACK noted: it may have overtaken the segment. Of a
	// segment of the client the endpoint may be gone for good.
	k.become(flowstate.Established)
	k.doubt()
	return true
}

// fins follows segment g, which is of this connection, through the close.
func (k *Tracker) fins(g *Segment) {
	own, ownAcked := uint32(flowstate.FinEndpoint), uint32(flowstate.AckedEndpoint)
	other, otherAcked := uint32(flowstate.FinClient), uint32(flowstate.AckedClient)
	if g.Forward {
		own, ownAcked, other, otherAcked = other, otherAcked, own, ownAcked
	}
	if k.is(own) {
		k.goesOn(g, ownAcked)
	}
	if k.is(other) && !k.is(otherAcked) {
		k.acknowledges(g, other, otherAcked)
	}
	k.learn(g)
	if g.Has(FlagFIN) {
		k.fin(g, own)
	}
	k.timestamp(g)
	k.become(closing(k.Word))
}

// fin notes the FIN of the side whose bit is own.
func (k *Tracker) fin(g *Segment, own uint32) {
	// Sent before the client's FIN had come: the endpoint closed first, or at
	// the same time (CLOSING). Either way it will hold TIME_WAIT.
	if own == flowstate.FinEndpoint && !k.is(flowstate.FinEndpoint) && !k.is(flowstate.AckedClient) {
		k.Word |= flowstate.EndpointFirst
	}
	k.Word |= own
	k.since()
	*k.Numbers.Of(g.Forward) = g.end()
}

// goesOn withdraws the FIN of segment g's sender if g shows that the FIN was forged: data
// beyond the FIN, or an ACK with another number than the next. Data before the FIN,
// after a second, is data sent again or that of a living connection.
func (k *Tracker) goesOn(g *Segment, acked uint32) {
	end, own := g.end(), *k.Numbers.Of(g.Forward)
	age := uint8(k.Tick) - uint8(k.Word>>flowstate.SinceShift)
	switch {
	case end == own && (g.Has(FlagFIN) || g.Length == 0):
	case end == own-1 && !g.Has(FlagFIN): // data before the FIN, or a keepalive
	case g.Has(FlagFIN), int32(end-own) >= 0:
		k.withdraw(g.Forward, end)
	case g.Length == 0 && age > EndpointSettles:
		k.withdraw(g.Forward, end)
	case age > flowstate.TicksPerSecond && !k.is(acked):
		k.Word |= flowstate.Doubted
	}
}

// repeatsFIN reports whether segment g is the sender's FIN sent again. It ends the doubt
// about a FIN that the receiver seemed to ignore: a forged FIN would be answered again.
func (k *Tracker) repeatsFIN(g *Segment) bool {
	own, _, _, fin := k.sides(g)
	return fin && g.Has(FlagFIN) && g.end() == own
}

// acknowledges notes the acknowledgment of the other side's FIN. Only that of the FIN's own
// number counts. An acknowledgment beyond it shows that the FIN was forged. A lower number
// leaves doubt, for as long as it takes: data before the FIN may be lost or in flight.
func (k *Tracker) acknowledges(g *Segment, fin, acked uint32) {
	age := uint8(k.Tick) - uint8(k.Word>>flowstate.SinceShift)
	switch number := *k.Numbers.Of(!g.Forward); {
	case Span(g.Seq-*k.Numbers.Of(g.Forward)) >= plausibly: // whose FIN is forged too
	case g.Ack == number:
		k.Word = k.Word&^flowstate.Doubted | acked
	case age > flowstate.TicksPerSecond && int32(g.Ack-number) > 0:
		k.withdraw(!g.Forward, g.Ack)
	default:
		k.Word |= flowstate.Doubted
	}
}

// withdraw forgets the FIN of a side, whose next sequence number is next.
func (k *Tracker) withdraw(client bool, next uint32) {
	bits := uint32(flowstate.FinEndpoint | flowstate.AckedEndpoint | flowstate.EndpointFirst)
	if client {
		bits = flowstate.FinClient | flowstate.AckedClient
	}
	k.Word &^= bits
	if k.Word&flowstate.FinBits == 0 {
		k.Word &^= flowstate.Doubted
	}
	*k.Numbers.Of(client) = next
}

// closing returns the state that follows from the FINs seen and acknowledged.
func closing(s uint32) flowstate.State {
	const bothAcked = flowstate.AckedClient | flowstate.AckedEndpoint
	switch fins := s & flowstate.FinBits; {
	case fins == 0:
		return flowstate.Established
	case fins == flowstate.FinBits && s&bothAcked == bothAcked:
		return flowstate.TimeWait
	case fins == flowstate.FinBits:
		return flowstate.LastAck
	case s&bothAcked != 0:
		return flowstate.CloseWait
	}
	return flowstate.FinWait
}

// Abort returns the state word after the caller's end of a connection in state word s, of which
// neither side knows.
func Abort(s, tick uint32) uint32 {
	k := Tracker{Word: s, Tick: tick}
	k.close(flowstate.ClientKnown | flowstate.EndpointKnown)
	return k.Word | flowstate.Aborted
}

// A SYN is that of a new connection, with its timestamp if HasTS.
type SYN struct {
	Seq, TSval uint32
	HasTS      bool
}

// Accepts reports whether the endpoint of a connection that is over, in state word s, would take
// a SYN from the same address and port. clientNext and clientTS are the numbers of its client. If
// the endpoint closed first it holds TIME_WAIT, and accepts the same as Linux's
// tcp_timewait_state_process: a sequence number after the last, or a newer timestamp, and never an
// older timestamp (PAWS). Otherwise it holds nothing.
func (g SYN) Accepts(s, clientNext, clientTS uint32) bool {
	switch flowstate.Of(s) {
	case flowstate.Close:
		return true
	case flowstate.TimeWait:
	default:
		return false
	}
	if s&flowstate.EndpointFirst == 0 {
		return true
	}
	newer := false
	if g.HasTS && s&flowstate.TsKnown != 0 {
		age := int32(g.TSval - clientTS)
		if age < 0 {
			return false
		}
		newer = age > 0
	}
	return newer || s&flowstate.ClientKnown != 0 && int32(g.Seq-clientNext) > 0
}
