package route

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var testHostVeth = &HostVeth{
	Port: 9, Index: 4000, MTU: 1500, MAC: [6]byte{2, 0, 0, 0, 0, 2}, PeerMAC: [6]byte{2, 0, 0, 0, 0, 1},
	Gateway4: netip.MustParseAddr("169.254.77.1"), Gateway6: netip.MustParseAddr("fd77:7765:6972::1"),
	Local4: netip.MustParseAddr("169.254.77.2"), Local6: netip.MustParseAddr("fd77:7765:6972::2"),
	Forward4: netip.MustParseAddr("169.254.77.3"), Forward6: netip.MustParseAddr("fd77:7765:6972::3"),
}

// lan is a node with two interfaces to a neighbor: e0 attached, i0 not.
func lan(t *testing.T) (node, peer *namespace) {
	node, peer = newNamespace(t), newNamespace(t)
	node.veth("e0", peer, "p0")
	node.veth("i0", peer, "q0")
	node.addr("e0", "192.0.2.1/24")
	node.addr("e0", "2001:db8::1/64")
	node.addr("i0", "198.51.100.1/24")
	peer.addr("p0", "192.0.2.2/24")
	peer.addr("p0", "2001:db8::2/64")
	for _, n := range []*namespace{node, peer} {
		eventually(t, "unsettled", "", n.unsettled)
	}
	return node, peer
}

func TestRouteChangesAppear(t *testing.T) {
	node, _ := lan(t)
	w := node.watch(Config{HostVeth: testHostVeth}, "e0")
	check := func(addr, want string) {
		t.Helper()
		eventually(t, addr, want, func() string { return pathTo(w, addr) })
	}
	check("192.0.2.7", "attached 0 via 192.0.2.7 from 192.0.2.1")
	check("2001:db8::7", "attached 0 via 2001:db8::7 from 2001:db8::1")
	check("192.0.2.1", "host 9 via 169.254.77.1 from 169.254.77.2 local")
	check("2001:db8::1", "host 9 via fd77:7765:6972::1 from fd77:7765:6972::2 local")
	check("127.0.0.1", "host 9 via 169.254.77.1 from 169.254.77.2 local")
	check("198.51.100.9", "host 9 via 169.254.77.1 from 169.254.77.3")
	check("192.0.2.255", "not-unicast")
	check("203.0.113.1", "no-route")

	node.via("203.0.113.0/24", "192.0.2.2", "e0")
	check("203.0.113.1", "attached 0 via 192.0.2.2 from 192.0.2.1")
	node.via("2001:db8:1::/48", "2001:db8::2", "e0")
	check("2001:db8:1::1", "attached 0 via 2001:db8::2 from 2001:db8::1")
	node.must(node.RouteAdd(&netlink.Route{Dst: prefix("203.0.113.128/25"), Type: unix.RTN_BLACKHOLE}))
	check("203.0.113.200", "blackhole")
	node.must(node.RouteAdd(&netlink.Route{Dst: prefix("203.0.113.64/27"), Type: unix.RTN_UNREACHABLE}))
	check("203.0.113.65", "unreachable")
	node.must(node.RouteAdd(&netlink.Route{Dst: prefix("203.0.113.96/27"), Type: unix.RTN_PROHIBIT}))
	check("203.0.113.97", "prohibit")

	// A better metric wins, and the worse returns when it is gone.
	better := node.route("203.0.113.0/26", "192.0.2.3", "e0")
	worse := node.route("203.0.113.0/26", "192.0.2.4", "e0")
	better.Priority, worse.Priority = 10, 20
	node.must(node.RouteAdd(worse))
	check("203.0.113.1", "attached 0 via 192.0.2.4 from 192.0.2.1")
	node.must(node.RouteAdd(better))
	check("203.0.113.1", "attached 0 via 192.0.2.3 from 192.0.2.1")
	node.must(node.RouteDel(better))
	check("203.0.113.1", "attached 0 via 192.0.2.4 from 192.0.2.1")

	// A preferred source, and an interface going down (IPv4's routes go
	// without a notification).
	node.addr("e0", "192.0.2.50/24")
	src := node.route("203.0.113.0/26", "192.0.2.4", "e0")
	src.Priority, src.Src = 5, net.ParseIP("192.0.2.50")
	node.must(node.RouteAdd(src))
	check("203.0.113.1", "attached 0 via 192.0.2.4 from 192.0.2.50")
	node.must(node.LinkSetDown(node.link("e0")))
	check("203.0.113.1", "no-route")
}

func prefix(s string) *net.IPNet {
	_, p, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return p
}

func TestNeighborChangesReachTheAdjacencyInPlace(t *testing.T) {
	for _, tc := range []struct{ name, addr string }{{"IPv4", "192.0.2.2"}, {"IPv6", "2001:db8::2"}} {
		t.Run(tc.name, func(t *testing.T) {
			node, peer := lan(t)
			w := node.watch(Config{HostVeth: testHostVeth}, "e0")
			hop := netip.MustParseAddr(tc.addr)
			n := resolved(t, w, 0, hop)
			a := &w.Adjacencies()[n]
			if mac, _ := a.Dst(); mac != macOf(peer, "p0") {
				t.Fatalf("MAC %x, want %x", mac, macOf(peer, "p0"))
			}
			if mac, port := a.Src(); mac != macOf(node, "e0") || port != 0 {
				t.Fatalf("source MAC %x port %d", mac, port)
			}
			if a.MTU() != 1500 {
				t.Fatalf("MTU %d", a.MTU())
			}
			epoch := w.Load().Epoch()
			mac := net.HardwareAddr{2, 1, 2, 3, 4, 5}
			node.must(node.NeighSet(&netlink.Neigh{LinkIndex: node.index("e0"), IP: hop.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT}))
			eventually(t, "MAC", MACWord([6]byte(mac)), func() uint64 { m, _ := a.Dst(); return m })
			if again, ok := w.Adjacency(0, hop); !ok || again != n || w.Load().Epoch() != epoch {
				t.Fatalf("number %d became %d, epoch %d became %d", n, again, epoch, w.Load().Epoch())
			}
			node.must(node.LinkSetMTU(node.link("e0"), 1400))
			eventually(t, "MTU", 1400, func() uint32 { return a.MTU() })
		})
	}
}

