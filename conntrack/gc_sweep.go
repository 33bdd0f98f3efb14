package conntrack

import (
	"context"
	"time"
)

// RunEvery is how often Run is to be told to look.
const RunEvery = time.Second / 4

// At a look Run looks, in place of late workers, at 1 in lateShare of all connections, or
// at lateLeast. The former is a sweep in a second.
const (
	lateShare = int(time.Second / RunEvery)
	lateLeast = 16384
)

// Run is the table's control goroutine, until ctx ends. It looks when ticks says so. It notes the time for the process that
// restores the table, and frees connections that control goroutines have deleted. It ages those
// that workers have left for two seconds: all workers are stuck, or they are too few for their
// rounds to suffice.
func (t *Table) Run(ctx context.Context, ticks <-chan time.Time) {
	collapsed := make(chan struct{})
	go func() {
		defer close(collapsed)
		t.collapse(ctx)
	}()
	defer func() { <-collapsed }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			t.sweep(t.Tick(), lateTicks, max(lateLeast, int(t.bound.Load())/lateShare))
		}
	}
}

// Sweep looks at the next budget connections whether or not they are due, at most once at
// each. It deletes those that have expired at tick, and frees connections that no worker
// can see any more. It returns how many expired. Workers may be ageing at the same time.
func (t *Table) Sweep(tick uint32, budget int) int {
	return t.sweep(tick, allDue, min(budget, int(t.bound.Load())))
}

// sweep looks at up to budget connections of those that were due lag ticks ago.
func (t *Table) sweep(tick uint32, lag int32, budget int) (expired int) {
	t.sweepMu.Lock()
	defer t.sweepMu.Unlock()
	if t.closed {
		return 0
	}
	t.collect()
	w := t.sweeper
	w.Online()
	t.head.note(tick, time.Now())
	for budget > 0 && w.takeChunk(tick, lag, uint32(min(budget, chunkLen))) {
		budget -= int(w.chunk.end - w.chunk.next)
		for w.ageing() {
			expired += w.step(tick)
		}
		w.Quiesce()
	}
	// With no worker inside, three rounds free all that was deleted above.
	for range 3 {
		w.Quiesce()
		w.reclaim(len(t.conns), false)
	}
	w.Offline()
	return expired
}
