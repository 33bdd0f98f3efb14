package httpserver

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/perf/netlab/patience"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
		done <- Serve(ctx, l, ok, Options{Limit: NewLimit(8), Log: slog.New(slog.DiscardHandler)})
	}()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Get("http://" + l.Addr().String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}

// bounded serves with room for 8 connections.
func bounded(t *testing.T, l net.Listener, limit *Limit, o Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o.Limit, o.Log = limit, slog.New(slog.DiscardHandler)
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }), o)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// from opens a connection of the client with an address.
func from(t *testing.T, client string, to net.Addr) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}, Timeout: patience.For(20 * time.Second)}
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// answers reports whether a request on a connection is answered.
func answers(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(patience.For(20 * time.Second))); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: weir\r\n\r\n"); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, len("HTTP/1.1 200 OK")))
	return err
}

// closed reports whether the server ends a connection.
func closed(c net.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(patience.For(20 * time.Second)))
	_, err := io.Copy(io.Discard, c)
	return err == nil || !os.IsTimeout(err)
}

// A client that holds connections, idle or in the middle of a request, keeps no probe of another
// client out, and no more connections than the limit. All servers of a limit count together.
func TestAClientThatHoldsConnectionsKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	const room = 8
	limit := NewLimit(room)
	l, other := listen(t), listen(t)
	bounded(t, l, limit, Options{})
	bounded(t, other, limit, Options{Once: true})
	waits := from(t, "127.0.0.3", l.Addr())
	if err := answers(waits); err != nil {
		t.Fatal(err)
	}
	var held []net.Conn
	for i := range 5 * room {
		to := l.Addr()
		if i%2 == 1 {
			to = other.Addr()
		}
		c := from(t, "127.0.0.2", to)
		if i%4 < 2 {
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: 1000\r\n\r\n")
		}
		held = append(held, c)
	}
	for i := range 3 * room {
		for _, to := range []net.Addr{l.Addr(), other.Addr()} {
			if err := answers(from(t, fmt.Sprint("127.0.0.", 4+i%2), to)); err != nil {
				t.Fatalf("probe %d: %v", i, err)
			}
		}
	}
	limit.mu.Lock()
	n := limit.n
	limit.mu.Unlock()
	if n > room {
		t.Errorf("%d connections, there is room for %d", n, room)
	}
	for _, c := range held[:4*room] {
		if !closed(c) {
			t.Error("a connection of many of a client stays")
		}
	}
}

// A connection with nothing to answer ends, and so does that of a probe.
func TestIdleConnectionsEnd(t *testing.T) {
	t.Parallel()
	l, probes := listen(t), listen(t)
	bounded(t, l, NewLimit(8), Options{})
	bounded(t, probes, NewLimit(8), Options{Once: true})
	idle, slow, probe := from(t, "127.0.0.2", l.Addr()), from(t, "127.0.0.2", l.Addr()), from(t, "127.0.0.2", probes.Addr())
	_, _ = io.WriteString(slow, "POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: 1000\r\n\r\n")
	for name, c := range map[string]net.Conn{"idle": idle, "probe": probe} {
		if err := answers(c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]net.Conn{"idle": idle, "slow": slow, "probe": probe} {
		if !closed(c) {
			t.Errorf("%s: the connection stays", name)
		}
	}
}

// The users of a UNIX socket are clients.
func TestTheUsersOfASocketAreItsClients(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	limit := NewLimit(2)
	bounded(t, l, limit, Options{})
	for range 3 {
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := answers(c); err != nil {
			t.Fatal(err)
		}
	}
	limit.mu.Lock()
	defer limit.mu.Unlock()
	if of := limit.clients[uint32(os.Getuid())]; limit.n != 2 || of == nil || of.Len() != 2 {
		t.Errorf("%d connections, clients %v", limit.n, limit.clients)
	}
}
