package conntrack

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/udp"
)

// A sweep looks once at every connection. It takes sweepTicks, which is the precision of
// timeouts. In each tick a 64th of the table is due, but not more than mostDue: beyond 4
// million connections a sweep takes longer, 16 seconds with 16 million. An idle worker,
// whose caches hold nothing of the table, spends 1.2 % of a core on it (12 ns each).
// The workers divide the due part among them.
const (
	sweepTicks = 4 * TicksPerSecond
	mostDue    = 1 << 16
	// allDue, as a lag, makes everything due.
	allDue = -1 << 20
	// lateTicks is how far the workers may be behind before Run does their part.
	lateTicks = 2 * TicksPerSecond
	// chunkLen is the number of connections that a worker takes at once and looks at over
	// some rounds. A chunk saves writes to sweepProgress.at, which all workers share.
	chunkLen = 256
	// In one step a worker reads at most stepLook connections (about 0.4 us) and
	// deletes at most stepExpire (about 2 us).
	stepLook   = 64
	stepExpire = 16
)

// sweepProgress is the state of the current sweep. The word at is the tick at which the
// sweep began<<32 | the next connection that no worker has taken.
type sweepProgress struct {
	_           [64]byte
	at          atomic.Uint64
	_           [56]byte
	stateCounts [flowstate.Count]atomic.Uint32 // of this sweep, so far
}

// sweepChunk is the part of a sweep that a worker has taken: next to end are still to do.
type sweepChunk struct {
	next, end   uint32
	stateCounts [flowstate.Count]uint32
	made        uint64 // connections that the worker had created at its last Age
}

// Age does the worker's part in ageing at tick, before a Quiesce: it deletes
// connections that have expired. A worker calls it once per round and takes a
// bounded step in it; one more for every 16 connections that it has made since, so
// that it clears up as fast as it creates. It reports whether there was anything to
// look at: a worker without packets goes on, with a Quiesce after each, until there
// is not.
//
// A worker that is asleep or stuck leaves its part to the others. Only the rest of a chunk
// waits for the next sweep.
func (w *Worker) Age(tick uint32) bool {
	made := w.count.created.Load()
	steps := 1 + (made-w.chunk.made)/stepExpire
	w.chunk.made = made
	for ; steps > 0; steps-- {
		if !w.ageing() && !w.takeChunk(tick, 0, chunkLen) {
			return false
		}
		w.step(tick)
	}
	return true
}

func (w *Worker) ageing() bool { return w.chunk.next != w.chunk.end }

// takeChunk takes up to most connections of those that were due lag ticks ago. The first
// call after the end of a sweep begins the next sweep and publishes the state counts.
func (w *Worker) takeChunk(tick uint32, lag int32, most uint32) bool {
	t := w.t
	for {
		at, bound := t.progress.at.Load(), t.bound.Load()
		next := uint32(at)
		// Signed: another worker's tick may be ahead of ours.
		elapsed := uint32(max(0, int32(tick-uint32(at>>32))-lag))
		if next >= bound {
			if elapsed < sweepLength(bound) || bound == 0 {
				return false
			}
			if t.progress.at.CompareAndSwap(at, uint64(tick)<<32) {
				t.publishStateCounts()
			}
			continue
		}
		share := uint64(bound) * uint64(min(elapsed+1, sweepTicks)) / sweepTicks
		due := uint32(min(share, uint64(elapsed+1)*mostDue))
		if next >= due {
			return false
		}
		end := min(next+most, due)
		if t.progress.at.CompareAndSwap(at, at&^0xffffffff|uint64(end)) {
			w.chunk.next, w.chunk.end = next, end
			return true
		}
	}
}

// sweepLength is how many ticks a sweep of bound connections takes.
func sweepLength(bound uint32) uint32 { return max(sweepTicks, bound/mostDue) }

func (t *Table) publishStateCounts() {
	for i := range t.stateCounts {
		t.stateCounts[i].Store(t.progress.stateCounts[i].Swap(0))
	}
}

