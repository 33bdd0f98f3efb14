// Package tcpload makes TCP connections and requests through a packet path:
// servers at the endpoints, clients that open connections, ask over open ones,
// or send as much as they can. Each client and each server is a thread with
// blocking sockets, so that a request costs little here, and the same for every measured
// system.
package tcpload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// messageLen is the length of a request and of its answer, in bytes.
const messageLen = 64

// patience is the time limit of a step of a connection.
const patience = 5 * time.Second

// Load describes the work of clients. Targets and sources are consecutive addresses.
type Load struct {
	Namespace *netlab.Namespace
	Target    netip.AddrPort
	Targets   int // addresses from Target on, taken in turn
	Source    netip.Addr
	Sources   int // addresses from Source on: each has 64,000 ports
	Clients   int // at once
}

// Outcome is the result of a load over a span of time.
type Outcome struct {
	Seconds float64
	Done    uint64 // connections or requests that were answered
	Failed  uint64
	Bytes   uint64 // that reached the server
	// P50 and P99 are of the time from a request to its answer.
	P50, P99 time.Duration
	FirstErr error // of those that failed
}

// run lets clients work on f until the context ends and counts the work done in the span
// after settle.
func (l *Load) run(ctx context.Context, settle, span time.Duration, f func(*client) error) (Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	clients := make([]*client, l.Clients)
	var wait sync.WaitGroup
	errs := make([]error, len(clients))
	for i := range clients {
		clients[i] = &client{load: l, fd: -1, next: uint32(i), step: uint32(l.Clients)}
		wait.Go(func() {
			errs[i] = l.Namespace.Do(func() error { clients[i].work(ctx, f); return nil })
		})
	}
	sleep(ctx, settle)
	for _, c := range clients {
		c.counting.Store(true)
	}
	began := time.Now()
	sleep(ctx, span)
	o := Outcome{Seconds: time.Since(began).Seconds()}
	for _, c := range clients {
		c.counting.Store(false)
	}
	interrupted := ctx.Err()
	cancel()
	wait.Wait()
	var took []time.Duration
	for _, c := range clients {
		o.Done += c.done
		o.Failed += c.failed
		took = append(took, c.took...)
		if o.FirstErr == nil {
			o.FirstErr = c.firstErr
		}
	}
	if slices.Sort(took); len(took) > 0 {
		o.P50, o.P99 = took[len(took)/2], took[len(took)*99/100]
	}
	return o, errors.Join(append(errs, interrupted)...)
}

// Connect opens a connection for every request: connect, ask, be answered,
// close.
func (l *Load) Connect(ctx context.Context, settle, span time.Duration) (Outcome, error) {
	return l.run(ctx, settle, span, func(c *client) error {
		err := c.open()
		if err == nil {
			err = c.ask()
		}
		return errors.Join(err, c.close())
	})
}

// Request asks over connections that stay open, the next time as soon as it
// is answered.
func (l *Load) Request(ctx context.Context, settle, span time.Duration) (Outcome, error) {
	return l.run(ctx, settle, span, (*client).askAgain)
}

// RequestAt asks at a fixed rate, all clients together. A request that is late because the
// request before was late is measured from its due time.
func (l *Load) RequestAt(ctx context.Context, perSecond float64, settle, span time.Duration) (Outcome, error) {
	every := time.Duration(float64(l.Clients) / perSecond * float64(time.Second))
	return l.run(ctx, settle, span, func(c *client) error {
		if c.due.IsZero() {
			c.due = time.Now().Add(every * time.Duration(c.next%c.step) / time.Duration(c.step))
		}
		c.due = c.due.Add(every)
		late := time.Until(c.due) <= 0
		for wait := time.Until(c.due); wait > 0; wait = time.Until(c.due) {
			t := unix.NsecToTimespec(int64(wait))
			_ = unix.Nanosleep(&t, nil)
		}
		c.asked = time.Now()
		if late {
			c.asked = c.due
		}
		return c.askAgain()
	})
}

// client is a thread that makes connections.
type client struct {
	load     *Load
	fd       int
	next     uint32 // number of the next connection
	step     uint32
	due      time.Time
	asked    time.Time
	counting atomic.Bool

	done, failed uint64
	took         []time.Duration
	firstErr     error
}

func (c *client) work(ctx context.Context, f func(*client) error) {
	defer c.close()
	// Wake when asked to, not up to 50 us later.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for ctx.Err() == nil {
		c.asked = time.Now()
		err := f(c)
		if !c.counting.Load() {
			continue
		}
		if err != nil {
			c.failed++
			if c.firstErr == nil {
				c.firstErr = err
			}
			sleep(ctx, time.Millisecond)
			continue
		}
		c.done++
		c.took = append(c.took, time.Since(c.asked))
	}
}

func (c *client) open() error {
	n := c.next
	c.next += c.step
	fd, err := socket()
	if err != nil {
		return err
	}
	c.fd = fd
	source := &unix.SockaddrInet4{Addr: plus(c.load.Source, n%uint32(c.load.Sources)).As4()}
	// The port is chosen at connect, when the destination is known: else
	// all destinations share a range of ports.
	err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	if err == nil {
		err = unix.Bind(fd, source)
	}
	if err != nil {
		return err
	}
	to := &unix.SockaddrInet4{Port: int(c.load.Target.Port()), Addr: plus(c.load.Target.Addr(), n%uint32(c.load.Targets)).As4()}
	err = unix.Connect(fd, to)
	if errors.Is(err, unix.EINTR) { // it goes on by itself
		err = connected(fd)
	}
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}

// connected waits for the end of a connect that a signal has interrupted.
func connected(fd int) error {
	for deadline := time.Now().Add(patience); ; {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(p, int(time.Until(deadline).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return unix.ETIMEDOUT
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		return err
	}
}

func (c *client) ask() error {
	var message [messageLen]byte
	if err := write(c.fd, message[:]); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if err := readFull(c.fd, message[:]); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

// askAgain asks over the open connection, or over a new connection.
func (c *client) askAgain() error {
	if c.fd < 0 {
		if err := c.open(); err != nil {
			return errors.Join(err, c.close())
		}
		c.asked = time.Now() // connection set-up is not measured
	}
	if err := c.ask(); err != nil {
		return errors.Join(err, c.close())
	}
	return nil
}

func (c *client) close() error {
	if c.fd < 0 {
		return nil
	}
	fd := c.fd
	c.fd = -1
	return unix.Close(fd)
}

// socket is a TCP socket whose calls end after some seconds.
func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	t := unix.NsecToTimeval(int64(patience))
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &t),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// write sends b, which is small enough to be taken whole or not at all.
func write(fd int, b []byte) error {
	for {
		if _, err := unix.Write(fd, b); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// errEnded means that the other side has closed.
var errEnded = errors.New("the connection has ended")

func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return errEnded
		default:
			b = b[n:]
		}
	}
	return nil
}

// plus is the nth IPv4 address after a.
func plus(a netip.Addr, n uint32) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
	return netip.AddrFrom4(b)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
