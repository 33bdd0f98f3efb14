package conntrack

import (
	"sync/atomic"
	"unsafe"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// The words of an entry that the fast path reads besides the recipe, and their order to the
// state of the connection: see "The fast path" in the package comment.

// NextHop returns the word that [Table.Settle] has got for direction r. It has the number
// of the adjacency in bits 0 to 15, the MTU of the route in 16 to 31, and the stamp of the
// adjacency in 32 to 63. The word is good while the adjacency has that stamp (see
// [github.com/weirlb/weir/lb/route.Adjacency.Stamp]). Of a direction that is not steady the
// stamp is 0, which no adjacency has.
func (cs *cells) NextHop(r Ref) uint64 { return atomic.LoadUint64(cs.nextHop(r)) }

// NextHop4 is [Table.NextHop] of an IPv4 entry.
func (e *Entry) NextHop4() uint64 { return atomic.LoadUint64(&e.Key.W[1]) }

// NextHop6 is [Table.NextHop] of an IPv6 entry, in a mode without a reverse direction
// of the other entry of the connection.
func (e *Entry) NextHop6() uint64 { return atomic.LoadUint64(&e.Addr4) }

// Tuple returns the key alone.
func (e *Entry) Tuple() Key {
	k := Key{W: [5]uint64{0: e.Key.W[0], 4: e.Key.W[4]}}
	if e.Key.Family() != 4 {
		k = e.Key
	}
	return k
}

// nextHop returns where the next-hop word of entry r is: where neither the key nor the
// recipe has anything. A mode without a reverse direction uses none of the other entry.
func (cs *cells) nextHop(r Ref) *uint64 {
	e := &cs.entries[r-1]
	switch {
	case e.Key.Family() == 4:
		return &e.Key.W[1]
	case e.Mode.DSR():
		return &cs.entries[(r-1)^1].Addr4
	}
	return &e.Addr4
}

// Settle lets packets of direction r take the fast path by a word, if the direction is steady.
// The upper half of the word is 0 if the next hop is not known.
func (cs *cells) Settle(r Ref, word uint64) {
	if word>>32 != 0 {
		cs.Resettle(r, cs.NextHop(r), word)
	}
}

// Resettle is Settle in place of the word was, which [Table.NextHop] has returned. It reports
// whether another word is there now.
func (cs *cells) Resettle(r Ref, was, word uint64) bool {
	switch s := atomic.LoadUint32(&cs.conns[r.Conn()].state); {
	case flowstate.IsSteadyIn(s, uint32(r-1)&1):
	case cs.IsShared() && flowstate.IsFollowed(s):
		word ^= Followed
	default:
		return false
	}
	if word == was {
		return false
	}
	cs.forgetNumbers(r)
	return atomic.CompareAndSwapUint64(cs.nextHop(r), was, word)
}

// Followed is the bit of a next-hop word whose stamp is that of the adjacency but for this
// bit. The workers thus take it for another stamp, and follow each packet on the slow path. A
// program that reads a shared table may forward the packet, if it calls [Conn.Sample] for each
// segment: a connection that was established a moment ago may end before the next tick.
const Followed = 1 << 63

// endFollowing makes a connection steady that has been followed long enough, although
// no worker gets packets of it any more.
func (cs *cells) endFollowing(conn, tick uint32) {
	c := &cs.conns[conn]
	s := atomic.LoadUint32(&c.state)
	if !flowstate.IsFollowed(s) || s&flowstate.Changing != 0 || tick-c.Created() <= tcp.FreshTicks {
		return
	}
	if !atomic.CompareAndSwapUint32(&c.state, s, s&^(flowstate.Young|flowstate.Slow)) {
		return
	}
	cs.endFollowingBy(forwardRef(conn))
	if !cs.entries[2*conn].Mode.DSR() {
		cs.endFollowingBy(reverseRef(conn))
	}
}

// endFollowingBy is endFollowing of the next-hop word of entry r.
func (cs *cells) endFollowingBy(r Ref) {
	if was := cs.NextHop(r); was>>32 != 0 {
		cs.Resettle(r, was, was^Followed)
	}
}

// IsShared reports whether others than the workers forward packets by the table: then a
// connection may be settled only after the packets that the workers have of it have left,
// or later packets overtake them.
func (cs *cells) IsShared() bool { return cs.nextHops != 0 }

// settleNew is [Table.Settle] of a translated connection that no other worker sees yet, after
// its recipes are complete. The publication of the entries orders the store. In a shared table
// the worker settles the connection later.
func (cs *cells) settleNew(conn uint32, f *NewFlow) {
	if !cs.IsShared() && f.NextHop>>32 != 0 && flowstate.IsSteadyIn(firstState(f), 0) {
		*cs.nextHop(forwardRef(conn)) = f.NextHop
	}
}

// Unsettle makes the next packet of each direction take the slow path.
func (cs *cells) Unsettle(r Ref) { cs.unsettle(r.Conn()) }

func (cs *cells) unsettle(conn uint32) {
	number := uint64(cs.unsettled.Add(1))
	atomic.StoreUint64(cs.nextHop(forwardRef(conn)), number)
	if !cs.entries[2*conn].Mode.DSR() {
		atomic.StoreUint64(cs.nextHop(reverseRef(conn)), number)
	}
}

// changeState moves the connection from state word s to n, unless the state is not s any
// more. An entry that is not steady in n is not when all concurrent calls have returned.
func (cs *cells) changeState(c *Conn, s, n uint32) bool {
	if flowstate.IsSteady(s) == 0 || n&flowstate.Slow == 0 && flowstate.IsSteady(s)&^flowstate.IsSteady(n) == 0 || flowstate.IsFollowed(s) && flowstate.IsFollowed(n) {
		return atomic.CompareAndSwapUint32(&c.state, s, n)
	}
	left := s&^flowstate.Young | flowstate.Slow // neither steady nor followed
	if left != s && !atomic.CompareAndSwapUint32(&c.state, s, left) {
		return false
	}
	cs.unsettle(cs.number(c))
	return atomic.CompareAndSwapUint32(&c.state, left, n)
}

// number returns the number of connection c.
func (cs *cells) number(c *Conn) uint32 {
	return uint32((uintptr(unsafe.Pointer(c)) - uintptr(unsafe.Pointer(&cs.conns[0]))) / unsafe.Sizeof(*c))
}

// forget clears the next-hop words of a connection that no worker sees.
func (cs *cells) forget(conn uint32) {
	fw := &cs.entries[2*conn]
	if f := fw.Key.Family(); f != 4 && f != 6 {
		return
	}
	*cs.nextHop(forwardRef(conn)) = 0
	if !fw.Mode.DSR() {
		*cs.nextHop(reverseRef(conn)) = 0
	}
}

// PrefetchConn asks for the cache line that [Table.Sample] writes.
func (cs *cells) PrefetchConn(r Ref) { prefetchConn(&cs.conns[r.Conn()]) }

// Sample is [Conn.Sample] of a segment in direction r. It writes the numbers to an IPv4 entry,
// for [Entry.Note], and passes those that were there on to the Conn.
func (cs *cells) Sample(r Ref, seq, end, ack uint32) {
	e, c := &cs.entries[r-1], &cs.conns[r.Conn()]
	if e.Key.Family() != 4 {
		c.Sample(r.Forward(), seq, end, ack)
		return
	}
	if n := atomic.LoadUint64(&e.Key.W[2]); n != 0 {
		c.catchUp(r.Forward(), uint32(n>>32), uint32(n))
	}
	if c.Sample(r.Forward(), seq, end, ack) {
		storeRelaxed64(&e.Key.W[2], uint64(end)<<32|uint64(ack))
	}
}

// Touch notes a packet on the fast path, as [Conn.Touch] does on the slow one. It reports
// whether the packet is the first of its direction in the tick.
func (e *Entry) Touch(tick uint32) bool {
	if atomic.LoadUint32(&e.seen) == tick {
		return false
	}
	storeRelaxed(&e.seen, tick)
	return true
}

// Note notes in an IPv4 entry the numbers of a segment with ACK, as of [Conn.Sample]: the Conn
// would be another cache line. Of both numbers it keeps the higher, as a segment may be sent
// again. It returns true, and notes nothing, if either number is not in the same block of 64 kB as
// the number in the entry, or if there is none. The segment may then be foreign: the caller passes
// it to [Table.Sample].
func (e *Entry) Note(end, ack uint32) bool {
	was := atomic.LoadUint64(&e.Key.W[2])
	const blocks = (milestone-1)<<32 | (milestone - 1)
	if was == 0 || (was^(uint64(end)<<32|uint64(ack)))&^blocks != 0 {
		return true
	}
	storeRelaxed64(&e.Key.W[2], uint64(max(uint32(was>>32), end))<<32|uint64(max(uint32(was), ack)))
	return false
}

// noteNumbers moves the numbers that [Entry.Note] has left in the entries to an established
// Conn. Numbers that stayed in an entry would seem to be ahead of the Conn again after 4 GB.
func (cs *cells) noteNumbers(conn uint32) {
	for _, r := range [2]Ref{forwardRef(conn), reverseRef(conn)} {
		e := &cs.entries[r-1]
		if e.Key.Family() != 4 || e.Mode.DSR() && !r.Forward() {
			return
		}
		if n := atomic.LoadUint64(&e.Key.W[2]); n != 0 {
			cs.conns[conn].catchUp(r.Forward(), uint32(n>>32), uint32(n))
			atomic.CompareAndSwapUint64(&e.Key.W[2], n, 0)
		}
	}
}

// forgetNumbers forgets what Note has noted for the direction of entry r, maybe of an earlier
// connection with the same tuple.
func (cs *cells) forgetNumbers(r Ref) {
	if e := &cs.entries[r-1]; e.Key.Family() == 4 {
		storeRelaxed64(&e.Key.W[2], 0)
	}
}

// noteSeen notes in the Conn the packets of both directions on the fast path. The numbers of a
// connection that is not steady are older than the Conn's, or of an earlier connection.
func (cs *cells) noteSeen(conn uint32) {
	c := &cs.conns[conn]
	last := atomic.LoadUint32(&c.lastSeen)
	latest := last
	for i := 2 * conn; i < 2*conn+2; i++ {
		if seen := atomic.LoadUint32(&cs.entries[i].seen); int32(seen-latest) > 0 {
			latest = seen
		}
	}
	if latest != last {
		storeRelaxed(&c.lastSeen, latest)
	}
	if atomic.LoadUint32(&c.state)&(flowstate.Mask|flowstate.Slow) == uint32(flowstate.Established) {
		cs.noteNumbers(conn)
	}
}
