// Package phase measures the phases of a start, which are the time that connections wait for
// after a restart.
package phase

import (
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Phase is a part of a start.
type Phase struct {
	Name string
	Took time.Duration
}

// Phases are the phases of a start, in order. A nil *Phases measures nothing.
type Phases struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time // guarded by mu: the end of the last phase
	list []Phase   // guarded by mu
}

// New returns the phases of a start at a given time. Each is logged for debugging.
func New(start time.Time, log *slog.Logger) *Phases { return &Phases{log: log, last: start} }

// End ends the phase that began with the end of the phase before.
func (p *Phases) End(name string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	took := now.Sub(p.last)
	p.last = now
	p.list = append(p.list, Phase{name, took})
	p.log.Debug("start", "phase", name, "took", took.Round(100*time.Microsecond))
}

// List returns the phases that have ended.
func (p *Phases) List() []Phase {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list)
}
