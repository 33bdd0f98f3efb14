package conntrack

// How far an acknowledgment may be beyond the SYN that it acknowledges: data that went
// with the SYN (RFC 7413), at most an initial window.
const earlyData = 1 << 14

// acks reports whether ack acknowledges the SYN before sequence number next.
func acks(ack, next uint32) bool { return ack-next < earlyData }

// syn handles a SYN of the client. A SYN of an open connection changes nothing: the
// endpoint answers it with a challenge ACK (RFC 5961, section 4). A client that has no such
// connection answers that with a RST of the right number.
func (k *tracker) syn(g *Segment) Verdict {
	next := g.Seq + 1
	switch k.state() {
	case StateSynSent:
		k.heard = true
		k.resent = k.repeatsSYN(next)
		if k.is(endpointKnown) || next != k.n.client {
			k.noteSYN(next)
		}
	case StateSynRecv:
		k.heard = next == k.n.client
		k.resent = k.heard
	case StateTimeWait:
		return Reopen
	default:
		if synReopens(k.s) {
			return k.again(next)
		}
	}
	return Pass
}

// repeatsSYN reports whether the SYN before sequence number next was seen before: as that of
// the connection, or as the second.
func (k *tracker) repeatsSYN(next uint32) bool {
	if k.is(synNoted) && next == k.n.extra {
		return true
	}
	return !k.is(endpointKnown) && next == k.n.client
}

// noteSYN stores the number of a second SYN, unless a SYN-ACK is noted.
func (k *tracker) noteSYN(next uint32) {
	if k.is(synAckNoted) {
		return
	}
	k.n.extra = next
	k.s = k.s&^tsKnown | synNoted
}

// reopened reports whether the state is that of a connection that was reset, and perhaps
// opened again in its place.
func (k *tracker) reopened() bool {
	return k.state() == StateClose || k.state() == StateSynSent && k.is(endpointKnown)
}

// again opens a connection in place of one that was reset. The numbers of the old
// connection stay until the endpoint has answered: it may live, the RST having been forged.
func (k *tracker) again(next uint32) Verdict {
	k.heard = true
	if k.is(clientOnly) || !k.is(endpointKnown) {
		k.s = k.s&(lasting|synAckNoted) | uint32(StateSynSent) | clientKnown
		k.n.client = next
		return Restart
	}
	k.become(StateSynSent)
	k.noteSYN(next)
	return Restart
}

// synAck handles a SYN-ACK of the endpoint. An answer to a SYN seen in SYN_SENT moves to
// SYN_RECV. Any other is noted where another connection may have begun: a later SYN,
// perhaps a forged one, has hidden the SYN that it answers.
func (k *tracker) synAck(g *Segment) {
	switch {
	case k.answersSYN(g):
		k.answered(g)
	case k.sentAgain(g):
		k.resent = true
		k.heard = k.state() == StateSynRecv || k.state() == StateEstablished
	case k.state() == StateEstablished && !k.is(doubted|unconfirmed) &&
		(k.near(g) || k.idle < TicksPerSecond):
		k.heard = k.near(g) // the last ACK of the handshake was lost
	default:
		k.noteAnswer(g)
	}
}

// answersSYN reports whether SYN-ACK g acknowledges the client's SYN, or the second noted
// SYN.
func (k *tracker) answersSYN(g *Segment) bool {
	if k.state() == StateSynSent && !k.is(endpointKnown) && acks(g.Ack, k.n.client) {
		return true
	}
	return k.is(synNoted) && acks(g.Ack, k.n.extra)
}

// answered moves to SYN_RECV by SYN-ACK g.
func (k *tracker) answered(g *Segment) {
	k.heard = true
	k.s = k.s&(lasting|synAckNoted) | uint32(StateSynRecv) | clientKnown | endpointKnown
	k.n.client, k.n.endpoint = g.Ack, g.end()
}

// sentAgain reports whether SYN-ACK g is that of the connection whose numbers are known:
// the endpoint lacks the client's last ACK, and perhaps a RST after it. Each side may
// have sent an initial window since.
func (k *tracker) sentAgain(g *Segment) bool {
	return k.is(clientKnown) && k.is(endpointKnown) && acks(k.n.client, g.Ack) && acks(k.n.endpoint, g.end())
}

// noteAnswer notes SYN-ACK g for the client's ACK.
func (k *tracker) noteAnswer(g *Segment) {
	switch k.state() {
	case StateSynSent, StateSynRecv:
		k.heard = true
	case StateEstablished:
		k.since() // earlier segments of the endpoint do not end the doubt
	}
	k.n.extra = g.end()
	k.s = k.s&^(tsKnown|synNoted) | synAckNoted
}

// completes moves from SYN_RECV to ESTABLISHED if segment g is the client's ACK of the
// SYN-ACK. Data of the endpoint, which then has that ACK, does it too. Without data it may
// be a challenge ACK, which any segment out of the window provokes. The acknowledged number
// is in the endpoint's answers only: a forged client completes no handshake.
func (k *tracker) completes(g *Segment) bool {
	switch {
	case g.forward && g.Ack == k.n.endpoint && span(g.Seq-k.n.client) < nearData:
	case !g.forward && g.end() != g.Seq && g.Ack-k.n.client < nearData && span(g.Seq-k.n.endpoint) < earlyData:
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
func (k *tracker) completesNoted(g *Segment) {
	if !g.forward || !k.is(synAckNoted) || g.Ack != k.n.extra {
		return
	}
	if k.state() == StateEstablished && k.idle < TicksPerSecond {
		return
	}
	k.n.client, k.n.endpoint = g.Seq, g.Ack
	k.s |= clientKnown | endpointKnown
	k.open()
}

// nearData bounds the bytes that a side may have sent when the handshake is complete.
const nearData = 1 << 24

// completesDSR is completes where the endpoint's packets do not pass here: the
// client's ACK has to do.
func (k *tracker) completesDSR(g *Segment) bool {
	if !k.is(clientOnly) || !g.forward || span(g.Seq-k.n.client) >= nearData {
		return false
	}
	k.n.endpoint = g.Ack
	k.s |= endpointKnown
	k.open()
	return true
}

func (k *tracker) open() {
	k.s = k.s&(lasting|clientKnown|endpointKnown) | uint32(StateEstablished) | young
}