func macOf(n *namespace, name string) uint64 {
	return MACWord([6]byte(n.link(name).Attrs().HardwareAddr))
}

// resolved asks for a next hop and waits until it is valid.
func resolved(t testing.TB, w *Watcher, port int, hop netip.Addr) uint32 {
	t.Helper()
	w.Resolve(0, port, hop, false)
	var n uint32
	eventually(t, "state of "+hop.String(), "valid", func() string {
		var ok bool
		if n, ok = w.Adjacency(port, hop); !ok {
			return "none"
		}
		return w.Adjacencies()[n].State().String()
	})
	return n
}

func TestNextHopThatDoesNotAnswerFailsUntilItDoes(t *testing.T) {
	node, peer := lan(t)
	node.probing("e0", "50", "200")
	w := node.watch(Config{}, "e0")
	hop := netip.MustParseAddr("192.0.2.99")
	w.Resolve(0, 0, hop, false)
	tick := uint32(0)
	state := func() string {
		n, ok := w.Adjacency(0, hop)
		if !ok {
			return "none"
		}
		tick++
		w.Adjacencies()[n].Touch(tick) // a worker still has packets for it
		return w.Adjacencies()[n].State().String()
	}
	eventually(t, "state", "failed", state)
	peer.addr("p0", "192.0.2.99/24")
	eventually(t, "state", "valid", state)
}

func TestCloseReleasesManagedNeighbors(t *testing.T) {
	node, _ := lan(t)
	kept := netip.MustParseAddr("2001:db8::2")
	before := &netlink.Neigh{
		LinkIndex: node.index("e0"), IP: kept.AsSlice(), State: netlink.NUD_STALE,
		HardwareAddr: net.HardwareAddr{2, 9, 9, 9, 9, 9},
	}
	node.must(node.NeighSet(before))
	w, err := New(Config{Namespace: node.ns, Interfaces: []Interface{{Index: node.index("e0"), Port: 0}}})
	node.must(err)
	go func() { _ = w.Run(t.Context()) }()
	n := resolved(t, w, 0, netip.MustParseAddr("192.0.2.2"))
	resolved(t, w, 0, kept)
	w.Adjacencies()[n].Touch(1)
	if got := w.nextHops.refresh; got != refreshByKernel {
		t.Logf("this kernel does not keep neighbors: %v", got)
	}
	node.must(w.Close())
	list, err := node.NeighList(node.index("e0"), netlink.FAMILY_ALL)
	node.must(err)
	found := false
	for _, n := range list {
		ip, _ := netip.AddrFromSlice(n.IP)
		switch {
		case ip == netip.MustParseAddr("192.0.2.2"):
			t.Errorf("neighbor left behind: %+v", n)
		case ip == kept:
			found = true
			if n.Flags&unix.NTF_EXT_LEARNED != 0 || n.FlagsExt != 0 {
				t.Errorf("neighbor is still managed: %+v", n)
			}
		}
	}
	if !found {
		t.Errorf("neighbor that the host had is gone")
	}
}

func TestLostNotificationsCauseAFullRead(t *testing.T) {
	node, _ := lan(t)
	w, err := New(Config{Namespace: node.ns, ReceiveBuffer: 1, Interfaces: []Interface{{Index: node.index("e0"), Port: 0}}})
	node.must(err)
	// Nobody reads: the buffer overflows.
	for range 200 {
		r := node.route("203.0.113.0/24", "192.0.2.2", "e0")
		node.must(node.RouteAdd(r))
		node.must(node.RouteDel(r))
	}
	node.via("203.0.113.0/24", "192.0.2.3", "e0")
	go func() { _ = w.Run(t.Context()) }()
	eventually(t, "path", "attached 0 via 192.0.2.3 from 192.0.2.1", func() string { return pathTo(w, "203.0.113.9") })
	eventually(t, "lost", true, func() bool { return w.Stats().Lost > 0 })
	node.must(w.Close())
}

func TestIdleNextHopsExpire(t *testing.T) {
	node, _ := lan(t)
	w := node.watch(Config{IdleAfter: time.Second, MaxAdjacencies: 2}, "e0")
	epoch := w.Load().Epoch()
	idle, used := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
	n, m := resolved(t, w, 0, idle), resolved(t, w, 0, used)
	a, b := &w.Adjacencies()[n], &w.Adjacencies()[m]
	given, kept := a.Stamp(), b.Stamp()
	tick := uint32(0)
	eventually(t, "adjacency", false, func() bool { tick++; b.Touch(tick); _, ok := w.Adjacency(0, idle); return ok })
	eventually(t, "the stamp changed", true, func() bool { return a.Stamp() != given })
	// Flows that use other next hops hear nothing of it.
	if w.Load().Epoch() != epoch || b.Stamp() != kept {
		t.Errorf("epoch %d became %d, another next hop's stamp %d became %d", epoch, w.Load().Epoch(), kept, b.Stamp())
	}
}
