package conntrack

import (
	"math/bits"

	"github.com/weirlb/weir/conntrack/flowstate"
)

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
	switch state := flowstate.Of(s); {
	case state.HalfOpen() && idle >= youngTicks:
		return evictHalfOpen
	case flowstate.Ended(s):
		return evictEnded
	case state.HalfOpen():
		return evictYoung
	case flowstate.Proven(s):
		if client < flowstate.SilentTicks {
			return evictNever
		}
		return evictSilent10 - evictionClass(min(bits.Len32(client/flowstate.SilentTicks)-1, 3))
	case s&flowstate.ClientOnly == 0 && !flowstate.UnprovenUDP(s):
		if flowstate.MayBeDead(s, idle) {
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
