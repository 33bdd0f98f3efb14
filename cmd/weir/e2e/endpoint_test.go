package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// seenAs says where an endpoint must see connections come from.
func seenAs(e endpoint, six bool) netip.Prefix {
	host := func(network, host uint8) netip.Prefix {
		if six {
			return netip.PrefixFrom(netlab.Host6(network, host), 128)
		}
		return netip.PrefixFrom(netlab.Host4(network, host), 32)
	}
	switch e {
	case attached, routed:
		return host(netlab.FabricNet, 1) // the edge node's address on the way out
	case overlay:
		return host(netlab.OverlayNet, 1) // masqueraded by the kernel
	}
	if six { // the host veth's prefixes
		return netip.MustParsePrefix("fd77:7765:6972::/64")
	}
	return netip.MustParsePrefix("169.254.77.0/24")
}

// Every kind of endpoint answers by node port and by load balancer IP, the
// client hears from nobody but the frontend, and the server sees the SNAT
// address.
func TestWireEveryKindOfEndpoint(t *testing.T) {
	f := sharedFixture(t)
	f.checkChecksums(t)
	for _, s := range kinds {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				for name, to := range map[string]func(uint16, bool) netip.AddrPort{"node port": s.atNode, "load balancer IP": s.at} {
					t.Run(name, func(t *testing.T) {
						f.checkEndpoint(t, s, six, to)
					})
				}
			})
		})
	}
}

func (f *fixture) checkEndpoint(t *testing.T, s service, six bool, to func(uint16, bool) netip.AddrPort) {
	capture, err := netlab.NewCapture(f.Client, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	ctx := inTime(t, within)
	transfer := &workload.Transfer{Namespace: f.Client, Target: to(httpPort, six), Bytes: 1_000_003, Seed: 3}
	if err := transfer.Download(ctx); err != nil {
		t.Error(err)
	}
	udp, askErr := workload.Ask(f.Client, to(echoPort, six), patience.For(2*time.Second))
	frames, _ := capture.Stop()

	if askErr != nil || udp != s.name {
		t.Errorf("UDP: %q answered, %v", udp, askErr)
	}
	if transfer.Server() != s.name {
		t.Errorf("TCP: %q answered", transfer.Server())
	}
	if got, err := netip.ParseAddrPort(transfer.SeenAs()); err != nil || !seenAs(s.endpoints[0], six).Contains(got.Addr().Unmap()) {
		t.Errorf("the server saw %s, want an address of %s", transfer.SeenAs(), seenAs(s.endpoints[0], six))
	}
	checkPeers(t, frames, to(httpPort, six), to(echoPort, six))
}

// checkPeers fails when a TCP or UDP packet of the client's had another peer
// than the given ones.
func checkPeers(t *testing.T, frames [][]byte, want ...netip.AddrPort) {
	t.Helper()
	clients := map[netip.Addr]bool{netlab.Host4(netlab.ClientNet, 2): true, netlab.Host6(netlab.ClientNet, 2): true}
	allowed, seen := map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}
	for _, a := range want {
		allowed[a] = true
	}
	for _, frame := range frames {
		src, dst, ok := endsOf(frame)
		switch {
		case !ok:
		case clients[src.Addr()]:
			seen[dst] = true
		default:
			seen[src] = true
		}
	}
	for a := range seen {
		if !allowed[a] {
			t.Errorf("the client exchanged packets with %s", a)
		}
	}
	for a := range allowed {
		if !seen[a] {
			t.Errorf("the client exchanged no packet with %s", a)
		}
	}
}

// endsOf are source and destination of a TCP or UDP frame.
func endsOf(frame []byte) (src, dst netip.AddrPort, ok bool) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: true, NoCopy: true})
	network, transport := p.NetworkLayer(), p.TransportLayer()
	if network == nil || transport == nil {
		return src, dst, false
	}
	var sport, dport uint16
	switch l := transport.(type) {
	case *layers.TCP:
		sport, dport = uint16(l.SrcPort), uint16(l.DstPort)
	case *layers.UDP:
		sport, dport = uint16(l.SrcPort), uint16(l.DstPort)
	default:
		return src, dst, false
	}
	flow := network.NetworkFlow()
	from, _ := netip.AddrFromSlice(flow.Src().Raw())
	to, _ := netip.AddrFromSlice(flow.Dst().Raw())
	return netip.AddrPortFrom(from, sport), netip.AddrPortFrom(to, dport), true
}

