package kube

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weirlb/weir/discovery"
)

// Pace of a storm: after a turn Run rests as long as the turn took, so that it
// never takes more than half a CPU, and at least so long that related events come together.
// An event after a quiet moment is delivered at once.
const (
	minRest = 2 * time.Millisecond
	maxRest = 250 * time.Millisecond
)

// Run watches the cluster and delivers changes until ctx ends. deliver is called by a
// single goroutine.
func (s *Source) Run(ctx context.Context, deliver func(*discovery.Update)) error {
	stop, err := s.start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	defer s.report.start(ctx)()
	if s.daemonSet != nil {
		ctx, cancel := context.WithCancel(ctx)
		var task sync.WaitGroup
		task.Go(func() { s.daemonSet.run(ctx) })
		defer task.Wait()
		defer cancel()
	}
	if !s.catchUp(ctx, deliver) {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.queue.wake:
		}
		start := time.Now()
		s.turn(deliver)
		rest := min(max(time.Since(start), minRest), maxRest)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rest):
		}
	}
}

// catchUp waits until everything has been told, delivers that, and reports
// whether it came so far. Where the API server does not send it, LastKnown
// stands in.
func (s *Source) catchUp(ctx context.Context, deliver func(*discovery.Update)) bool {
	// There is no event for "all told": HasSynced is to be polled, as
	// cache.WaitForCacheSync does.
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	patience, silence := time.After(s.cfg.Patience), time.After(s.cfg.Silence)
	away := s.watch.away
	standIn := func() {
		patience, silence, away = nil, nil, nil
		s.tellLastKnown(deliver)
	}
	for !s.allListed() {
		select {
		case <-ctx.Done():
			return false
		case <-poll.C:
		case <-patience:
			standIn()
		case <-silence:
			silence = nil
			if !s.watch.answered.Load() {
				standIn()
			}
		case <-away:
			standIn()
		}
	}
	s.firstTurn(deliver)
	return true
}

// tellLastKnown delivers the objects of an earlier source.
func (s *Source) tellLastKnown(deliver func(*discovery.Update)) {
	if s.cfg.LastKnown == nil {
		s.log.Warn("the API server has not sent its state: waiting for it, with nothing to serve", "server", s.cfg.REST.Host, "errors", s.watch.errors())
		return
	}
	defer s.cfg.Working()()
	s.mu.Lock()
	each(s.cfg.LastKnown, s.set)
	s.store.MarkSynced()
	s.lastKnown = true
	s.mu.Unlock()
	up := s.flush()
	s.log.Warn("the API server has not sent its state: serving what was known last",
		"server", s.cfg.REST.Host, "errors", s.watch.errors(), "of", s.cfg.LastKnownTime, "services", len(up.Put))
	deliver(up)
}

// firstTurn delivers the first full view. Last known objects that are not in it are
// removed.
func (s *Source) firstTurn(deliver func(*discovery.Update)) {
	c := s.queue.take()
	s.mu.Lock()
	if s.lastKnown {
		each(s.cfg.LastKnown, func(k key, _ runtime.Object) {
			if _, told := c.objects[k]; !told {
				c.objects[k] = nil
			}
		})
	}
	replaced := s.lastKnown
	s.lastKnown, s.cfg.LastKnown = false, nil
	s.synced = true
	s.store.MarkSynced()
	s.mu.Unlock()
	s.apply(c, deliver)
	if replaced {
		s.log.Info("the API server has sent a full view: it replaces the last known state", "server", s.cfg.REST.Host)
	}
	s.log.Info("watching the cluster", "server", s.cfg.REST.Host, "objects", len(c.objects), "services", s.Stats().Services)
	if !s.node.exists() {
		s.log.Warn("the cluster has no Node of this name: no endpoint is known to be here or in this zone", "node", s.node.name)
	}
}

// turn delivers the changes since the last turn.
func (s *Source) turn(deliver func(*discovery.Update)) {
	s.apply(s.queue.take(), deliver)
}

// flush returns the changes since the last one, at a start with the first answers of names.
func (s *Source) flush() *discovery.Update {
	starts := s.cfg.Store.Settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if starts {
		s.store.NamesChanged()
	}
	return s.store.Flush()
}

func (s *Source) apply(c changes, deliver func(*discovery.Update)) {
	defer s.cfg.Working()()
	s.mu.Lock()
	for k, o := range c.objects {
		s.set(k, o)
	}
	s.mu.Unlock()
	up := s.flush()
	if up != nil {
		deliver(up)
	}
	if m := s.cfg.Measure; m != nil {
		now := time.Now()
		if up != nil && !c.since.IsZero() {
			m.Delivered(now.Sub(c.since))
		}
		for _, times := range c.triggers {
			for _, t := range times {
				m.Programmed(now.Sub(t))
			}
		}
	}
}
