package lb

import (
	"errors"
	"slices"
	"sync"

	"github.com/weirlb/weir/lb/tap"
	"github.com/weirlb/weir/lb/worker"
)

// ErrTaps means that as many taps are attached as there may be.
var ErrTaps = errors.New("as many captures and traces run as there may be")

// taps are those of captures and traces, which all workers have.
type taps struct {
	workers *workers
	cache   *cache
	mu      sync.Mutex // guards list
	list    []*tap.Tap
}

// add is LB.Tap.
func (ts *taps) add(cfg tap.Config) (t *tap.Tap, release func(), err error) {
	cfg.Workers = len(ts.workers.list)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if len(ts.list) == worker.MaxTaps { // before the memory is made: anybody may ask at any rate
		return nil, nil, ErrTaps
	}
	if t, err = tap.New(cfg); err != nil {
		return nil, nil, err
	}
	ts.set(append(slices.Clone(ts.list), t))
	if ts.cache.kernel != nil {
		ts.cache.kernel.Suspend()
	}
	return t, func() { ts.remove(t) }, nil
}

func (ts *taps) remove(t *tap.Tap) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.cache.kernel != nil {
		ts.cache.kernel.Resume()
	}
	ts.set(slices.DeleteFunc(slices.Clone(ts.list), func(o *tap.Tap) bool { return o == t }))
}

// set gives all workers other taps. Preconditions: mu is locked.
func (ts *taps) set(list []*tap.Tap) {
	ts.list = list
	for _, w := range ts.workers.list {
		w.Observe(list)
	}
}
