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
	t.Entry(r).Touch(tick)
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

// Nothing in a datagram proves that its sender has the source address: an attacker who forges
// queries has them answered. He pays a datagram for each, so a UDP flow gets by time what it
// holds against others: only a flow of which both sides go on is proven, and of each flow the
// last datagram of its client counts for silentTicks.

// silentTicks is the silence after which a UDP flow no longer keeps its port, or its room,
// from a new flow that would be refused.
const silentTicks = 10 * TicksPerSecond

// heardOnce is the unit of heard.
const heardOnce = heard & -heard

// proven reports whether a UDP flow in state word s was heard from both sides at three looks
// of ageing, which are seconds apart.
func proven(s uint32) bool {
	return State(s&stateMask) == StateStream && s&heard == heard && s&clientOnly == 0
}

// unprovenUDP reports whether the endpoint has answered a UDP flow that is not proven: a
// forged query is answered as well (nf_conntrack: not ASSURED).
func unprovenUDP(s uint32) bool {
	switch State(s & stateMask) {
	case StateReplied, StateStream:
		return !proven(s)
	}
	return false
}

// mayBeHeard reports whether ageing asks when both sides of a UDP flow in state word s were
// heard.
func mayBeHeard(s uint32) bool {
	return s&(published|renumbered|clientOnly) == published && unprovenUDP(s) && s&heard != heard
}

// hear returns state word s of a UDP flow after a look of ageing. client and endpoint are the
// silence of each side, since is the time since the last look.
func hear(s, client, endpoint, since uint32) uint32 {
	if client > since || endpoint > since {
		return s
	}
	return s + heardOnce
}

// idle returns for how many ticks there was no packet of the entry, as of [Entry.Touch].
func (e *Entry) idle(now uint32) uint32 {
	return uint32(max(0, int32(now-atomic.LoadUint32(&e.seen))))
}
