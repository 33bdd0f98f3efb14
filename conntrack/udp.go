package conntrack

import "sync/atomic"

// streamAfter is the age from which a UDP flow with answers counts as a stream,
// as in nf_conntrack_proto_udp.
const streamAfter = 2 * TicksPerSecond

// TrackUDP follows one UDP packet of the entry r: a flow that was answered, and
// goes on for two seconds, ages like a stream and not like a query.
func (t *Table) TrackUDP(r Ref, tick uint32) {
	c := t.Conn(r)
	c.Touch(tick)
	s := atomic.LoadUint32(&c.state)
	var n State
	switch State(s & stateMask) {
	case StateUnreplied:
		if r.Forward() {
			return
		}
		n = StateReplied
	case StateReplied:
		if int32(tick-atomic.LoadUint32(&c.created)) <= streamAfter {
			return
		}
		n = StateStream
	default:
		return
	}
	// One of several workers that see the same change makes it.
	atomic.CompareAndSwapUint32(&c.state, s, s&^stateMask|uint32(n))
}
