package workload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// Load sends small HTTP requests over its own connections, without any retry: a request
// that net/http's client would quietly send again counts as failed.
type Load struct {
	Namespace *netlab.Namespace
	Targets   []netip.AddrPort // taken in turn
	// Source, when valid, is the address to connect from.
	Source      netip.Addr
	Concurrency int           // 0: 1
	Requests    int           // in all; 0: until the context is done
	Pause       time.Duration // of each client between two requests
	Timeout     time.Duration // of a request; 0: 10 s
	// KeepAlive sends all requests of a client over the same connection, else each over a
	// new connection.
	KeepAlive bool
	// ServerCloses asks for "Connection: close", so that the connection
	// spends TIME-WAIT at the server; else the client closes first.
	ServerCloses bool
	// Record is called at the start of each request and returns the Record for the outcome;
	// nil: the Record that Run returns.
	Record func() *Record
}

// Run sends requests until they are done or ctx is. A request that ctx cuts
// short is not recorded. The error is about the load itself, not about
// requests.
func (l *Load) Run(ctx context.Context) (*Record, error) {
	own := &Record{}
	record := l.Record
	if record == nil {
		record = func() *Record { return own }
	}
	var next atomic.Int64
	err := clients(l.Namespace, l.Concurrency, func() {
		c := &client{load: l}
		defer c.close()
		for ctx.Err() == nil {
			i := next.Add(1) - 1
			if l.Requests > 0 && i >= int64(l.Requests) {
				return
			}
			c.request(ctx, l.Targets[i%int64(len(l.Targets))], record())
			pause(ctx, l.Pause)
		}
	})
	return own, err
}

// clients runs f count times at once, each on a separate thread inside n, where all sockets
// of the client are made.
func clients(n *netlab.Namespace, count int, f func()) error {
	var wait sync.WaitGroup
	errs := make([]error, max(1, count))
	for i := range errs {
		wait.Go(func() {
			errs[i] = n.Do(func() error {
				f()
				return nil
			})
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// client is a sequence of requests.
type client struct {
	load   *Load
	conn   net.Conn
	reader *bufio.Reader
	target netip.AddrPort
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// request makes a request and records it.
func (c *client) request(ctx context.Context, target netip.AddrPort, r *Record) {
	timeout := c.load.Timeout
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	r.begin()
	start := time.Now()
	server, err := c.exchange(ctx, target, start.Add(timeout))
	took := time.Since(start)
	if err != nil || !c.load.KeepAlive {
		c.close()
	}
	if err != nil && ctx.Err() != nil {
		r.cancel()
		return
	}
	r.end(server, took, err)
}

func (c *client) exchange(ctx context.Context, target netip.AddrPort, deadline time.Time) (string, error) {
	if c.conn == nil || c.target != target {
		c.close()
		d := net.Dialer{Deadline: deadline}
		if c.load.Source.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.load.Source, 0))
		}
		conn, err := d.DialContext(ctx, "tcp", target.String())
		if err != nil {
			return "", err
		}
		c.conn, c.target = conn, target
		if c.reader == nil {
			c.reader = bufio.NewReader(nil)
		}
		c.reader.Reset(conn)
	}
	defer shut(ctx, c.conn)()
	if err := c.conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	connection := ""
	if c.load.ServerCloses {
		connection = "Connection: close\r\n"
	}
	if _, err := fmt.Fprintf(c.conn, "GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n", target, connection); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", err
	}
	server := answer.Header.Get(HeaderServer)
	if answer.StatusCode != http.StatusOK || string(body) != server || server == "" {
		return "", fmt.Errorf("%s answered %s with %q", server, answer.Status, body)
	}
	if c.load.ServerCloses {
		// Wait for the server's FIN, so that it is really first.
		if _, err := c.reader.ReadByte(); err != io.EOF {
			return "", fmt.Errorf("after the answer: %w", err)
		}
	}
	return server, nil
}