// All endpoints of one Service get a fair share, in front of the kernel and
// behind it.
func TestWireSpreadsOverAllEndpoints(t *testing.T) {
	f := sharedFixture(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		const requests = 1000
		r, err := (&workload.Load{Namespace: f.Client, Targets: []netip.AddrPort{toAll.at(httpPort, six)},
			Concurrency: 4, Requests: requests}).Run(inTime(t, patience.For(time.Minute)))
		if err != nil || r.Err() != nil {
			t.Fatal(err, r.Err())
		}
		// 200 expected with a standard deviation of 12.6: six of them.
		for name, n := range r.Servers() {
			if n < 124 || n > 276 {
				t.Errorf("%s got %d of %d connections", name, n, requests)
			}
		}
		if len(r.Servers()) != len(toAll.endpoints) {
			t.Errorf("answers from %v", r.Servers())
		}
	})
}

// A load balancer IP in the clients' own network is held by no interface;
// another process answers ARP and NDP for it.
func TestWireLoadBalancerIPThatNoInterfaceHolds(t *testing.T) {
	f := sharedFixture(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		f.checkLoad(t, f.Client, toAnnounced.at(httpPort, six), 50)
	})
	if f.speaker.Answers() == 0 {
		t.Error("the speaker was not asked")
	}
}

// Clients on the edge node itself reach load balancer IPs through Weir.
func TestWireClientOnTheNodeReachesLoadBalancerIPs(t *testing.T) {
	f := sharedFixture(t)
	for _, s := range kinds {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				f.checkLoad(t, f.Edge.Edge, s.at(httpPort, six), 20)
				if name, err := workload.Ask(f.Edge.Edge, s.at(echoPort, six), patience.For(2*time.Second)); err != nil || name != s.name {
					t.Errorf("UDP: %q answered, %v", name, err)
				}
			})
		})
	}
}

// A pod on the edge node reaches load balancer IPs through Weir.
func TestWirePodOnTheNodeReachesLoadBalancerIPs(t *testing.T) {
	f := sharedFixture(t)
	for _, s := range []service{toAttached, toOverlay} {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				f.checkLoad(t, f.Pod, s.at(httpPort, six), 20)
			})
		})
	}
}

// A hostNetwork server that listens on all of the node's addresses answers
// datagrams from whatever address the kernel's routes choose; the client must
// not notice.
func TestWireWildcardListenerOnTheNode(t *testing.T) {
	f := ownFixture(t, options{services: []service{toNode}, wildcard: true})
	bothFamilies(t, func(t *testing.T, six bool) {
		f.checkLoad(t, f.Client, toNode.at(httpPort, six), 20)
		f.checkEcho(t, toNode, six, 1, 100)
		if name, err := workload.Ask(f.Edge.Edge, toNode.at(echoPort, six), patience.For(2*time.Second)); err != nil || name != toNode.name {
			t.Errorf("UDP from the node itself: %q answered, %v", name, err)
		}
	})
}

// checkLoad makes requests with a new connection each, and none may fail.
func (f *fixture) checkLoad(t *testing.T, from *netlab.Namespace, to netip.AddrPort, requests int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(time.Minute))
	defer cancel()
	r, err := (&workload.Load{Namespace: from, Targets: []netip.AddrPort{to}, Requests: requests, Timeout: patience.For(5 * time.Second)}).Run(ctx)
	if err == nil {
		err = r.Err()
	}
	if err == nil && r.Requests() != requests {
		err = fmt.Errorf("only %d of %d requests were made", r.Requests(), requests)
	}
	if err != nil {
		t.Errorf("%s: %v", to, err)
	}
}
