package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/lb/counter"
)

// dropCounts counts dropped packets by reason.
type dropCounts [dropReasons]uint64

// publishedCounts is the readable copy of a worker's counters. The worker counts in
// fields of its own, with plain adds, and publishes them once per round, so that no
// packet costs an atomic add. The padding keeps the counters of two workers out of
// a shared cache line.
type publishedCounts struct {
	_      [64]byte
	counts [counter.Counters]atomic.Uint64
	drops  [dropReasons]atomic.Uint64
	_      [64]byte
}

func (p *publishedCounts) publish(counts *counter.Values, drops *dropCounts) {
	for i, v := range counts {
		if to := &p.counts[i]; to.Load() != v {
			to.Store(v)
		}
	}
	for i, v := range drops {
		if to := &p.drops[i]; to.Load() != v {
			to.Store(v)
		}
	}
}

// Counters are the counters of a worker since its start.
type Counters struct {
	counter.Values
	Drops map[string]uint64 // by reason; only those that occurred
}

func (p *publishedCounts) read() Counters {
	c := Counters{Drops: map[string]uint64{}}
	for i := range p.counts {
		c.Values[i] = p.counts[i].Load()
	}
	for i := range p.drops {
		if n := p.drops[i].Load(); n > 0 {
			c.Drops[Drop(i).String()] = n
		}
	}
	return c
}

// Counters returns the worker's counters as of the last publication.
func (w *Worker) Counters() Counters { return w.published.read() }
