package conntrack

import "sync/atomic"

// streamAfter is the age from which a UDP flow with answers counts as a stream,
// as in nf_conntrack_proto_udp.
const streamAfter = 2 * TicksPerSecond

// TrackUDP follows a UDP packet of the entry r: an answered flow that goes on for two
// seconds ages like a stream and not like a query.
func (t *Table) TrackUDP(r Ref, tick uint32) {
	c := t.Conn(r)
	c.Touch(tick)
	s := atomic.LoadUint32(&c.state)
	if s&renumbered != 0 {
		return // the next packet makes the change
	}
	if s&slow != 0 && atomic.CompareAndSwapUint32(&c.state, s, s&^slow) {
		s &^= slow // a change that failed has left it
	}
	var n State
	switch State(s & stateMask) {
	case StateUnreplied:
		switch {
		case !r.Forward():
			n = StateReplied
		case s&clientOnly != 0 && c.older(tick, streamAfter):
			n = StateStream // answers do not pass here: going on has to do
		default:
			return
		}
	case StateReplied:
		if !c.older(tick, streamAfter) {
			return
		}
		n = StateStream
	default:
		return
	}
	// Of several workers that see the same change a single worker makes it.
	t.setState(c, s, s&^(stateMask|slow)|uint32(n))
}

func (c *Conn) older(tick, age uint32) bool {
	return int32(tick-atomic.LoadUint32(&c.created)-age) > 0
}
