package tcp

import "github.com/weirlb/weir/conntrack/flowstate"

// How far an acknowledgment may be beyond the SYN that it acknowledges: data that went
// with the SYN (RFC 7413), at most an initial window.
const earlyData = 1 << 14

// Acks reports whether ack acknowledges the SYN before sequence number next.
func Acks(ack, next uint32) bool { return ack-next < earlyData }

// syn handles a SYN of the client. A SYN of an open connection changes nothing: the
// endpoint answers it with a challenge ACK (RFC 5961, section 4). A client that has no such
// connection answers that with a RST of the right number.
func (k *Tracker) syn(g *Segment) flowstate.Verdict {
	next := g.Seq + 1
	switch k.state() {
	case flowstate.SynSent:
		k.Heard = true
		k.Resent = k.repeatsSYN(next)
		if k.is(flowstate.EndpointKnown) || next != k.Numbers.Client {
			k.noteSYN(next)
		}
	case flowstate.SynRecv:
		k.Heard = next == k.Numbers.Client
		k.Resent = k.Heard
	case flowstate.TimeWait:
		return flowstate.Reopen
	default:
		if flowstate.SYNReopens(k.Word) {
			return k.again(next)
		}
	}
	return flowstate.Pass
}

// repeatsSYN reports whether the SYN before sequence number next was seen before: as that of
// the connection, or as the second.
func (k *Tracker) repeatsSYN(next uint32) bool {
	if k.is(flowstate.SynNoted) && next == k.Numbers.Extra {
		return true
	}
	return !k.is(flowstate.EndpointKnown) && next == k.Numbers.Client
}

// noteSYN stores the number of a second SYN, unless a SYN-ACK is noted.
func (k *Tracker) noteSYN(next uint32) {
	if k.is(flowstate.SynAckNoted) {
		return
	}
	k.Numbers.Extra = next
	k.Word = k.Word&^flowstate.TsKnown | flowstate.SynNoted
}

// reopened reports whether the state is that of a connection that was reset, and perhaps
// opened again in its place.
func (k *Tracker) reopened() bool {
	return k.state() == flowstate.Close || k.state() == flowstate.SynSent && k.is(flowstate.EndpointKnown)
}

// again opens a connection in place of one that was reset. The numbers of the old
// connection stay until the endpoint has answered: it may live, the RST having been forged.
func (k *Tracker) again(next uint32) flowstate.Verdict {
	k.Heard = true
	if k.is(flowstate.ClientOnly) || !k.is(flowstate.EndpointKnown) {
		k.Word = k.Word&(flowstate.Lasting|flowstate.SynAckNoted) | uint32(flowstate.SynSent) | flowstate.ClientKnown
		k.Numbers.Client = next
		return flowstate.Restart
	}
	k.become(flowstate.SynSent)
	k.noteSYN(next)
	return flowstate.Restart
}

// synAck handles a SYN-ACK of the endpoint. An answer to a SYN seen in SYN_SENT moves to
// SYN_RECV. Any other is noted where another connection may have begun: a later SYN,
// perhaps a forged one, has hidden the SYN that it answers.
func (k *Tracker) synAck(g *Segment) {
	switch {
	case k.answersSYN(g):
		k.answered(g)
	case k.sentAgain(g):
		k.Resent = true
		k.Heard = k.state() == flowstate.SynRecv || k.state() == flowstate.Established
	case k.state() == flowstate.Established && !k.is(flowstate.Doubted|flowstate.Unconfirmed) &&
		(k.near(g) || k.Idle < flowstate.TicksPerSecond):
		k.Heard = k.near(g) // the last ACK of the handshake was lost
	default:
		k.noteAnswer(g)
	}
}

