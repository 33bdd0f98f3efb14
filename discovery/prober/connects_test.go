package prober

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/discovery/probe"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// resetting accepts connections, and resets them.
func resetting(t *testing.T) net.Addr {
	l := listener(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}()
	return l.Addr()
}

// silent listens, and drops SYNs: its queue has no room.
func silent(t *testing.T) net.Addr {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: sa.(*unix.SockaddrInet4).Port}
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return at
}

func onIPv6(t *testing.T) net.Addr {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr()
}

// descriptors are those that this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Connections that begin together end each with their own outcome, whatever becomes of the others, and
// leave nothing open, also those without an outcome when the Scheduler ends.
func TestConnectsTogether(t *testing.T) {
	refuses := closedTCP(t)
	want := map[string]string{ // reason; "" passes
		listener(t).Addr().String(): "",
		onIPv6(t).String():          "",
		resetting(t).String():       "",
		refuses.String():            "connection refused",
		silent(t).String():          "no answer in 1s",
		"255.255.255.255:80":        "no route, or no neighbor answers",
	}
	lasting := Target{At: netip.MustParseAddrPort(silent(t).String()), Check: check(t, "{tcpSocket: {}, timeoutSeconds: 60}")}
	var targets []Target
	for at := range want {
		targets = append(targets, Target{At: netip.MustParseAddrPort(at), Check: check(t, "{tcpSocket: {}, periodSeconds: 1}")})
	}
	before := descriptors(t)
	var mu sync.Mutex
	got := map[string]State{}
	all, once := make(chan struct{}), sync.Once{}
	s := Dialer(Straight).Scheduler(func(to Target, st State, _ []string) {
		mu.Lock()
		defer mu.Unlock()
		if got[to.At.String()] = st; len(got) == len(want) {
			once.Do(func() { close(all) })
		}
	})
	s.Set("ns/a", "ns", append(targets, lasting))
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { s.Run(ctx) })
	select {
	case <-all:
	case <-time.After(patience.For(20 * time.Second)):
		t.Error("a probe has no outcome")
	}
	cancel()
	ended.Wait()
	for at, reason := range want {
		st := got[at]
		switch {
		case reason == "" && (st.Value != Passing || st.Latency <= 0):
			t.Errorf("%s: %+v, want passing", at, st)
		case reason != "" && (st.Value != Failing || !strings.Contains(st.Reason, reason)):
			t.Errorf("%s: %+v, want %q", at, st, reason)
		}
	}
	if s.State("ns", lasting).Value != Unchecked || len(got) != len(want) {
		t.Errorf("an endpoint that has time has %+v, of all %d", s.State("ns", lasting), len(got))
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

// A socket is as good as new after each outcome, and its connection ends with a RST.
func TestSocketsAreUsedAgain(t *testing.T) {
	l := listener(t)
	resets := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, err = c.Read(make([]byte, 1))
			c.Close()
			resets <- err
		}
	}()
	outcomes := []struct {
		at   net.Addr
		want error
	}{
		{resetting(t), nil}, {closedTCP(t), syscall.ECONNREFUSED}, {silent(t), os.ErrDeadlineExceeded}, {l.Addr(), nil}, {onIPv6(t), nil},
		{&net.TCPAddr{IP: net.IPv4bcast, Port: 80}, syscall.ENETUNREACH},
	}
	c := &connects{}
	defer c.close()
	opened := 0
	for turn := range len(outcomes) {
		ended := map[*target]error{}
		end := func(x *target, err error, _ time.Time, _ time.Duration) { ended[x] = err }
		var order []*target
		for i := range outcomes { // each with another socket in each turn
			o := outcomes[(turn+i)%len(outcomes)]
			x := &target{Target: Target{At: netip.MustParseAddrPort(o.at.String()), Check: &probe.Check{Timeout: 100 * time.Millisecond}}}
			order = append(order, x)
			if err := c.begin(x, time.Now()); err != nil {
				ended[x] = err
			}
		}
		for deadline := time.Now().Add(patience.For(5 * time.Second)); !c.empty(); {
			if c.collect(time.Now(), end); time.Now().After(deadline) {
				t.Fatalf("turn %d: %d without an outcome", turn, len(c.begun))
			}
			time.Sleep(time.Millisecond)
		}
		for i, x := range order {
			if o := outcomes[(turn+i)%len(outcomes)]; !errors.Is(ended[x], o.want) {
				t.Errorf("turn %d: %s: %v, want %v", turn, o.at, ended[x], o.want)
			}
		}
		select {
		case err := <-resets:
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("turn %d: the endpoint reads %v", turn, err)
			}
		case <-time.After(patience.For(5 * time.Second)):
			t.Fatal("the endpoint has no end of the connection")
		}
		now := len(c.free[ipv4]) + len(c.free[ipv6])
		if turn > 0 && now != opened {
			t.Errorf("turn %d: %d sockets, %d before", turn, now, opened)
		}
		opened = now
	}
}

// A probe may be given the very port of its endpoint on this node, where nothing listens. TCP then connects
// the socket with itself.
func TestASocketConnectedWithItselfIsRefused(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		to := l.Addr().(*net.TCPAddr).AddrPort()
		l.Close()
		family, own := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: int(to.Port())})
		if to.Addr().Is6() {
			family, own = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := errors.Join(unix.Bind(fd, own), unix.Connect(fd, own)); err != nil {
			t.Fatal(err)
		}
		if err := outcome(fd, unix.POLLOUT, to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %v", to, err)
		}
	}
}
