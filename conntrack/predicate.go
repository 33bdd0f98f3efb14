package conntrack

import "math/bits"

// Each question about a connection has a separate predicate over the state word:
// state, clientOnly, FINs, unconfirmed, doubted and heard. A rule that changes for one question does
// not change for the others. testdata/predicates.txt shows all answers.

// halfOpen reports whether only the client has been heard. A SYN-ACK proves nothing
// about the client.
func (s State) halfOpen() bool {
	switch s {
	case StateSynSent, StateSynRecv, StateUnreplied, StateSCTPInit, StateSCTPCookieEchoed:
		return true
	}
	return false
}

// ended reports whether both sides are done with the connection. Where the endpoint is not
// heard, the client is: a SYN after the client's FIN shows that the client has seen the
// endpoint's FIN.
func ended(s uint32) bool {
	if s&(clientOnly|finClient) == clientOnly|finClient {
		return true
	}
	switch State(s & stateMask) {
	case StateLastAck, StateTimeWait, StateClose:
		return true
	}
	return false
}

// synBeginsAnew reports whether a SYN of the client's (SCTP: an INIT) begins a
// connection with an entry and a SNAT port of its own: the endpoint may hold TIME_WAIT
// for the old port.
func synBeginsAnew(s uint32) bool {
	return State(s&stateMask) == StateTimeWait
}

// synReopens reports whether a SYN of the client's opens the entry's connection again in
// place, with the same endpoint and SNAT port: the RST or FIN before it may have been
// forged, and then nothing is lost.
func synReopens(s uint32) bool {
	return State(s&stateMask) == StateClose || s&(clientOnly|finClient) == clientOnly|finClient
}

// countsAsOpen reports whether the connection counts as open: for
// weir.dev/max-connections and for least connections. Both sides have been heard, and
// are not done. A restored connection counts once it has been heard again, and so does a
// connection that seemed closed.
func countsAsOpen(s uint32) bool {
	state := State(s & stateMask)
	return state != StateNone && !state.halfOpen() && !ended(s) && s&unconfirmed == 0
}

// seemsClosed reports whether a RST or FIN has raised doubt whether the connection goes on,
// but it still counts as open. After the timeout of CLOSE without a packet it counts no
// more, until it is heard again: of a busy connection the exact number of a RST is not
// known, and most of them are true.
func seemsClosed(s uint32) bool { return s&(doubted|unconfirmed) == doubted && countsAsOpen(s) }

// countsAsHalfOpen reports whether the connection counts as half-open.
func countsAsHalfOpen(s uint32) bool { return State(s & stateMask).halfOpen() }

// inHandshake reports whether the handshake of a TCP or SCTP connection is not complete.
func inHandshake(s uint32) bool {
	state := State(s & stateMask)
	return state != StateUnreplied && state.halfOpen()
}

// awaitedByDrain reports whether a drain waits for the connection, which has been
// idle for that many ticks: the endpoint has answered, and not both sides are done. The end
// of a half-open connection loses nothing. Most queries by datagram have a single answer,
// as in DNS; a flow that goes on becomes StateStream within two seconds.
func awaitedByDrain(s, idle uint32) bool {
	state := State(s & stateMask)
	if state == StateReplied {
		return idle < 2*TicksPerSecond
	}
	return !ended(s) && !state.halfOpen()
}

// portReusable reports whether the SNAT port, or in ModeDNAT the client's port
// towards the endpoint, may pass to another connection.
func portReusable(s uint32) bool { return ended(s) }

// mayBeDead reports whether the connection, silent for idle ticks, may be over without a
// sure sign of it: such a connection loses the port and the room before a new connection is
// refused.
func mayBeDead(s, idle uint32) bool {
	return s&(unconfirmed|doubted) != 0 && idle >= deadTicks && State(s&stateMask) < StateUnreplied
}

// deadTicks is the silence after which a doubted connection may be dead: a busy connection
// is heard within seconds.
const deadTicks = 5 * 60 * TicksPerSecond

// An evictionClass says how early a connection goes when room is short.
type evictionClass uint8

// Eviction classes, the first to go first. No packet proves the client of a
// connection below evictDoubted, or both sides are done with it. The classes of proven UDP
// flows begin at the silence of the client that the name has, in seconds.
const (
	evictHalfOpen evictionClass = iota // only the client has been heard, idle for youngTicks
	evictEnded                         // both sides are done with it
	evictBrief                         // unproven, idle, and all packets came within briefTicks
	evictIdle                          // unproven, idle
	evictYoung                         // half open and not idle: it may become a connection
	evictUnproven                      // unproven and not idle
	evictDoubted                       // proven, but it may be dead
	evictSilent80
	evictSilent40
	evictSilent20
	evictSilent10
	evictNever
)

const (
	// youngTicks is longer than a handshake's round trip, and shorter than the second
	// after which a client sends its SYN again (RFC 6298).
	youngTicks = TicksPerSecond / 2
	// idleTicks is how long an unproven connection is silent before it counts as idle.
	idleTicks = TicksPerSecond
	// briefTicks is the age within which a connection has to go on to be more than a
	// burst of packets.
	briefTicks = 2 * TicksPerSecond
)

// evictionOf returns the eviction class of a connection in state word s that was
// silent for idle ticks, and its client for client ticks. lasted is how many ticks lie between
// its first packet and its latest.
//
// Where the endpoint is not heard (clientOnly) nothing proves the client in any
// state: two packets from nowhere make an established connection. To forget it does no
// harm: the next packet makes it anew with the endpoint that all nodes choose.
func evictionOf(s, idle, client, lasted uint32) evictionClass {
	switch state := State(s & stateMask); {
	case state.halfOpen() && idle >= youngTicks:
		return evictHalfOpen
	case ended(s):
		return evictEnded
	case state.halfOpen():
		return evictYoung
	case proven(s):
		if client < silentTicks {
			return evictNever
		}
		return evictSilent10 - evictionClass(min(bits.Len32(client/silentTicks)-1, 3))
	case s&clientOnly == 0 && !unprovenUDP(s):
		if mayBeDead(s, idle) {
			return evictDoubted
		}
		return evictNever
	case idle < idleTicks:
		return evictUnproven
	case lasted < briefTicks:
		return evictBrief
	}
	return evictIdle
}
