package route

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// sweep asks for n next hops on the link that do not exist, as a host does that sends from
// made-up addresses.
func sweep(t *testing.T, w *Watcher, prefix string, n int) {
	t.Helper()
	a := netip.MustParseAddr(prefix)
	for range n {
		a = a.Next()
		before := w.Stats()
		w.Resolve(0, 0, a, false)
		eventually(t, "request", true, func() bool {
			now := w.Stats()
			return now.Probes+now.ProbeErrors+now.Full > before.Probes+before.ProbeErrors+before.Full
		})
	}
}

// Next hops that do not exist displace each other. Those that exist, endpoints and
// gateways get an adjacency, and keep it.
func TestNextHopsThatDoNotExistTakeNothingFromOthers(t *testing.T) {
	for _, c := range []struct{ name, nobody, known, client, endpoint string }{
		{"IPv4", "192.0.2.64", "192.0.2.2", "192.0.2.3", "192.0.2.200"},
		{"IPv6", "2001:db8::ffff:0", "2001:db8::2", "2001:db8::3", "2001:db8::200"},
	} {
		t.Run(c.name, func(t *testing.T) {
			node, peer := lan(t)
			bits := map[string]string{"IPv4": "/24", "IPv6": "/64"}[c.name]
			peer.addr("p0", c.client+bits)
			eventually(t, "unsettled", "", peer.unsettled)
			w := node.watch(Config{MaxAdjacencies: 32}, "e0")
			known := netip.MustParseAddr(c.known)
			n := resolved(t, w, 0, known)
			stamp := w.Adjacencies()[n].Stamp()
			// An endpoint that does not answer now is no guest; nor is what was asked for
			// as a client's before.
			endpoint := netip.MustParseAddr(c.endpoint)
			w.Resolve(0, 0, endpoint, false)
			w.Resolve(0, 0, endpoint, true)
			eventually(t, "needed", true, func() bool {
				n, ok := w.Adjacency(0, endpoint)
				return ok && w.Adjacencies()[n].Needed()
			})

			sweep(t, w, c.nobody, 100)
			resolved(t, w, 0, netip.MustParseAddr(c.client))
			if _, ok := w.Adjacency(0, endpoint); !ok {
				t.Error("the endpoint's next hop was displaced")
			}
			if m, ok := w.Adjacency(0, known); !ok || m != n || w.Adjacencies()[n].Stamp() != stamp {
				t.Errorf("a next hop that had answered: number %d became %d (%v), stamp %d became %d", n, m, ok, stamp, w.Adjacencies()[n].Stamp())
			}
			if s := w.Stats(); s.Displaced == 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Numbers are kept for endpoints and gateways when clients that do exist have all others.
func TestClientsLeaveNumbersForEndpoints(t *testing.T) {
	node, peer := lan(t)
	peer.sysctl("ipv4/conf/p0/proxy_arp", "1") // answers for everybody
	peer.sysctl("ipv4/neigh/p0/proxy_delay", "0")
	peer.must(peer.RouteAdd(&netlink.Route{LinkIndex: peer.index("q0"), Dst: prefix("192.0.2.128/25"), Scope: netlink.SCOPE_LINK}))
	peer.sysctl("ipv4/ip_forward", "1")
	w := node.watch(Config{MaxAdjacencies: 32}, "e0")
	a := netip.MustParseAddr("192.0.2.128")
	clients := 0
	for range 40 {
		a = a.Next()
		before := w.Stats().Full
		w.Resolve(0, 0, a, false)
		eventually(t, "answer", true, func() bool {
			n, ok := w.Adjacency(0, a)
			if ok && w.Adjacencies()[n].State() == Valid {
				clients++
				return true
			}
			return w.Stats().Full > before
		})
	}
	if clients != 32-32/reservedShare {
		t.Errorf("%d clients have a next hop", clients)
	}
	w.Resolve(0, 0, netip.MustParseAddr("192.0.2.2"), true)
	eventually(t, "the endpoint's", true, func() bool { _, ok := w.Adjacency(0, netip.MustParseAddr("192.0.2.2")); return ok })
}

// What was flushed is asked for by the next packet, at once, and what did not answer a
// while ago too.
func TestNextPacketProbesAFailedNeighborAgain(t *testing.T) {
	node, peer := lan(t)
	for key, value := range map[string]string{"retrans_time_ms": "20", "mcast_solicit": "1"} {
		node.sysctl("ipv4/neigh/e0/"+key, value)
	}
	w := node.watch(Config{}, "e0")
	hop := netip.MustParseAddr("192.0.2.2")
	state := func(hop netip.Addr) func() string {
		return func() string {
			n, _ := w.Adjacency(0, hop)
			return w.Adjacencies()[n].State().String()
		}
	}
	resolved(t, w, 0, hop)
	for range 5 {
		peer.must(peer.LinkSetARPOff(peer.link("p0"))) // nobody is asked by others meanwhile
		list, err := node.NeighList(node.index("e0"), 2)
		node.must(err)
		for i := range list {
			if list[i].IP.Equal(hop.AsSlice()) {
				node.must(node.NeighDel(&list[i]))
			}
		}
		eventually(t, "state", "unresolved", state(hop))
		peer.must(peer.LinkSetARPOn(peer.link("p0")))
		before := w.Stats().Probes
		w.Resolve(0, 0, hop, false)
		eventually(t, "asked at once", before+1, func() uint64 { return w.Stats().Probes })
		eventually(t, "state", "valid", state(hop))
	}

	silent := netip.MustParseAddr("192.0.2.99")
	w.Resolve(0, 0, silent, true)
	eventually(t, "state", "failed", state(silent))
	eventually(t, "state", "unresolved", state(silent))
	peer.addr("p0", "192.0.2.99/24")
	w.Resolve(0, 0, silent, true)
	eventually(t, "state", "valid", state(silent))
}
