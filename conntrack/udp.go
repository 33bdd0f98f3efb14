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
	if State(s&stateMask) == StateUnreplied && !r.Forward() {
		atomic.StoreUint32(&c.endpointNext, tick)
		// Of several workers that see the same change a single worker makes it.
		t.setState(c, s, s&^(stateMask|slow)|uint32(StateReplied))
		return
	}
	t.current(r.Conn())
}

// mayGoOn reports whether a connection in state word s is a UDP flow that becomes a stream
// when it goes on: the endpoint has answered, or the answers do not pass here.
func mayGoOn(s uint32) bool {
	if s&(published|renumbered|slow) != published {
		return false
	}
	switch State(s & stateMask) {
	case StateReplied:
		return true
	case StateUnreplied:
		return s&clientOnly != 0
	}
	return false
}

// goesOn reports whether the UDP flow, for whose state word s mayGoOn is true, has gone on:
// there was a packet two seconds after the first packet, and after the tick of the first
// answer. It follows from the latest packet, so that packets on the fast path need not ask.
func (c *Conn) goesOn(s uint32) bool {
	lasted := int32(c.LastSeen() - c.Created())
	if State(s&stateMask) == StateReplied && int32(c.LastSeen()-atomic.LoadUint32(&c.endpointNext)) <= 0 {
		return false
	}
	return lasted > streamAfter
}
