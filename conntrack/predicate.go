package conntrack

// Each question about a connection has a predicate of its own over its state word
// (state, FIN and RST bits, clientOnly). A rule that changes for one question does
// not change for the others.

// ended reports whether both sides are done with the connection. Where the
// endpoint is not heard, the client is: a SYN after its own FIN says that it has
// seen the endpoint's.
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

// synBeginsAnew reports whether a SYN from the client can only mean a new
// connection.
func synBeginsAnew(s uint32) bool { return ended(s) }

// countsAsOpen reports whether the connection counts as open: for
// weir.dev/max-connections and for least connections.
func countsAsOpen(s uint32) bool { return !ended(s) }

// portReusable reports whether the SNAT port, or in ModeDNAT the client's port
// towards the endpoint, may pass to another connection.
func portReusable(s uint32) bool { return ended(s) }

// An evictionClass says how early a connection goes when room is short.
type evictionClass uint8

// Eviction classes, the first to go first.
const (
	evictHalfOpen evictionClass = iota // only the client has been heard
	evictEnded                         // both sides are done with it
	evictNever
)

// evictionOf returns the eviction class of a connection.
func evictionOf(s uint32) evictionClass {
	switch {
	case State(s & stateMask).halfOpen():
		return evictHalfOpen
	case ended(s):
		return evictEnded
	}
	return evictNever
}
