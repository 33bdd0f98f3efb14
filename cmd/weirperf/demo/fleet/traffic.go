package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

const (
	// An established connection is used that often, less often if there are many.
	useEvery         = 200 * time.Millisecond
	usesPerSecond    = 1500
	openers          = 12 // clients of a mode that open connections
	openerPause      = 250 * time.Millisecond
	connectionWithin = 10 * time.Second // on a quiet machine
)

// outcome is what happened to the connections of a mode in a step.
type outcome struct {
	established, lost int
	err               error            // of the first that was lost
	opened            *workload.Record // new connections
	// longest is the longest time from a request to the answer on an established connection.
	longest time.Duration
}

// traffic is all that clients do.
type traffic struct {
	client  *netlab.Namespace
	each    int // established connections of a mode
	every   time.Duration
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	opened  []atomic.Pointer[workload.Record] // of modes: where connections that begin now go
	held    [][]*workload.Held                // of modes

	mu  sync.Mutex
	err error // of the traffic itself
}

// drive starts the clients that open connections.
func (b *bed) drive(ctx context.Context, connections int) *traffic {
	t := &traffic{client: b.Client, each: connections, opened: make([]atomic.Pointer[workload.Record], len(modes)), held: make([][]*workload.Held, len(modes))}
	t.every = max(useEvery, time.Duration(len(modes)*connections)*time.Second/usesPerSecond)
	t.ctx, t.cancel = context.WithCancel(ctx)
	for i := range modes {
		t.opened[i].Store(&workload.Record{})
		load := &workload.Load{
			Namespace: b.Client, Targets: modes[i].targets(httpPort), Concurrency: openers, Pause: openerPause,
			Timeout: patience.For(connectionWithin), Record: t.opened[i].Load,
		}
		t.running.Go(func() {
			if _, err := load.Run(t.ctx); err != nil {
				t.mu.Lock()
				t.err = errors.Join(t.err, err)
				t.mu.Unlock()
			}
		})
	}
	return t
}

// stop ends all traffic, and returns errors that are not those of connections.
func (t *traffic) stop() error {
	t.cancel()
	for _, list := range t.held {
		for _, h := range list {
			h.Close()
		}
	}
	t.running.Wait()
	return t.err
}

// establish begins a step. It opens connections in the place of those that were lost, and in a
// mode that loses connections in the place of all: those that are left are more and more such as
// never pass the nodes that leave.
func (t *traffic) establish(ctx context.Context) error {
	for i := range modes {
		targets := modes[i].targets(echoPort)
		for n := range t.each {
			if n < len(t.held[i]) {
				if last := t.held[i][n]; modes[i].keeps && last.Err() == nil {
					last.Begin()
					continue
				}
				t.held[i][n].Close()
			}
			h, err := workload.Hold(ctx, t.client, targets[n%len(targets)], t.every)
			if err != nil {
				return fmt.Errorf("establish a connection: %w", err)
			}
			if n < len(t.held[i]) {
				t.held[i][n] = h
			} else {
				t.held[i] = append(t.held[i], h)
			}
		}
	}
	return nil
}

// settle ends a step: it waits until each established connection has been used once more or is
// lost, and until connections that were being opened are open or have failed.
func (t *traffic) settle(ctx context.Context) ([]outcome, error) {
	since, out := time.Now(), make([]outcome, len(modes))
	for i := range modes {
		out[i].opened = t.opened[i].Swap(&workload.Record{})
	}
	for i := range out {
		for out[i].opened.Pending() > 0 {
			if err := wait(ctx, 5*time.Millisecond); err != nil {
				return nil, err
			}
		}
		for _, h := range t.held[i] {
			if err := out[i].add(ctx, h, since); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// add waits for the state of an established connection, and enters it.
func (o *outcome) add(ctx context.Context, h *workload.Held, since time.Time) error {
	if err := h.Settle(ctx, since); err != nil {
		return err
	}
	o.established++
	o.longest = max(o.longest, h.Longest())
	if err := h.Err(); err != nil {
		if o.lost++; o.err == nil {
			o.err = err
		}
	}
	return nil
}
