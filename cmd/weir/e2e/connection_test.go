package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

func TestWireHalfClosedConnection(t *testing.T) {
	f := sharedFixture(t)
	f.checkChecksums(t)
	for _, s := range kinds {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				if err := workload.HalfClose(inTime(t, within), f.Client, s.at(halfPort, six), 2<<20); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A connection that says nothing for 30 seconds works afterwards. All kinds
// are idle at the same time.
func TestWireIdleConnection(t *testing.T) {
	t.Parallel()
	f := sharedFixture(t)
	idle := 30 * time.Second
	if testing.Short() {
		idle = 3 * time.Second
	}
	conns := map[string]net.Conn{}
	for _, s := range kinds {
		for _, six := range []bool{false, true} {
			c, err := f.Client.DialContext(inTime(t, within), "tcp", s.at(echoPort, six).String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			name := s.name + "/" + family(six)
			if err := workload.PingPong(c, "before", within); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			conns[name] = c
		}
	}
	time.Sleep(idle) // the silence is what is tested
	for name, c := range conns {
		if err := workload.PingPong(c, "after", within); err != nil {
			t.Errorf("%s after %s: %v", name, idle, err)
		}
	}
}

// Ten thousand short connections at once from 50 clients, over all kinds of
// endpoints and both families.
func TestWireShortConnections(t *testing.T) {
	f := sharedFixture(t)
	f.checkChecksums(t)
	load := &workload.Load{Namespace: f.Client, Concurrency: 50, Requests: int(size(10_000, 1000))}
	for _, six := range []bool{false, true} {
		load.Targets = append(load.Targets, toAll.at(httpPort, six), toAll.atNode(httpPort, six))
	}
	r, err := load.Run(inTime(t, patience.For(2*time.Minute)))
	if err != nil || r.Err() != nil {
		t.Error(err, r.Err())
	}
	if r.Requests() != load.Requests {
		t.Errorf("%d of %d requests were made", r.Requests(), load.Requests)
	}
	t.Logf("p50 %s, p99 %s, by %v", r.Percentile(50), r.Percentile(99), r.Servers())
}

// Twenty thousand connections one after the other to one endpoint: many times
// more than there are SNAT ports, so that ports come back whose last
// connection is still in TIME-WAIT, at the endpoint when the server closes
// first. A SYN that went unanswered would be sent again after one second.
func TestWireSequentialConnectionsToOneEndpoint(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached, toPod}, extra: "snat: {ports: 61000-65535}"})
	for _, s := range []service{toAttached, toPod} {
		for _, serverCloses := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/server closes first %t", s.name, serverCloses), func(t *testing.T) {
				f.checkSequential(t, s, serverCloses)
			})
		}
	}
}

func (f *fixture) checkSequential(t *testing.T, s service, serverCloses bool) {
	limit := patience.For(30 * time.Second)
	before, err := f.Client.Counters()
	if err != nil {
		t.Fatal(err)
	}
	load := &workload.Load{Namespace: f.Client, Targets: []netip.AddrPort{s.at(httpPort, false)},
		Requests: int(size(20_000, 6000)), ServerCloses: serverCloses, Timeout: patience.For(5 * time.Second)}
	start := time.Now()
	r, err := load.Run(inTime(t, patience.For(2*time.Minute)))
	took := time.Since(start)
	if err != nil || r.Err() != nil {
		t.Error(err, r.Err())
	}
	after, err := f.Client.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if n := after.Sub(before)["TcpExtTCPSynRetrans"]; n > 0 {
		t.Errorf("%d SYNs were sent again; %s", n, f.whatWasDropped())
	}
	if r.Requests() != load.Requests || took > limit {
		t.Errorf("%d connections in %s, want %d within %s", r.Requests(), took.Round(time.Millisecond), load.Requests, limit)
	}
	t.Logf("%d connections in %s: p50 %s, p99 %s", r.Requests(), took.Round(time.Millisecond), r.Percentile(50), r.Percentile(99))
}

// TCP to the node's own listener and from the node to an endpoint's host are
// nobody's business but the kernel's, also while Weir is busy.
// A capture on the interface shows what the program leaves to the kernel, with hook xdp.
func TestWireTheNodesOwnConnectionsAreUntouched(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, interfaces: "[{name: eth0, hook: xdp}, {name: eth1, hook: xdp}]"})
	ssh, err := workload.ServeEcho(f.Edge.Edge, "ssh", "[::]:22")
	if err != nil {
		t.Fatal(err)
	}
	defer ssh.Close()
	bothFamilies(t, func(t *testing.T, six bool) {
		node := toAttached.atNode(0, six).Addr()
		in, err := f.Client.DialContext(inTime(t, within), "tcp", netip.AddrPortFrom(node, 22).String())
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		out, err := f.Edge.Edge.DialContext(inTime(t, within), "tcp", netip.AddrPortFrom(attached.addr(six), echoTarget).String())
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()

		capture, err := netlab.NewCapture(f.Edge.Edge, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		busy := make(chan error, 1)
		go func() {
			r, err := (&workload.Load{Namespace: f.Client, Targets: []netip.AddrPort{toAttached.at(httpPort, six)},
				Concurrency: 8, Requests: 1000}).Run(inTime(t, patience.For(time.Minute)))
			if err == nil {
				err = r.Err()
			}
			busy <- err
		}()
		for i := 0; ; i++ {
			select {
			case err := <-busy:
				if err != nil {
					t.Error(err)
				}
				frames, _ := capture.Stop()
				checkOnlySSH(t, frames)
				t.Logf("%d exchanges by each connection meanwhile", i)
				return
			default:
			}
			message := fmt.Sprintf("keystroke %d", i)
			if err := workload.PingPong(in, message, within); err != nil {
				t.Fatalf("client to node: %v", err)
			}
			if err := workload.PingPong(out, message, within); err != nil {
				t.Fatalf("node to backend: %v", err)
			}
		}
	})
}

// checkOnlySSH fails when the node's kernel got to see Weir's packets: what
// arrives at an interface is shown to packet sockets after XDP.
func checkOnlySSH(t *testing.T, frames [][]byte) {
	t.Helper()
	ssh := 0
	for _, frame := range frames {
		src, dst, ok := endsOf(frame)
		switch {
		case !ok:
		case dst.Port() == 22 || src.Port() == 22:
			ssh++
		case dst.Addr() == netlab.Host4(netlab.LBNet, toAttached.index) || dst.Addr() == netlab.Host6(netlab.LBNet, toAttached.index):
			t.Errorf("the kernel got a packet from %s to %s", src, dst)
			return
		}
	}
	if ssh == 0 {
		t.Error("the capture shows nothing")
	}
}
