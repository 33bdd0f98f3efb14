package conntrack

import "sync/atomic"

// evict makes room when free connections run short. A hand goes round the table
// and takes those that only the client has been heard of; when a whole turn found
// none, those that are over; when a turn found none of these either it rests, as
// there is nothing to be had. New connections take the numbers behind the hand,
// so that what goes is about a turn old.
//
// What it takes can be used again only after every worker has passed a batch,
// which is why it begins before the last one is gone.
func (w *Worker) evict(tick uint32) {
	t := w.t
	bound := t.bound.Load()
	if until := t.restUntil.Load(); bound == 0 || until != 0 && int32(until-tick) > 0 {
		return
	}
	alsoEnded := t.vain.Load() >= bound
	want := 2 * t.block
	hand := t.hand.Load()
	looked := uint32(0)
	for found := uint32(0); looked < min(t.look, bound) && found < want; looked++ {
		if hand >= bound {
			hand = 0
		}
		s := atomic.LoadUint32(&t.conns[hand].state)
		class := evictionOf(s)
		if s&published != 0 && (class == evictHalfOpen || alsoEnded && class == evictEnded) && w.unlinkIn(hand, s) {
			w.count.evicted.Add(1)
			found++
			t.vain.Store(0)
		}
		hand++
	}
	t.hand.Store(hand)
	if v := t.vain.Add(looked); v >= 2*bound+t.look {
		// A turn costs about 10 ns per connection: rest twenty times as long.
		t.restUntil.Store(tick + 1 + bound/300_000)
		t.vain.Store(0)
	}
}
