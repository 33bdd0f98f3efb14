package conntrack

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// Table is the flow table. Methods may be called from any goroutine. Each part owns its words; those
// that are embedded have methods for other packages too.
type Table struct {
	hasher   // hashes of keys
	clock    // ticks
	flows    // connections, entries and counts
	pool     // numbers of connections: free, retired, used
	index    index
	ports    ports
	*records // of beginnings and ends; nil: nothing is recorded

	// Fixed after Open.
	timeouts [flowstate.Count]uint32
	head     *header
	mem      *mapping
	reserve  uint32 // below that many free ones connections are evicted
	look     uint32 // connections that an eviction looks at
	restored Restoration

	_               [64]byte
	hand            atomic.Uint32 // where the next eviction looks
	lookedSinceFind atomic.Uint32 // connections that evictions passed since one was found
	pausedUntil     atomic.Uint32 // tick before which nothing is evicted; 0 = none
	_               [52]byte

	progress sweepProgress

	workers     []Worker // the caller's, then the control goroutines'
	control     chan *Worker
	sweepMu     sync.Mutex
	sweeper     *Worker                        // guarded by sweepMu
	stateCounts [flowstate.Count]atomic.Uint32 // of the last whole sweep
	closing     atomic.Bool
	closed      bool // guarded by sweepMu
}

// clock counts ticks.
type clock struct {
	base     time.Time // when Tick was baseTick
	baseTick uint32
}

// controlHandles is how many control goroutines may be inside the table at once;
// more wait for each other.
const controlHandles = 16

// Worker returns the handle of worker i (0 <= i < Config.Workers). It is offline until the
// first Online or Quiesce.
func (t *Table) Worker(i int) *Worker { return &t.workers[i] }

// acquire lends a control goroutine a handle, online; nil once the table is closed.
func (t *Table) acquire() *Worker {
	w := <-t.control
	if w != nil {
		w.Online()
	}
	return w
}

// yield takes the handle back. Retired connections stay with the handle until there is a
// block, or the next Sweep. Otherwise many deletions would make as many lists of a single
// connection.
func (t *Table) yield(w *Worker) {
	w.leave()
	t.control <- w
}

// Tick returns the coarse time now, in 1/TicksPerSecond seconds since the table
// was first made; it carries on over restoration. Workers call it once per batch.
func (c *clock) Tick() uint32 {
	return c.baseTick + uint32(time.Since(c.base)*TicksPerSecond/time.Second)
}

// Delete is Worker.Delete for control goroutines, usually from inside Range.
func (t *Table) Delete(r Ref) bool {
	w := t.acquire()
	if w == nil {
		return false
	}
	defer t.yield(w)
	return w.Delete(r)
}

// Range calls f with the forward entry of every connection until f returns false.
// The Ref is good during that call only. Connections that come and go meanwhile
// may be missed; those that stay are seen once. f may call the table's methods.
func (t *Table) Range(f func(Ref) bool) { t.RangePart(0, ^uint32(0), f) }

// RangePart is Range of the connections numbered from up to from+n. It returns the number at
// which to go on, 0 when there are no more. A caller that waits between two parts does not
// keep the numbers of deleted connections from being used again.
func (t *Table) RangePart(from, n uint32, f func(Ref) bool) (next uint32) {
	if t.closing.Load() {
		return 0
	}
	w := t.acquire()
	if w == nil {
		return 0
	}
	defer t.yield(w)
	end := from + min(n, ^uint32(0)-from)
	for conn := from; conn < min(t.bound.Load(), end); conn++ {
		if conn%256 == 0 {
			w.Quiesce()
		}
		if atomic.LoadUint32(&t.conns[conn].state)&flowstate.Published != 0 && !f(forwardRef(conn)) {
			return conn + 1
		}
	}
	if end >= t.bound.Load() {
		return 0
	}
	return end
}

// collect moves the retired connections of idle control handles into limbo.
func (t *Table) collect() {
	for range controlHandles {
		select {
		case w := <-t.control:
			if w.pending.n != 0 {
				w.Online()
				w.Offline()
			}
			t.control <- w
		default:
			return
		}
	}
}

// Synchronize returns when every online worker has passed a batch since the call: then no
// worker sees data that was unpublished before it (a snapshot of frontends, an endpoint's
// number). It is for control goroutines.
func (t *Table) Synchronize(ctx context.Context) error {
	w := t.acquire()
	if w == nil {
		return os.ErrClosed
	}
	defer t.yield(w)
	for target := t.epoch.Load() + 2; t.epoch.Load() < target; {
		w.Quiesce()
		w.reclaim(1<<20, true)
		w.Offline()
		select {
		case <-ctx.Done():
			w.Online()
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
		w.Online()
	}
	return nil
}

// Restored reports whether the table holds the connections of an earlier process.
func (t *Table) Restored() bool { return t.restored.Restored }

// Restoration reports how Open treated an existing file.
func (t *Table) Restoration() Restoration { return t.restored }

// Close unmaps the table; the file stays. The workers must have ended. Control
// goroutines that are inside are waited for; for later ones the table is empty.
func (t *Table) Close() error {
	if t.closing.Swap(true) {
		return nil
	}
	for !t.takeHandles() {
		time.Sleep(time.Millisecond)
	}
	t.sweepMu.Lock()
	defer t.sweepMu.Unlock()
	t.closed = true
	close(t.control)
	t.head.note(t.Tick(), time.Now())
	return t.mem.close()
}

// takeHandles takes all control handles, or none: the holder of a handle may need another
// to finish.
func (t *Table) takeHandles() bool {
	var taken []*Worker
	for range controlHandles {
		select {
		case w := <-t.control:
			taken = append(taken, w)
			continue
		default:
		}
		for _, w := range taken {
			t.control <- w
		}
		return false
	}
	return true
}
