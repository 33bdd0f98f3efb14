// Package aligned has tickers that are due together: those whose periods are multiples of each other
// wake the process at the same time. An idle process pays for each time at which it wakes, a dozen
// switches of threads, far more than for what it does then.
package aligned

import (
	"sync"
	"time"
)

// epoch is when all tickers were due.
var epoch = time.Now()

// Ticker is a time.Ticker but for when it begins.
type Ticker struct {
	C <-chan time.Time

	c     chan time.Time
	timer *time.Timer

	mu      sync.Mutex
	period  time.Duration // guarded by mu
	stopped bool          // guarded by mu
}

// NewTicker returns a Ticker of a period, which is above 0.
func NewTicker(period time.Duration) *Ticker {
	c := make(chan time.Time, 1)
	t := &Ticker{C: c, c: c, period: period}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(t.wait(), t.tick)
	return t
}

// Reset gives the Ticker another period. A tick of the one before may still come.
func (t *Ticker) Reset(period time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.period = period
	t.timer.Reset(t.wait())
}

// Stop ends the Ticker.
func (t *Ticker) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	t.timer.Stop()
}

func (t *Ticker) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	select {
	case t.c <- time.Now():
	default: // the last one was not taken yet
	}
	t.timer.Reset(t.wait())
}

// wait is until the next multiple of the period. Preconditions: t.mu is held.
func (t *Ticker) wait() time.Duration { return t.period - time.Since(epoch)%t.period }
