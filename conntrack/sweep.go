package conntrack

import (
	"context"
	"sync/atomic"
	"time"
)

// sweeper is the state of ageing between two calls of Sweep.
type sweeper struct {
	w      *Worker
	hand   uint32 // next connection to look at
	census [numStates]uint32
}

// sweepTurn is how many calls of Sweep a turn of the table takes under Run: four
// seconds, so that timeouts are kept to that, and a table of 3 million flows costs
// about one per cent of a core.
const (
	sweepTurn = 4 * TicksPerSecond
	sweepMin  = 4096
)

// Run ages and reclaims until ctx ends. It is the table's control goroutine.
func (t *Table) Run(ctx context.Context) {
	collapsed := make(chan struct{})
	go func() {
		defer close(collapsed)
		t.collapse(ctx)
	}()
	defer func() { <-collapsed }()
	ticker := time.NewTicker(time.Second / TicksPerSecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			t.Sweep(t.Tick(), max(sweepMin, int(t.bound.Load())/sweepTurn+1))
		}
	}
}

// Sweep looks at the next budget connections, at most once at each, deletes those
// that have expired at tick, and frees what no worker can see any more. It returns
// how many expired.
func (t *Table) Sweep(tick uint32, budget int) int {
	t.sweepMu.Lock()
	defer t.sweepMu.Unlock()
	if t.closed {
		return 0
	}
	t.collect()
	w := t.sweep.w
	w.Online()
	t.head.note(tick, time.Now())
	expired := t.age(w, tick, budget)
	// With no worker inside, three rounds free all that was deleted above.
	for range 3 {
		w.Quiesce()
		w.reclaim(len(t.conns), false)
	}
	w.Offline()
	return expired
}

func (t *Table) age(w *Worker, tick uint32, budget int) (expired int) {
	s := &t.sweep
	for ; budget > 0; budget-- {
		if s.hand >= t.bound.Load() {
			t.endTurn()
			return expired
		}
		if s.hand%256 == 0 {
			w.Quiesce()
		}
		c := &t.conns[s.hand]
		word := atomic.LoadUint32(&c.state)
		state := word & stateMask
		if word&published != 0 {
			// Signed: a worker's tick may be ahead of ours.
			idle := int32(tick - atomic.LoadUint32(&c.lastSeen))
			if idle > int32(t.timeout(word)) && w.unlinkIn(s.hand, word) {
				w.count.expired.Add(1)
				expired++
			} else {
				s.census[state]++
			}
		}
		s.hand++
	}
	return expired
}

// timeout is after how many ticks without a packet a connection in state word s
// is forgotten. Of one whose endpoint is not heard the end may have been missed,
// and forgetting it does no harm: its next packet makes it anew.
func (t *Table) timeout(s uint32) uint32 {
	d := t.timeouts[s&stateMask]
	if s&clientOnly != 0 {
		d = min(d, oneSided)
	}
	return d
}

// oneSided is just above what RFC 5382 REQ-5 asks for, 2 h 4 min: TCP keeps
// connections alive every two hours.
const oneSided = (2*60 + 5) * 60 * TicksPerSecond

// endTurn publishes what the turn has counted.
func (t *Table) endTurn() {
	for i := range t.sweep.census {
		t.census[i].Store(t.sweep.census[i])
		t.sweep.census[i] = 0
	}
	t.sweep.hand = 0
}
