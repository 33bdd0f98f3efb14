package probepath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/markrule"
	"github.com/weirlb/weir/lb/vethpair"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
)

const returnPathMark = 0x10

// node is a network namespace with a link and a path for probes that nobody answers.
type node struct {
	*netlab.Namespace
	path *Path
}

func newNode(t *testing.T) *node {
	t.Helper()
	labtest.Require(t)
	lab, err := netlab.New()
	must(t, err)
	t.Cleanup(func() { must(t, lab.Close()) })
	ns, err := lab.Namespace("node")
	must(t, err)
	other, err := lab.Namespace("other")
	must(t, err)
	must(t, netlab.Connect(
		netlab.End{Namespace: ns, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.20.0.1/24")}},
		netlab.End{Namespace: other, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.20.0.2/24")}}, netlab.LinkConfig{}))
	must(t, ns.AddRoute("eth0", netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.20.0.2")))
	n := &node{ns, New(Config{Mark: 0x1000, Table: 7766})}
	n.path.idle = 10 * time.Millisecond
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// probe makes a connection to a frontend, as a datagram to nobody. It is closed unless open is not nil.
func (n *node) probe(frontend netip.Addr, open *net.Conn) error {
	return n.Do(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience.For(5*time.Second))
		defer cancel()
		c, err := n.path.Dial(ctx, "udp", Target{conntrack.ModeIPIP, netip.MustParseAddr("10.20.0.2"), netip.AddrPortFrom(frontend, 80)})
		if err != nil {
			return err
		}
		if open == nil {
			return c.Close()
		}
		*open = c
		return nil
	})
}

// towards is the interface by which packets with a mark leave to an address.
func (n *node) towards(a netip.Addr, mark uint32) (name string, err error) {
	err = n.Do(func() error {
		list, err := netlink.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{Mark: mark})
		if err != nil {
			return err
		}
		l, err := netlink.LinkByIndex(list[0].LinkIndex)
		if err != nil {
			return err
		}
		name = l.Attrs().Name
		return nil
	})
	return name, err
}

// routes are the destinations of the table.
func (n *node) routes(t *testing.T) (list []string) {
	t.Helper()
	must(t, n.Do(func() error {
		routes, err := markrule.Routes(unix.AF_INET, n.path.cfg.Table)
		for i := range routes {
			list = append(list, routes[i].Dst.String())
		}
		return err
	}))
	return list
}

// none fails if rule, routes or pair are there.
func (n *node) none(t *testing.T) {
	t.Helper()
	must(t, n.Do(func() error {
		rules, err := markrule.Own(unix.AF_INET, markrule.Probes)
		if len(rules) > 0 {
			err = errors.Join(err, fmt.Errorf("rules are left: %v", rules))
		}
		if _, found, _ := vethpair.Find(names); found {
			err = errors.Join(err, errors.New("the pair is left"))
		}
		return err
	}))
	if list := n.routes(t); len(list) > 0 {
		t.Errorf("routes are left: %v", list)
	}
}

// The author of a Service chooses the address: it leads probes alone into the pair, and for as long as there
// are probes.
func TestWireOnlyProbesTakeThePath(t *testing.T) {
	n := newNode(t)
	frontend, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	var c net.Conn
	must(t, n.probe(frontend, &c))
	for mark, want := range map[uint32]string{0x1000: names[0], returnPathMark: "eth0", 0: "eth0"} {
		if got, err := n.towards(frontend, mark); got != want || err != nil {
			t.Errorf("mark %#x: packets leave by %q (%v), want %s", mark, got, err, want)
		}
	}
	until := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience.For(10 * time.Second)); !done(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: routes %v", what, n.routes(t))
			}
		}
	}
	must(t, n.probe(other, nil))
	until("the last probe of an address has ended", func() bool { return len(n.routes(t)) == 1 })
	if list := n.routes(t); list[0] != "192.0.2.1/32" {
		t.Errorf("routes %v, want that of the open connection", list)
	}
	must(t, errors.Join(c.Close(), n.probe(frontend, nil)))
	until("no probe is left", func() bool { return len(n.routes(t)) == 0 })
	must(t, n.Do(n.path.Close))
	n.none(t)
}

func TestWireProbesNeedAnUnusedTable(t *testing.T) {
	n := newNode(t)
	frontend := netip.MustParseAddr("192.0.2.1")
	theirs := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(10, 60, 0, 1), Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_BLACKHOLE, Table: 7766}
	must(t, n.Do(func() error { return netlink.RouteAdd(theirs) }))
	if err := n.probe(frontend, nil); !errors.Is(err, ErrNode) || !strings.Contains(err.Error(), "hostVeth.probeTable: routing table 7766 has a route to 10.60.0.1/32") {
		t.Errorf("a foreign table: %v", err)
	}
	must(t, n.Do(func() error { return netlink.RouteDel(theirs) }))
	must(t, n.probe(frontend, nil))
	must(t, n.Do(n.path.Close))
	n.none(t)
}

// A process that was killed leaves all.
func TestWireCleanup(t *testing.T) {
	n := newNode(t)
	must(t, n.probe(netip.MustParseAddr("192.0.2.1"), nil))
	n.path.mu.Lock()
	n.path.shut() // the sockets alone
	n.path.mu.Unlock()
	if name, err := n.towards(netip.MustParseAddr("192.0.2.1"), 0x1000); name != names[0] || err != nil {
		t.Fatalf("packets leave by %q (%v)", name, err)
	}
	must(t, n.Do(Cleanup))
	n.none(t)
	must(t, n.Do(Cleanup)) // of nothing
}
