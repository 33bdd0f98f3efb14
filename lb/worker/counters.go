package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/denylist"
)

// dropCounts counts dropped packets by reason.
type dropCounts [dropReasons]uint64

// denyCounts counts packets by the deny list that has their source.
type denyCounts [denylist.MaxLists]uint64

// publishedCounts is the readable copy of a worker's counters. The worker counts in
// fields of its own, with plain adds, and publishes them once per round, so that no
// packet costs an atomic add. The padding keeps the counters of two workers out of
// a shared cache line.
type publishedCounts struct {
	_      [64]byte
	counts [counter.Counters]atomic.Uint64
	drops  [dropReasons]atomic.Uint64
	denied [denylist.MaxLists]atomic.Uint64
	_      [64]byte
}

func (p *publishedCounts) publish(counts *counter.Values, drops *dropCounts, denied *denyCounts) {
	for i, v := range counts {
		if to := &p.counts[i]; to.Load() != v {
			to.Store(v)
		}
	}
	for i, v := range drops {
		if to := &p.drops[i]; to.Load() != v {
			to.Store(v)
			if i == int(DropDenied) {
				p.publishDenied(denied)
			}
		}
	}
}

// publishDenied is called when there is another packet of a deny list: others do not look at the lists.
func (p *publishedCounts) publishDenied(denied *denyCounts) {
	for i, v := range denied {
		p.denied[i].Store(v)
	}
}

// Counters are the counters of a worker since its start.
type Counters struct {
	counter.Values
	Drops map[string]uint64 // by reason; only those that occurred
	// Denied are the packets that were dropped for each deny list.
	Denied [denylist.MaxLists]uint64
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
	for i := range p.denied {
		c.Denied[i] = p.denied[i].Load()
	}
	return c
}
