package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab/workload"
)

// A client's port is used again while Weir still has the connection of it, whose
// endpoint is gone: the client's kernel gets a connection to the new endpoint within
// the time of one SYN.
func TestWireReusedPortOfAConnectionWhoseEndpointIsGone(t *testing.T) {
	s := service{name: "moves", index: 23, endpoints: []endpoint{attached}}
	f := ownFixture(t, options{services: []service{s}, takeover: "endpointRemovalGraceSeconds: 0"})
	bothFamilies(t, func(t *testing.T, six bool) {
		s.endpoints = []endpoint{attached}
		f.publish(t, s, six)
		from := "0.0.0.0:20000"
		if six {
			from = "[::]:20001"
		}
		dial := func() *net.TCPConn {
			t.Helper()
			local, err := net.ResolveTCPAddr("tcp", from)
			if err != nil {
				t.Fatal(err)
			}
			c, err := f.Client.DialWith(inTime(t, within), &net.Dialer{LocalAddr: local}, "tcp", s.at(httpPort, six).String())
			if err != nil {
				t.Fatal(err)
			}
			return c.(*net.TCPConn)
		}
		old := dial()
		if who := whoServes(t, old); who != "attached" {
			t.Fatalf("%q answers", who)
		}
		s.endpoints = []endpoint{routed}
		f.publish(t, s, six)
		forget(t, old)
		began := time.Now()
		again := dial()
		defer again.Close()
		t.Logf("connected after %s", time.Since(began))
		if who := whoServes(t, again); who != "routed" {
			t.Errorf("%q answers on the new connection", who)
		}
	})
}

// A client that sends all datagrams from one port, as a collector of logs does, reaches another
// endpoint when the first does not serve any more, although its EndpointSlice still lists it.
func TestWireDatagramsLeaveAnEndpointThatDoesNotServe(t *testing.T) {
	s := service{name: "hangs", index: 24, endpoints: []endpoint{attached}}
	f := ownFixture(t, options{services: []service{s}, takeover: "endpointRemovalGraceSeconds: 0"})
	bothFamilies(t, func(t *testing.T, six bool) {
		s.endpoints, s.hung = []endpoint{attached}, nil
		f.publish(t, s, six)
		c, err := f.Client.DialWith(inTime(t, within), &net.Dialer{}, "udp", s.at(echoPort, six).String())
		must(t, err)
		defer c.Close()
		ask := func() string {
			_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err := io.WriteString(c, workload.WhoAreYou); err != nil {
				return err.Error()
			}
			name := make([]byte, 256)
			n, _ := c.Read(name)
			return string(name[:n])
		}
		if who := ask(); who != "attached" {
			t.Fatalf("%q answers", who)
		}
		s.endpoints, s.hung = []endpoint{routed}, []endpoint{attached}
		f.publish(t, s, six)
		for ctx := inTime(t, within); ask() != "routed"; {
			if ctx.Err() != nil {
				t.Fatalf("%q answers, want routed", ask())
			}
		}
	})
}

// publish writes the Service anew and waits until datagrams get to its endpoint.
func (f *fixture) publish(t *testing.T, s service, six bool) {
	t.Helper()
	replace(t, f.manifest(), render(t, []service{s}))
	want := map[endpoint]string{attached: "attached", routed: "routed"}[s.endpoints[0]]
	for ctx := inTime(t, within); ; {
		who, err := workload.Ask(f.Client, s.at(echoPort, six), 100*time.Millisecond)
		if who == want {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%q answers, %v; want %q", who, err, want)
		}
	}
}

// whoServes asks over the connection who its server is.
func whoServes(t *testing.T, c net.Conn) string {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(within))
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: weir\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	return r.Header.Get(workload.HeaderServer)
}

// forget ends a connection without a packet, as a crash of the host does.
func forget(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var repair error
	err = raw.Control(func(fd uintptr) { repair = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1) })
	if err := errors.Join(err, repair, c.Close()); err != nil {
		t.Fatal(err)
	}
}
