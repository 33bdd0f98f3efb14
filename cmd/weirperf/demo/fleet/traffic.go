package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
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
	exchangeWithin   = 15 * time.Second // on a quiet machine: TCP sends again meanwhile
	connectionWithin = 10 * time.Second
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
	talks   [][]*talk                         // of modes

	mu  sync.Mutex
	err error // of the traffic itself
}

// talk is an established connection.
type talk struct {
	conn net.Conn

	mu      sync.Mutex
	proven  time.Time // when the last exchange began that succeeded
	longest time.Duration
	err     error
}

// drive starts the clients that open connections.
func (b *bed) drive(ctx context.Context, connections int) *traffic {
	t := &traffic{client: b.Client, each: connections, opened: make([]atomic.Pointer[workload.Record], len(modes)), talks: make([][]*talk, len(modes))}
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
	for _, list := range t.talks {
		for _, k := range list {
			_ = k.conn.Close()
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
			if n < len(t.talks[i]) {
				if last := t.talks[i][n]; modes[i].keeps && last.failed() == nil {
					last.begin()
					continue
				}
				_ = t.talks[i][n].conn.Close()
			}
			k, err := t.talk(ctx, targets[n%len(targets)])
			if err != nil {
				return fmt.Errorf("establish a connection: %w", err)
			}
			if n < len(t.talks[i]) {
				t.talks[i][n] = k
			} else {
				t.talks[i] = append(t.talks[i], k)
			}
		}
	}
	return nil
}

// talk opens a connection, and uses it from now on.
func (t *traffic) talk(ctx context.Context, to netip.AddrPort) (*talk, error) {
	ctx, cancel := context.WithTimeout(ctx, patience.For(connectionWithin))
	defer cancel()
	conn, err := t.client.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	k := &talk{conn: conn}
	if err := k.exchange(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	t.running.Go(func() {
		for wait(t.ctx, t.every) == nil && k.exchange() == nil {
		}
		_ = conn.Close()
	})
	return k, nil
}

var line = []byte("a line over an established connection\n")

// exchange sends a line and waits for the answer.
func (k *talk) exchange() error {
	began := time.Now()
	err := k.conn.SetDeadline(began.Add(patience.For(exchangeWithin)))
	if err == nil {
		_, err = k.conn.Write(line)
	}
	answer := make([]byte, len(line))
	if err == nil {
		_, err = io.ReadFull(k.conn, answer)
	}
	if err == nil && !bytes.Equal(answer, line) {
		err = fmt.Errorf("the answer is %q", answer)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err = err; err == nil {
		k.proven, k.longest = began, max(k.longest, time.Since(began))
	}
	return err
}

func (k *talk) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

func (k *talk) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.longest = 0
}

// provenSince reports whether an exchange that began after the time has succeeded.
func (k *talk) provenSince(since time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proven.After(since)
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
		for _, k := range t.talks[i] {
			if err := out[i].add(ctx, k, since); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// add waits for the state of an established connection, and enters it.
func (o *outcome) add(ctx context.Context, k *talk, since time.Time) error {
	for k.failed() == nil && !k.provenSince(since) {
		if err := wait(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	o.established++
	if o.longest = max(o.longest, k.longest); k.err == nil {
		return nil
	}
	if o.lost++; o.err == nil {
		o.err = k.err
	}
	return nil
}
