package route

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// killed runs a watcher until it has resolved hop, and leaves everything as a
// process that was killed does.
func killed(t *testing.T, node *namespace, hop netip.Addr) {
	t.Helper()
	w, err := New(Config{Namespace: node.ns, Interfaces: []Interface{{Index: node.index("e0"), Port: 0}}})
	node.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	resolved(t, w, 0, hop)
	if w.nextHops.refresh != refreshByKernel {
		t.Skip("this kernel does not keep neighbors fresh by itself")
	}
	cancel()
	node.must(<-done)
	node.must(w.sub.close())
	<-w.readerEnded
	w.conn.close()
}

// managedNeighbors are the neighbors that the kernel keeps for Weir.
func managedNeighbors(node *namespace) (out []neighborKey) {
	c, err := dial(node.ns)
	node.must(err)
	defer c.close()
	all, err := c.neighbors(func(int) bool { return true })
	node.must(err)
	for k, n := range all {
		if n.managedByWeir() {
			out = append(out, k)
		}
	}
	return out
}

func TestRestartTakesOverNeighborsThatAreKept(t *testing.T) {
	node, _ := lan(t)
	hop := netip.MustParseAddr("192.0.2.2")
	killed(t, node, hop)
	w, err := New(Config{Namespace: node.ns, Interfaces: []Interface{{Index: node.index("e0"), Port: 0}}})
	node.must(err)
	n, ok := w.Adjacency(0, hop)
	if !ok || w.Adjacencies()[n].State() != Valid {
		t.Errorf("next hop of the last process is not valid at once: %v", ok)
	}
	node.must(w.Close())
	if left := managedNeighbors(node); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestCleanupStaleReleasesNeighbors(t *testing.T) {
	node, _ := lan(t)
	killed(t, node, netip.MustParseAddr("192.0.2.2"))
	if left := managedNeighbors(node); len(left) != 1 {
		t.Fatalf("left: %v", left)
	}
	node.do(CleanupStale)
	if left := managedNeighbors(node); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestEqualCostRoutesOfTheKernel(t *testing.T) {
	node, _ := lan(t)
	w := node.watch(Config{HostVeth: testHostVeth}, "e0")
	for _, tc := range []struct{ dst, a, b, in string }{
		{"203.0.113.0/24", "192.0.2.2", "192.0.2.3", "203.0.113.7"},
		{"2001:db8:1::/48", "2001:db8::2", "2001:db8::3", "2001:db8:1::7"},
	} {
		e0 := node.index("e0")
		_, dst, _ := net.ParseCIDR(tc.dst)
		hops := func(addrs ...string) (out []*netlink.NexthopInfo) {
			for _, a := range addrs {
				out = append(out, &netlink.NexthopInfo{LinkIndex: e0, Gw: net.ParseIP(a)})
			}
			return out
		}
		used := func() string {
			got := map[netip.Addr]bool{}
			for i := range uint32(256) {
				if p, ok := w.Load().Lookup(packetTo(netip.MustParseAddr(tc.in)), i<<24); ok {
					got[p.NextHop] = true
				}
			}
			s := ""
			for _, a := range []string{tc.a, tc.b} {
				if got[netip.MustParseAddr(a)] {
					s += a + " "
				}
			}
			return strings.TrimSpace(s)
		}
		node.must(node.RouteAdd(&netlink.Route{Dst: dst, MultiPath: hops(tc.a, tc.b)}))
		eventually(t, tc.dst, tc.a+" "+tc.b, used)
		node.must(node.RouteReplace(&netlink.Route{Dst: dst, MultiPath: hops(tc.b)}))
		eventually(t, tc.dst+" with one hop", tc.b, used)
	}
}

// safeBuffer is a buffer for a logger in another goroutine.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.b.String(), what)
}

func TestRuleThatIsNotFollowedIsLoggedOnce(t *testing.T) {
	node, _ := lan(t)
	var log safeBuffer
	w := node.watch(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, "e0")
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Src, rule.Tos, rule.Family = 100, 200, prefix("10.0.0.0/8"), 0x10, unix.AF_INET
	node.must(node.RuleAdd(rule))
	eventually(t, "warnings", 1, func() int { return log.count("from 10.0.0.0/8 tos 0x10 lookup 200") })
	node.via("203.0.113.0/24", "192.0.2.2", "e0")
	eventually(t, "path", "attached 0 via 192.0.2.2 from 192.0.2.1", func() string { return pathTo(w, "203.0.113.1") })
	if n := log.count("from 10.0.0.0/8 tos 0x10 lookup 200"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

func TestInterfacesCanBeReplacedWhileRunning(t *testing.T) {
	node, peer := lan(t)
	peer.addr("q0", "198.51.100.2/24")
	w := node.watch(Config{HostVeth: testHostVeth}, "e0")
	hop := netip.MustParseAddr("192.0.2.2")
	resolved(t, w, 0, hop)
	epoch := w.Load().Epoch()
	node.must(w.SetInterfaces([]Interface{{Index: node.index("i0"), Port: 3}}, testHostVeth))
	if got := pathTo(w, "198.51.100.2"); got != "attached 3 via 198.51.100.2 from 198.51.100.1" {
		t.Errorf("new interface: %s", got)
	}
	if got := pathTo(w, "192.0.2.2"); got != "host 9 via 169.254.77.1 from 169.254.77.3" {
		t.Errorf("old interface: %s", got)
	}
	if _, ok := w.Adjacency(0, hop); ok || w.Load().Epoch() == epoch {
		t.Errorf("next hop of the old interface is still there: %v", ok)
	}
	resolved(t, w, 3, netip.MustParseAddr("198.51.100.2"))
	if n, ok := w.Adjacency(testHostVeth.Port, testHostVeth.Gateway4); !ok || w.Adjacencies()[n].State() != Valid {
		t.Errorf("host veth's next hop: %v", ok)
	}
}

func TestAddressesChange(t *testing.T) {
	node, _ := lan(t)
	w := node.watch(Config{HostVeth: testHostVeth}, "e0")
	changed := w.OnChange()
	list := func() string {
		var out []string
		for _, a := range w.Addresses() {
			out = append(out, a.Prefix.String())
		}
		return strings.Join(out, " ")
	}
	const before = "192.0.2.1/24 198.51.100.1/24 2001:db8::1/64"
	eventually(t, "addresses at first", before, list)
	for len(changed) > 0 {
		<-changed
	}
	node.addr("i0", "203.0.113.1/32")
	<-changed
	eventually(t, "addresses", "192.0.2.1/24 198.51.100.1/24 203.0.113.1/32 2001:db8::1/64", list)
	if got := w.In([]netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}); len(got) != 1 {
		t.Errorf("in 203.0.113.0/24: %v", got)
	}
	primary := func(ips ...string) string {
		var node []netip.Addr
		for _, ip := range ips {
			node = append(node, netip.MustParseAddr(ip))
		}
		out := ""
		for _, a := range w.Primary(node) {
			out += fmt.Sprintf("%s/%d ", a.Addr, a.Origin)
		}
		return strings.TrimSpace(out)
	}
	if got := primary(); got != "192.0.2.1/2 2001:db8::1/2" {
		t.Errorf("primary: %s", got)
	}
	if got := primary("198.51.100.1", "10.0.0.1"); got != "198.51.100.1/0 2001:db8::1/2" {
		t.Errorf("primary by the Node object: %s", got)
	}
	node.via("0.0.0.0/0", "192.0.2.2", "e0")
	eventually(t, "primary by the default route", "192.0.2.1/1 2001:db8::1/2", func() string { return primary() })
}
