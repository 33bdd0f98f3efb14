package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// goingOn has connections with data of every kind, and new ones, while change changes the
// node's network. None is lost, and each byte is right.
func (f *fixture) goingOn(t *testing.T, dial func(service, bool) (net.Conn, error), change func()) {
	t.Helper()
	var talks []*talk
	for i := range 40 {
		s, six := f.services[i%len(f.services)], i/len(f.services)%2 == 1
		c, err := dial(s, six)
		if err != nil {
			t.Fatalf("%s/%s: %v", s.name, family(six), err)
		}
		defer c.Close()
		talks = append(talks, &talk{conn: c, name: s.name + "/" + family(six)})
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, k := range talks {
		running.Go(func() { k.run(ctx) })
	}
	saidBy(t, talks, 3)
	change()
	saidBy(t, talks, 3)
	stop()
	running.Wait()
	for _, k := range talks {
		if k.err != nil {
			t.Errorf("%s: after %d exchanges: %v", k.name, k.said.Load(), k.err)
		}
	}
	t.Logf("longest pause %v", longestPauses(talks).max())
}

// fromClient dials as every other client does.
func (f *fixture) fromClient(s service, six bool) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return f.Client.DialContext(ctx, "tcp", s.at(echoPort, six).String())
}

// begins checks that new connections succeed.
func (f *fixture) begins(t *testing.T, when string) {
	t.Helper()
	begun := time.Now()
	defer func() { t.Logf("%s: 20 new connections in %v", when, time.Since(begun).Round(time.Millisecond)) }()
	for i := range 20 {
		s, six := f.services[i%len(f.services)], i/len(f.services)%2 == 1
		if err := f.exchangeOnce(s, six); err != nil {
			t.Errorf("%s: new connection to %s/%s: %v", when, s.name, family(six), err)
		}
	}
}

// awaits waits until the warnings of an interface have the text, or no longer have it.
func (f *fixture) awaits(t *testing.T, text string, there bool) {
	t.Helper()
	must(t, f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err == nil && strings.Contains(strings.Join(s.Warnings, "\n"), text) != there {
			err = fmt.Errorf("%q is there: %v: %q", text, !there, s.Warnings)
		}
		return err
	}))
}

// The MTU of an interface becomes smaller and larger in place.
func TestWireMTUChangesInPlace(t *testing.T) {
	f := ownFixture(t, options{services: kinds})
	set := func(mtu int, of ...*netlab.Namespace) {
		t.Helper()
		for _, n := range of {
			l, err := n.Interface("eth0")
			must(t, err)
			must(t, n.Netlink().LinkSetMTU(l, mtu))
		}
		must(t, f.poll(func(ctx context.Context) error {
			s, err := f.admin.Status(ctx)
			if err == nil && interfaceOf(s, "eth0").MTU != mtu {
				err = fmt.Errorf("the status has MTU %d, want %d", interfaceOf(s, "eth0").MTU, mtu)
			}
			return err
		}))
	}
	f.goingOn(t, f.fromClient, func() {
		for _, mtu := range []int{1400, 1280, 1500} {
			set(mtu, f.Client, f.Edge.Edge)
			f.begins(t, fmt.Sprintf("with an MTU of %d", mtu))
		}
		set(2500, f.Edge.Edge)
		f.awaits(t, "interface eth0: its MTU is 2500", true)
		f.begins(t, "with an MTU of 2500")
		set(1500, f.Edge.Edge)
		f.awaits(t, "its MTU is", false)
	})
}

// A process starts while an uplink has no carrier, as after a crash beside a switch that is down. The
// other interfaces serve, and connections outlive the process.
func TestWireStartWithoutACarrier(t *testing.T) {
	f := ownFixture(t, options{services: kinds, extra: "death: {holdSeconds: 600}"})
	conn := f.dialed(t, toPod.at(echoPort, false))
	l, err := f.Fabric.Interface("edge")
	must(t, err)
	must(t, f.Fabric.Netlink().LinkSetDown(l))
	f.awaits(t, "interface eth1 is down or has no carrier", true)
	must(t, f.weir.Kill())
	must(t, f.launch("config.yaml"))
	f.awaits(t, "interface eth1 is down or has no carrier", true)
	f.showsReady(t, "eth1", false, true) // eth0 works
	must(t, workload.PingPong(conn, "still here", within))
	must(t, f.Fabric.Netlink().LinkSetUp(l))
	f.awaits(t, "has no carrier", false)
	f.shows(t, "eth1", true)
	f.begins(t, "by the link that is back")
}

// A link loses its carrier on either side. Weir stays attached, says so, and connections go on.
func TestWireLinkFlaps(t *testing.T) {
	f := ownFixture(t, options{services: kinds})
	must(t, f.Edge.Edge.SetSysctl("net/ipv6/conf/eth1/keep_addr_on_down", "1"))
	flap := func(n *netlab.Namespace, name string, up func()) {
		t.Helper()
		l, err := n.Interface(name)
		must(t, err)
		must(t, n.Netlink().LinkSetDown(l))
		f.awaits(t, "interface eth1 is down or has no carrier", true)
		f.showsReady(t, "eth1", false, true) // eth0 works
		must(t, n.Netlink().LinkSetUp(l))
		up()
		f.awaits(t, "has no carrier", false)
		f.shows(t, "eth1", true)
	}
	f.goingOn(t, f.fromClient, func() {
		for range 2 {
			flap(f.Fabric, "edge", func() {})
			f.begins(t, "after the far end")
			flap(f.Edge.Edge, "eth1", func() { f.routeOverFabric(t) })
			f.begins(t, "after the near end")
		}
	})
}
