package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// Held is an established connection in use: a line is sent and read back every so often, until
// that fails.
type Held struct {
	conn net.Conn
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	proven  time.Time // when the last exchange began that succeeded
	longest time.Duration
	err     error
}

const (
	heldOpen     = 10 * time.Second // to open a connection, on a quiet machine
	heldExchange = 15 * time.Second // of an exchange: TCP sends again meanwhile
)

// Hold opens a connection to a server of ServeEcho, and uses it from now on.
func Hold(ctx context.Context, n *netlab.Namespace, to netip.AddrPort, every time.Duration) (*Held, error) {
	ctx, cancel := context.WithTimeout(ctx, patience.For(heldOpen))
	defer cancel()
	conn, err := n.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	h := &Held{conn: conn, done: make(chan struct{})}
	if err := h.exchange(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	use, stop := context.WithCancel(context.Background())
	h.stop = stop
	go func() {
		defer close(h.done)
		for pause(use, every); use.Err() == nil && h.exchange() == nil; pause(use, every) {
		}
		_ = conn.Close()
	}()
	return h, nil
}

// Close ends the connection.
func (h *Held) Close() {
	h.stop()
	_ = h.conn.Close()
	<-h.done
}

var heldLine = []byte("a line over an established connection\n")

// exchange sends a line and waits for the answer.
func (h *Held) exchange() error {
	began := time.Now()
	err := h.conn.SetDeadline(began.Add(patience.For(heldExchange)))
	if err == nil {
		_, err = h.conn.Write(heldLine)
	}
	answer := make([]byte, len(heldLine))
	if err == nil {
		_, err = io.ReadFull(h.conn, answer)
	}
	if err == nil && !bytes.Equal(answer, heldLine) {
		err = fmt.Errorf("the answer is %q", answer)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err = err; err == nil {
		h.proven, h.longest = began, max(h.longest, time.Since(began))
	}
	return err
}

// Err is the error by which the connection was lost, nil if it was not.
func (h *Held) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// Begin begins to measure Longest anew.
func (h *Held) Begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.longest = 0
}

// Longest is the longest time from a line to the answer.
func (h *Held) Longest() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.longest
}

// Settle waits until an exchange that began after the time has succeeded, or the connection is
// lost.
func (h *Held) Settle(ctx context.Context, since time.Time) error {
	for {
		h.mu.Lock()
		settled := h.err != nil || h.proven.After(since)
		h.mu.Unlock()
		if settled {
			return nil
		}
		if pause(ctx, 5*time.Millisecond); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
