package healthz

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// lateAfter is how long an update may be pending before it is reported, as in
	// kube-proxy: twice its full sync period of 30 s. The state that is served meanwhile is
	// the last valid state, as while an API server is away. So a late update is a problem
	// and a metric, and fails no probe: all nodes see the same objects, and would go out of
	// service together.
	lateAfter = time.Minute
	// stuckAfter is the least time without any progress after which only a restart helps.
	// As much again at most is added at random, so that the nodes of a fleet do not restart
	// together.
	stuckAfter = 15 * time.Minute
)

// Pending follows the update that is being worked on, from the source's objects to the packet
// path. The zero value has no update. Methods may be called concurrently, and return at once.
type Pending struct {
	mu       sync.Mutex
	since    time.Time     // zero: no update
	progress time.Time     // the last step
	patience time.Duration // longest time for a step
	last     time.Time     // the last publication
}

// Begin notes that work on an update begins, before its objects are merged.
func (p *Pending) Begin(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since, p.progress, p.patience = now, now, stuckAfter+rand.N(stuckAfter)
}

// Step notes progress of the update, if there is one.
func (p *Pending) Step(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress = now
}

// Published notes a publication, which is a step too.
func (p *Pending) Published(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress, p.last = now, now
}

// End notes that there is nothing to do any more.
func (p *Pending) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Time{}
}

// Working notes that work on an update begins, and ends when done is called.
func (p *Pending) Working() (done func()) {
	p.Begin(time.Now())
	return p.End
}

// Last is the time of the last publication, zero without one.
func (p *Pending) Last() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// Age is for how long the update has been pending, 0 without one.
func (p *Pending) Age(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		return 0
	}
	return max(now.Sub(p.since), 0)
}

// Late is the problem of an update that is late, "" for none. It does not change while the update
// is pending.
func (p *Pending) Late(now time.Time) string {
	if p.Age(now) <= lateAfter {
		return ""
	}
	return fmt.Sprintf("an update has been pending for more than %s: the state before it is served", lateAfter)
}

// Stuck is the reason for which only a restart helps: the update makes no progress. It is ""
// otherwise.
func (p *Pending) Stuck(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		return ""
	}
	if still := now.Sub(p.progress); still > p.patience {
		return fmt.Sprintf("an update has made no progress for %s", still.Round(time.Second))
	}
	return ""
}