// answersSYN reports whether SYN-ACK g acknowledges the client's SYN, or the second noted
// SYN.
func (k *Tracker) answersSYN(g *Segment) bool {
	if k.state() == flowstate.SynSent && !k.is(flowstate.EndpointKnown) && Acks(g.Ack, k.Numbers.Client) {
		return true
	}
	return k.is(flowstate.SynNoted) && Acks(g.Ack, k.Numbers.Extra)
}

// answered moves to SYN_RECV by SYN-ACK g.
func (k *Tracker) answered(g *Segment) {
	k.Heard = true
	k.Word = k.Word&(flowstate.Lasting|flowstate.SynAckNoted) | uint32(flowstate.SynRecv) | flowstate.ClientKnown | flowstate.EndpointKnown
	k.Numbers.Client, k.Numbers.Endpoint = g.Ack, g.end()
}

// sentAgain reports whether SYN-ACK g is that of the connection whose numbers are known:
// the endpoint lacks the client's last ACK, and perhaps a RST after it. Each side may
// have sent an initial window since.
func (k *Tracker) sentAgain(g *Segment) bool {
	return k.is(flowstate.ClientKnown) && k.is(flowstate.EndpointKnown) && Acks(k.Numbers.Client, g.Ack) && Acks(k.Numbers.Endpoint, g.end())
}

// noteAnswer notes SYN-ACK g for the client's ACK.
func (k *Tracker) noteAnswer(g *Segment) {
	switch k.state() {
	case flowstate.SynSent, flowstate.SynRecv:
		k.Heard = true
	case flowstate.Established:
		k.since() // earlier segments of the endpoint do not end the doubt
	}
	k.Numbers.Extra = g.end()
	k.Word = k.Word&^(flowstate.TsKnown|flowstate.SynNoted) | flowstate.SynAckNoted
}

// completes moves from SYN_RECV to ESTABLISHED if segment g is the client's ACK of the
// SYN-ACK. Data of the endpoint, which then has that ACK, does it too. Without data it may
// be a challenge ACK, which any segment out of the window provokes. The acknowledged number
// is in the endpoint's answers only: a forged client completes no handshake.
func (k *Tracker) completes(g *Segment) bool {
	switch {
	case g.Forward && g.Ack == k.Numbers.Endpoint && Span(g.Seq-k.Numbers.Client) < nearData:
	case !g.Forward && g.end() != g.Seq && g.Ack-k.Numbers.Client < nearData && Span(g.Seq-k.Numbers.Endpoint) < earlyData:
	default:
		return false
	}
	k.open()
	return true
}

// completesNoted establishes the connection of the SYN-ACK that is noted, if segment g is
// the client's ACK of it. The number of g itself proves nothing: that SYN-ACK may answer a
// forged SYN. An established connection must be silent for that: both SYN-ACK and ACK may
// be forged.
func (k *Tracker) completesNoted(g *Segment) {
	if !g.Forward || !k.is(flowstate.SynAckNoted) || g.Ack != k.Numbers.Extra {
		return
	}
	if k.state() == flowstate.Established && k.Idle < flowstate.TicksPerSecond {
		return
	}
	k.Numbers.Client, k.Numbers.Endpoint = g.Seq, g.Ack
	k.Word |= flowstate.ClientKnown | flowstate.EndpointKnown
	k.open()
}

// nearData bounds the bytes that a side may have sent when the handshake is complete.
const nearData = 1 << 24

// completesDSR is completes where the endpoint's packets do not pass here: the
// client's ACK has to do.
func (k *Tracker) completesDSR(g *Segment) bool {
	if !k.is(flowstate.ClientOnly) || !g.Forward || Span(g.Seq-k.Numbers.Client) >= nearData {
		return false
	}
	k.Numbers.Endpoint = g.Ack
	k.Word |= flowstate.EndpointKnown
	k.open()
	return true
}

func (k *Tracker) open() {
	k.Word = k.Word&(flowstate.Lasting|flowstate.ClientKnown|flowstate.EndpointKnown) | uint32(flowstate.Established) | flowstate.Young
}