// step looks at a part of the worker's chunk and returns the number of connections that
// had expired. Deleting a connection takes six scattered cache lines: step prefetches all
// of them before it needs the first.
func (w *Worker) step(tick uint32) int {
	t, s := w.t, &w.chunk
	var words [stepExpire]uint32
	var refs [2 * stepExpire]Ref
	n, conn := 0, s.next
	since := sweepLength(t.bound.Load())
	for end := min(s.end, s.next+stepLook); conn < end && n < stepExpire; conn++ {
		c := &t.conns[conn]
		word := atomic.LoadUint32(&c.state)
		if udp.MayGoOn(word) {
			t.current(conn)
			word = atomic.LoadUint32(&c.state)
		}
		if word&flowstate.Published == 0 {
			continue
		}
		if udp.MayBeHeard(word) {
			if now := udp.Hear(word, t.entries[2*conn].idle(tick), t.entries[2*conn+1].idle(tick), since); t.setState(c, word, now) {
				word = now
			}
		}
		if flowstate.IsFollowed(word) && t.IsShared() {
			t.endFollowing(conn, tick)
			word = atomic.LoadUint32(&c.state)
		}
		patience := int32(t.patience(c, word))
		if t.idle(conn, tick) > patience {
			t.noteSeen(conn)
		}
		if idle := t.idle(conn, tick); idle <= patience {
			s.stateCounts[word&flowstate.Mask]++
			if flowstate.SeemsClosed(word) && idle > int32(t.timeouts[flowstate.Close]) {
				t.setState(c, word, word|flowstate.Unconfirmed)
			}
			continue
		}
		words[n], refs[2*n], refs[2*n+1] = word, forwardRef(conn), reverseRef(conn)
		n++
	}
	s.next = conn
	expired := 0
	if n > 0 {
		expired = int(w.unlinkAll(words[:n], refs[:2*n], CauseExpired))
		w.count.expired.Add(uint64(expired))
	}
	if !w.ageing() {
		for i, n := range s.stateCounts {
			if n != 0 {
				t.progress.stateCounts[i].Add(n)
				s.stateCounts[i] = 0
			}
		}
	}
	return expired
}

// idle returns for how many ticks, as far as is noted, there was no packet of connection
// conn at tick: fewer than 0 if another worker's tick is ahead.
func (cs *cells) idle(conn, tick uint32) int32 {
	return int32(tick - atomic.LoadUint32(&cs.conns[conn].lastSeen))
}

// prefetchExpired asks for the entries of refs, and for the buckets that these are in.
func (t *Table) prefetchExpired(refs []Ref) {
	var h [2 * stepExpire]uint64
	prefetchFlows(&t.entries[0], &t.conns[0], &refs[0], len(refs))
	for i, r := range refs {
		h[i] = t.Hash(&t.entries[r-1].Key)
	}
	prefetchBuckets(&t.index.buckets[0], uint64(len(t.index.buckets)), &h[0], len(refs))
}

// manyHalfOpen is how many half-open TCP connections of one Service are more than
// clients make that mean it: then those that are silent for crowdedTicks go.
const (
	manyHalfOpen = 1024
	crowdedTicks = 10 * TicksPerSecond
)

// patience is timeout for connection c, in state word s, with regard to how many others
// its Service has half-open.
func (t *Table) patience(c *Conn, s uint32) uint32 {
	d := t.timeout(s)
	if state := flowstate.Of(s); (state == flowstate.SynSent || state == flowstate.SynRecv) && d > crowdedTicks && t.ServiceHalfOpen(atomic.LoadUint32(&c.ServiceID)) > manyHalfOpen {
		return crowdedTicks
	}
	return d
}

// timeout is after how many ticks without a packet a connection in state word s
// is forgotten. Where the endpoint is not heard the end may have been missed, and
// forgetting does no harm: the next packet makes the connection anew. A connection that may
// be dead
// (see mayBeDead) is kept for as long as a live one can be silent.
func (t *Table) timeout(s uint32) uint32 {
	d := t.timeouts[s&flowstate.Mask]
	if s&(flowstate.ClientOnly|flowstate.Doubted|flowstate.Unconfirmed) == 0 {
		return d
	}
	if state := flowstate.Of(s); s&flowstate.Doubted != 0 && (state == flowstate.FinWait || state == flowstate.LastAck) {
		d = t.timeouts[flowstate.Established] // the FIN was not taken, so far
	}
	return min(d, oneSided)
}

// oneSided is just above the 2 h 4 min of RFC 5382 REQ-5: TCP keeps
// connections alive every two hours.
const oneSided = (2*60 + 5) * 60 * TicksPerSecond
