package flowstate

// Each question about a connection has a separate predicate over the state word:
// state, clientOnly, FINs, unconfirmed, doubted and heard. A rule that changes for one question does
// not change for the others. testdata/predicates.txt shows all answers.

// HalfOpen reports whether only the client has been heard. A SYN-ACK proves nothing
// about the client.
func (s State) HalfOpen() bool {
	switch s {
	case SynSent, SynRecv, Unreplied, SCTPInit, SCTPCookieEchoed:
		return true
	}
	return false
}

// Ended reports whether both sides are done with the connection. Where the endpoint is not
// heard, the client is: a SYN after the client's FIN shows that the client has seen the
// endpoint's FIN.
func Ended(s uint32) bool {
	if s&(ClientOnly|FinClient) == ClientOnly|FinClient {
		return true
	}
	switch Of(s) {
	case LastAck, TimeWait, Close:
		return true
	}
	return false
}

// SYNBeginsAnew reports whether a SYN of the client's (SCTP: an INIT) begins a
// connection with an entry and a SNAT port of its own: the endpoint may hold TIME_WAIT
// for the old port.
func SYNBeginsAnew(s uint32) bool {
	return Of(s) == TimeWait
}

// SYNReopens reports whether a SYN of the client's opens the entry's connection again in
// place, with the same endpoint and SNAT port: the RST or FIN before it may have been
// forged, and then nothing is lost.
func SYNReopens(s uint32) bool {
	return Of(s) == Close || s&(ClientOnly|FinClient) == ClientOnly|FinClient
}

// CountsAsOpen reports whether the connection counts as open: for
// weir.dev/max-connections and for least connections. Both sides have been heard, and
// are not done. A restored connection counts once it has been heard again, and so does a
// connection that seemed closed.
func CountsAsOpen(s uint32) bool {
	state := Of(s)
	return state != None && !state.HalfOpen() && !Ended(s) && s&Unconfirmed == 0
}

// SeemsClosed reports whether a RST or FIN has raised doubt whether the connection goes on,
// but it still counts as open. After the timeout of CLOSE without a packet it counts no
// more, until it is heard again: of a busy connection the exact number of a RST is not
// known, and most of them are true.
func SeemsClosed(s uint32) bool { return s&(Doubted|Unconfirmed) == Doubted && CountsAsOpen(s) }

// CountsAsHalfOpen reports whether the connection counts as half-open.
func CountsAsHalfOpen(s uint32) bool { return Of(s).HalfOpen() }

// InHandshake reports whether the handshake of a TCP or SCTP connection is not complete.
func InHandshake(s uint32) bool {
	state := Of(s)
	return state != Unreplied && state.HalfOpen()
}

// AwaitedByDrain reports whether a drain waits for the connection, which has been
// idle for that many ticks: the endpoint has answered, and not both sides are done. The end
// of a half-open connection loses nothing. Most queries by datagram have a single answer,
// as in DNS; a flow that goes on becomes StateStream within two seconds.
func AwaitedByDrain(s, idle uint32) bool {
	state := Of(s)
	if state == Replied {
		return idle < 2*TicksPerSecond
	}
	return !Ended(s) && !state.HalfOpen()
}

// IsAborted reports whether the caller has ended the connection before either side knows.
func IsAborted(s uint32) bool { return s&(Mask|Aborted) == uint32(Close)|Aborted }

// MayRevive reports whether a later segment may show that the RST of a connection was forged. The
// refusal of a handshake is final.
func MayRevive(s uint32) bool {
	const known = ClientKnown | EndpointKnown
	return Of(s) == Close && s&known == known
}

// PortReusable reports whether the SNAT port, or in ModeDNAT the client's port
// towards the endpoint, may pass to another connection.
func PortReusable(s uint32) bool { return Ended(s) }

// MayBeDead reports whether the connection, silent for idle ticks, may be over without a
// sure sign of it: such a connection loses the port and the room before a new connection is
// refused.
func MayBeDead(s, idle uint32) bool {
	return s&(Unconfirmed|Doubted) != 0 && idle >= DeadTicks && Of(s) < Unreplied
}

// DeadTicks is the silence after which a doubted connection may be dead: a busy connection
// is heard within seconds.
const DeadTicks = 5 * 60 * TicksPerSecond

// IsSteady returns, as bits, the directions in which state word s is steady, or would be
// without slow.
func IsSteady(s uint32) uint32 {
	s &= Mask
	return uint32(steady[0]>>s&1 | steady[1]>>s&1<<1)
}

// IsFollowed reports whether an established connection in state word s is steady but for the
// numbers of each segment, which are to be noted.
func IsFollowed(s uint32) bool {
	const reasons = Slow | Young | Doubted | Unconfirmed | SynAckNoted
	return s&(Mask|reasons) == uint32(Established)|Slow|Young
}

// IsSteadyIn is Steady of state word s.
func IsSteadyIn(s, dir uint32) bool { return steady[dir&1]>>(s&(Mask|Slow))&1 != 0 }

// steady has a bit for every state with and without slow, by direction.
var steady = [2]uint64{
	1<<Established | 1<<Unreplied | 1<<Replied | 1<<Stream,
	1<<Established | 1<<Replied | 1<<Stream,
}

// Watched returns s with the slow bit that follows from the other bits.
func Watched(s uint32) uint32 {
	if Of(s) == Established && s&(Doubted|Unconfirmed|Young|SynAckNoted) != 0 {
		return s | Slow
	}
	return s &^ Slow
}

// Nothing in a datagram proves that its sender has the source address: an attacker who forges
// queries has them answered. He pays a datagram for each, so a UDP flow gets by time what it
// holds against others: only a flow of which both sides go on is proven, and of each flow the
// last datagram of its client counts for silentTicks.

// SilentTicks is the silence after which a UDP flow no longer keeps its port, or its room,
// from a new flow that would be refused.
const SilentTicks = 10 * TicksPerSecond

// HeardOnce is the unit of heard.
const HeardOnce = Heard & -Heard

// Proven reports whether a UDP flow in state word s was heard from both sides at three looks
// of ageing, which are seconds apart.
func Proven(s uint32) bool {
	return Of(s) == Stream && s&Heard == Heard && s&ClientOnly == 0
}

// UnprovenUDP reports whether the endpoint has answered a UDP flow that is not proven: a
// forged query is answered as well (nf_conntrack: not ASSURED).
func UnprovenUDP(s uint32) bool {
	switch Of(s) {
	case Replied, Stream:
		return !Proven(s)
	}
	return false
}
