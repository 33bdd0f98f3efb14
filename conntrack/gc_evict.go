package conntrack

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// evict makes room when free connections run short. A hand goes round the table, as in the
// CLOCK algorithm. Of the connections that it passes in a call, those of the lowest eviction
// class go first: within a class the first passed. New connections take the numbers behind
// the hand, so that it meets them a round later. After two rounds that found nothing,
// eviction pauses.
//
// Evicted connections can be used again only after every worker has passed a batch.
// Eviction therefore begins before the last free connection is gone.
func (w *Worker) evict(tick uint32) {
	t := w.t
	bound := t.bound.Load()
	until := t.pausedUntil.Load()
	paused := until != 0 && int32(until-tick) > 0
	if bound == 0 || paused || !w.mayEvict(tick) {
		return
	}
	from, want := t.hand.Load(), 2*t.block
	if from >= bound {
		from = 0
	}
	looked, last, part := w.survey(from, bound, want, tick)
	t.hand.Store((from + looked) % bound)
	if found := w.evictUpTo(from, bound, looked, last, part, tick); found > 0 {
		w.count.evicted.Add(uint64(found))
		t.lookedSinceFind.Store(0)
	} else if v := t.lookedSinceFind.Add(looked); v >= 2*bound+t.look {
		// A round costs about 10 ns per connection: pause twenty times as long.
		t.pausedUntil.Store(tick + 1 + bound/300_000)
		t.lookedSinceFind.Store(0)
	}
}

// mayEvict bounds the cost of refusing: an eviction for as many attempts as it makes room
// for, but at least once per tick.
func (w *Worker) mayEvict(tick uint32) bool {
	made := w.count.created.Load() + w.count.full.Load()
	if made-w.evictedAt < uint64(w.t.block) && w.evictTick == tick {
		return false
	}
	w.evictedAt, w.evictTick = made, tick
	return true
}

// survey looks at connections from number from on, until want of the first class are seen.
// It returns the number of connections it looked at. Of these, all of the classes below
// last, and part of class last, make want connections.
func (w *Worker) survey(from, bound, want, tick uint32) (looked uint32, last evictionClass, part uint32) {
	var seen [evictNever + 1]uint32
	for conn := from; looked < min(w.t.look, bound) && seen[evictHalfOpen] < want; looked++ {
		class, _ := w.t.evictionOf(conn, tick)
		seen[class]++
		if conn++; conn == bound {
			conn = 0
		}
	}
	for last = evictHalfOpen; last < evictNever; last++ {
		if seen[last] >= want {
			return looked, last, want
		}
		want -= seen[last]
	}
	return looked, evictNever, 0
}

// evictUpTo takes connections of classes below last, and part of last, from those
// that survey looked at. It returns how many.
func (w *Worker) evictUpTo(from, bound, looked uint32, last evictionClass, part, tick uint32) (found uint32) {
	t := w.t
	var words [stepExpire]uint32
	var refs [2 * stepExpire]Ref
	n := 0
	for conn := from; looked > 0; looked-- {
		class, s := t.evictionOf(conn, tick)
		if class < last || class == last && part > 0 {
			if class == last {
				part--
			}
			words[n], refs[2*n], refs[2*n+1] = s, forwardRef(conn), reverseRef(conn)
			if n++; n == stepExpire {
				found += w.unlinkAll(words[:n], refs[:2*n], CauseEvicted)
				n = 0
			}
		}
		if conn++; conn == bound {
			conn = 0
		}
	}
	return found + w.unlinkAll(words[:n], refs[:2*n], CauseEvicted)
}

// unlinkAll removes the connections, two refs of each, that are still in the state words
// given. It returns how many were.
func (w *Worker) unlinkAll(words []uint32, refs []Ref, cause Cause) (n uint32) {
	if len(words) == 0 {
		return 0
	}
	w.t.prefetchExpired(refs)
	for i, s := range words {
		if w.unlinkIn(refs[2*i].Conn(), s, cause) {
			n++
		}
	}
	return n
}

// evictionOf returns the eviction class of connection conn at tick, and the state
// word that it follows from.
func (fl *flows) evictionOf(conn, tick uint32) (evictionClass, uint32) {
	c := &fl.conns[conn]
	s := atomic.LoadUint32(&c.state)
	if flowstate.IsSteady(s) != 0 {
		fl.current(conn)
		s = atomic.LoadUint32(&c.state)
	}
	if s&flowstate.Published == 0 {
		return evictNever, s
	}
	client := uint32(0)
	if flowstate.Proven(s) {
		client = fl.entries[2*conn].idle(tick)
	}
	return evictionOf(s, c.Idle(tick), client, uint32(max(0, int32(c.LastSeen()-c.Created())))), s
}
