package lb

import (
	"errors"
	"slices"

	"github.com/weirlb/weir/lb/tap"
	"github.com/weirlb/weir/lb/worker"
)

// ErrTaps means that as many taps are attached as there may be.
var ErrTaps = errors.New("as many captures and traces run as there may be")

// Tap attaches a tap to all workers. cfg.Workers is set here. The caller calls release when it
// reads no more. While there is any tap, the packets of all flows take the packet loop: the
// flow cache is suspended.
func (l *LB) Tap(cfg tap.Config) (t *tap.Tap, release func(), err error) {
	cfg.Workers = len(l.workers)
	l.tapsMu.Lock()
	defer l.tapsMu.Unlock()
	if len(l.taps) == worker.MaxTaps { // before the memory is made: anybody may ask at any rate
		return nil, nil, ErrTaps
	}
	if t, err = tap.New(cfg); err != nil {
		return nil, nil, err
	}
	l.setTaps(append(slices.Clone(l.taps), t))
	if l.cache != nil {
		l.cache.Suspend()
	}
	return t, func() { l.untap(t) }, nil
}

func (l *LB) untap(t *tap.Tap) {
	l.tapsMu.Lock()
	defer l.tapsMu.Unlock()
	if l.cache != nil {
		l.cache.Resume()
	}
	l.setTaps(slices.DeleteFunc(slices.Clone(l.taps), func(o *tap.Tap) bool { return o == t }))
}

// setTaps gives all workers other taps. Preconditions: tapsMu is locked.
func (l *LB) setTaps(taps []*tap.Tap) {
	l.taps = taps
	for _, w := range l.workers {
		w.Observe(taps)
	}
}
