// Package udp follows UDP flows, which have no handshake: a flow is as good as the time for which both
// sides go on.
package udp

import "github.com/weirlb/weir/conntrack/flowstate"

// StreamAfter is the age from which a UDP flow with answers counts as a stream,
// as in nf_conntrack_proto_udp.
const StreamAfter = 2 * flowstate.TicksPerSecond

// MayGoOn reports whether a connection in state word s is a UDP flow that becomes a stream
// when it goes on: the endpoint has answered, or the answers do not pass here.
func MayGoOn(s uint32) bool {
	if s&(flowstate.Published|flowstate.Renumbered|flowstate.Slow) != flowstate.Published {
		return false
	}
	switch flowstate.Of(s) {
	case flowstate.Replied:
		return true
	case flowstate.Unreplied:
		return s&flowstate.ClientOnly != 0
	}
	return false
}

// GoesOn reports whether the UDP flow, for whose state word s mayGoOn is true, has gone on:
// there was a packet two seconds after the first packet, and after the tick of the first
// answer. It follows from the latest packet, so that packets on the fast path need not ask.
func GoesOn(s, lastSeen, created, answered uint32) bool {
	if flowstate.Of(s) == flowstate.Replied && int32(lastSeen-answered) <= 0 {
		return false
	}
	return int32(lastSeen-created) > StreamAfter
}

// MayBeHeard reports whether ageing asks when both sides of a UDP flow in state word s were
// heard.
func MayBeHeard(s uint32) bool {
	return s&(flowstate.Published|flowstate.Renumbered|flowstate.ClientOnly) == flowstate.Published && flowstate.UnprovenUDP(s) && s&flowstate.Heard != flowstate.Heard
}

// Hear returns state word s of a UDP flow after a look of ageing. client and endpoint are the
// silence of each side, since is the time since the last look.
func Hear(s, client, endpoint, since uint32) uint32 {
	if client > since || endpoint > since {
		return s
	}
	return s + flowstate.HeardOnce
}
