package conntrack

// How far an acknowledgment may be beyond the SYN that it acknowledges: data that went
// with the SYN (RFC 7413), at most an initial window.
const earlyData = 1 << 14

// acks reports whether ack acknowledges the SYN before sequence number next.
func acks(ack, next uint32) bool { return ack-next < earlyData }

// syn handles a SYN of the client's. One of an open connection changes nothing: the
// endpoint answers it with a challenge ACK (RFC 5961, section 4), and the client, if it
// knows nothing of that connection, with a RST that has the right number.
func (k *tracker) syn(g *segment) Verdict {
	next := g.seq + 1
	switch k.state() {
	case StateSynSent:
		k.heard = true
		if k.is(endpointKnown) || next != k.n.client {
			k.noteSYN(next)
		}
	case StateSynRecv:
		k.heard = next == k.n.client
	case StateEstablished:
		if k.mayHaveEnded() {
			k.noteSYN(next)
		}
	case StateTimeWait:
		return Reopen
	default:
		if synReopens(k.s) {
			return k.again(next)
		}
		k.noteSYN(next)
	}
	return Pass
}

// noteSYN remembers a SYN that may be of a connection after this one: the endpoint's
// SYN-ACK to it will tell.
func (k *tracker) noteSYN(next uint32) {
	if k.is(otherSYN) {
		return // the endpoint has answered one
	}
	k.n.extra = next
	k.s = k.s&^tsKnown | synNoted
}

// reopened reports whether the state is that of a connection that was reset, and perhaps
// opened again in its place.
func (k *tracker) reopened() bool {
	return k.state() == StateClose || k.state() == StateSynSent && k.is(endpointKnown)
}

// mayHaveEnded reports whether another connection may have followed this one unseen. Of
// one in doubt that is heard all the time it has not, whoever answers whose SYN.
func (k *tracker) mayHaveEnded() bool {
	switch k.state() {
	case StateSynSent, StateClose, StateFinWait, StateCloseWait, StateLastAck, StateTimeWait:
		return true
	case StateEstablished:
		return k.is(doubted|unconfirmed) && k.idle >= TicksPerSecond
	}
	return false
}

// again opens a connection in place of one that was reset. What is known of that one
// stays known until the endpoint has answered: it may live, the RST having been forged.
func (k *tracker) again(next uint32) Verdict {
	k.heard = true
	if k.is(clientOnly) || !k.is(endpointKnown) {
		k.s = k.s&lasting | uint32(StateSynSent) | clientKnown
		k.n.client = next
		return Restart
	}
	k.become(StateSynSent)
	k.noteSYN(next)
	return Restart
}

// synAck handles a SYN-ACK of the endpoint's. It counts only if it acknowledges a SYN
// of the client's. Of two SYNs with different numbers the first one has precedence, so
// that a forged pair of SYN and SYN-ACK does not hide the true one.
func (k *tracker) synAck(g *segment) {
	fresh := k.state() == StateSynSent && !k.is(endpointKnown)
	switch {
	case fresh && acks(g.ack, k.n.client):
		if k.is(otherSYN) {
			k.s &^= otherSYN | synNoted
		}
		k.answered(g)
	case fresh && k.is(synNoted) && !k.is(otherSYN) && acks(g.ack, k.n.extra):
		k.n.client, k.n.extra = k.n.extra, k.n.client
		k.answered(g)
		k.s |= otherSYN
	case k.state() == StateSynRecv && acks(g.ack, k.n.client):
		k.answered(g)
	case k.state() == StateSynRecv && k.is(otherSYN) && acks(g.ack, k.n.extra):
		k.s &^= otherSYN | synNoted
		k.answered(g)
	case k.state() == StateSynRecv:
	case !fresh && k.awaitsAnswer() && !k.is(otherSYN) && acks(g.ack, k.n.extra):
		k.s = k.s & lasting
		k.answered(g)
	case k.sentAgain(g):
		k.heard = k.state() == StateEstablished
	case k.mayHaveEnded():
		// It answers a SYN that a later one has hidden. The client's ACK will tell.
		k.n.extra = g.ack
		k.s = k.s&^tsKnown | synNoted | otherSYN
	case k.state() == StateEstablished:
		k.heard = k.near(g) // the last ACK of the handshake was lost
	}
}

// awaitsAnswer reports whether the endpoint may still answer the SYN that is noted. In an
// established connection without doubt it is the SYN after an exact RST: a segment that
// the endpoint sent before that RST came has brought the old connection back.
func (k *tracker) awaitsAnswer() bool {
	return k.is(synNoted) && (k.mayHaveEnded() || !k.is(doubted|unconfirmed))
}

// sentAgain reports whether SYN-ACK g is that of the connection whose numbers are known:
// the endpoint lacks the client's last ACK, and perhaps a RST after it. Each side may
// have sent an initial window since.
func (k *tracker) sentAgain(g *segment) bool {
	return k.is(clientKnown) && k.is(endpointKnown) && acks(k.n.client, g.ack) && acks(k.n.endpoint, g.seq+1)
}

// answered moves to SYN_RECV by SYN-ACK g.
func (k *tracker) answered(g *segment) {
	k.heard = true
	k.become(StateSynRecv)
	k.n.client, k.n.endpoint = g.ack, g.seq+1
	k.s |= clientKnown | endpointKnown
}

// completes moves from SYN_RECV to ESTABLISHED, if segment g is the client's ACK of the
// SYN-ACK, or of the endpoint's and so sent after that had come. The number to be
// acknowledged is one that only who has seen the SYN-ACK knows: a forged client cannot
// complete a handshake.
func (k *tracker) completes(g *segment) bool {
	switch {
	case g.forward && acks(g.ack, k.n.endpoint) && span(g.seq-k.n.client) < nearData:
	case !g.forward && g.ack-k.n.client < nearData && span(g.seq-k.n.endpoint) < earlyData:
	default:
		return false
	}
	k.open()
	return true
}

// answersHidden reports whether segment g is the client's ACK of a SYN-ACK whose SYN was
// hidden, and establishes that connection: both ends agree on the client's number.
func (k *tracker) answersHidden(g *segment) {
	if !k.mayHaveEnded() || !g.forward || !k.is(otherSYN) || g.seq != k.n.extra {
		return
	}
	k.n.client, k.n.endpoint = g.seq, g.ack
	k.s |= clientKnown | endpointKnown
	k.open()
}

// nearData bounds what a side may have sent when the handshake is complete.
const nearData = 1 << 24

// completesOneWay is completes where the endpoint's packets do not pass here: the
// client's ACK has to do.
func (k *tracker) completesOneWay(g *segment) bool {
	if !k.is(clientOnly) || !g.forward || span(g.seq-k.n.client) >= nearData {
		return false
	}
	k.n.endpoint = g.ack
	k.s |= endpointKnown
	k.open()
	return true
}

func (k *tracker) open() {
	k.s = k.s&(lasting|clientKnown|endpointKnown) | uint32(StateEstablished) | young
}
