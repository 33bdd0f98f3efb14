package e2e

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// dialUDP is a socket of the client's.
func (f *fixture) dialUDP(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := f.Client.DialContext(inTime(t, within), "udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// checkFragmented has an endpoint of each kind echo datagrams that both kernels
// send in fragments, to the load balancer IP and to the node port, while the
// node itself gets such datagrams at the same address.
func (f *fixture) checkFragmented(t *testing.T) {
	own, err := workload.ServeEcho(f.Edge.Edge, "own", "[::]:5353")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	before := f.fragments(t)
	for _, s := range kinds {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				node := s.atNode(echoPort, six)
				conns := map[string]net.Conn{}
				for name, to := range map[string]netip.AddrPort{
					"load balancer IP": s.at(echoPort, six),
					"node port":        node,
					"the node itself":  netip.AddrPortFrom(node.Addr(), 5353),
				} {
					learnPath(t, f.dialUDP(t, to)) // a socket of its own: late answers go there
					conns[name] = f.dialUDP(t, to)
				}
				for _, size := range []int{3999, 4000, 4001, 20000} {
					for name, c := range conns {
						r, err := workload.CheckEcho(c, size, size, within)
						if s.name == toOverlay.name && six && err == nil && r.Lost > 0 {
							// An error about an earlier datagram is still to be learned from.
							r, err = workload.CheckEcho(c, size, size, within)
						}
						if err != nil || r.Lost+r.Corrupt > 0 {
							t.Errorf("%s, %d bytes: %+v, %v", name, size, r, err)
						}
					}
				}
			})
		})
	}
	after := f.fragments(t)
	// 3 + 3 + 3 + 14 fragments, there and back, to two addresses of every kind.
	if n, want := after["sent"]-before["sent"], uint64(2*2*2*23*len(kinds)); n < want {
		t.Errorf("%d fragments passed through Weir, want %d", n, want)
	}
	for _, reason := range fragmentDrops {
		if n := after[reason] - before[reason]; n > 0 {
			t.Errorf("%d dropped as %s", n, reason)
		}
	}
}

var fragmentDrops = []string{"fragment-overlap", "fragment-expired", "fragment-limit", "orphan-fragment"}

// fragments are the numbers of fragments that Weir sent, and that it dropped by reason.
func (f *fixture) fragments(t *testing.T) map[string]uint64 {
	t.Helper()
	status, err := f.admin.Status(inTime(t, within))
	must(t, err)
	n := map[string]uint64{}
	for _, w := range status.Workers {
		n["sent"] += w.Counters[counter.Fragments]
	}
	for _, reason := range fragmentDrops {
		n[reason] = status.Drops[reason]
	}
	return n
}

// learnPath sends long datagrams until one is answered. In IPv6 only the sender
// makes fragments, of the size that the last error told him: the way to an
// overlay is narrower than the client's link.
func learnPath(t *testing.T, c net.Conn) {
	t.Helper()
	for range 20 {
		if r, err := workload.CheckEcho(c, 3000, 3000, patience.For(time.Second)); err == nil && r.Lost == 0 {
			return
		}
	}
	t.Fatalf("%s: no datagram of 3000 bytes was answered", c.RemoteAddr())
}

func TestWireFragmentedDatagrams(t *testing.T) {
	sharedFixture(t).checkFragmented(t)
}

// The queue of a fragment is the kernel's choice, and the first may come by
// another than the rest.
func TestWireFragmentedDatagramsOnTwoQueues(t *testing.T) {
	f := ownFixture(t, options{services: kinds, edge: netlab.EdgeConfig{Queues: 2}})
	f.checkFragmented(t)
}

// A datagram without DF that fits the link by which it comes, and not the link by which
// it leaves, arrives: Weir sends it in fragments, as the kernel would. So it does with
// fragments of a longer datagram.
func TestWireDatagramsThatDoNotFitTheOutgoingLink(t *testing.T) {
	for name, edge := range map[string]netlab.EdgeConfig{
		"to the endpoint": {ClientMTU: 9000}, "to the client": {MTU: 9000, ClientMTU: 1500},
	} {
		t.Run(name, func(t *testing.T) {
			f := ownFixture(t, options{services: kinds, noDF: true, edge: edge})
			for _, s := range kinds {
				c := f.dialUDP(t, s.at(echoPort, false))
				for _, size := range []int{1472, 1473, 4000, 8972, 20000} {
					r, err := workload.CheckEcho(c, size, size, within)
					if err != nil || r.Lost+r.Corrupt > 0 {
						t.Fatalf("%s, %d bytes: %+v, %v; dropped %s", s.name, size, r, err, f.whatWasDropped())
					}
				}
			}
			if dropped := f.whatWasDropped(); strings.Contains(dropped, "larger-than-mtu") {
				t.Error(dropped)
			}
		})
	}
}
