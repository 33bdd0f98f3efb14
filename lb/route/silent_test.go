package route

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A packet to an endpoint that has not answered has it asked for again at once, however recent the
// failure is.
func TestAFailedEndpointIsAskedForByTheNextPacket(t *testing.T) {
	node, peer := lan(t)
	for key, value := range map[string]string{"retrans_time_ms": "20", "mcast_solicit": "1"} {
		node.sysctl("ipv4/neigh/e0/"+key, value)
	}
	w := node.watch(Config{}, "e0")
	hop := netip.MustParseAddr("192.0.2.99")
	w.Resolve(0, 0, hop, true)
	state := func() State {
		n, _ := w.Adjacency(0, hop)
		return w.Adjacencies()[n].State()
	}
	eventually(t, "state", Failed, state)
	before := w.Stats().Probes
	w.Resolve(0, 0, hop, true)
	eventually(t, "asked again", before+1, func() uint64 { return w.Stats().Probes })
	eventually(t, "state", Failed, state)
	peer.addr("p0", hop.String()+"/24")
	w.Resolve(0, 0, hop, true)
	eventually(t, "state", Valid, state)
}

// The kernel asks for a neighbor by itself, before a packet comes. That failure is not the answer to
// the packet's request, which the kernel has joined to its own; nor is one that it announced before.
func TestAFailureIsOfTheRequestThatBeganTheResolution(t *testing.T) {
	node, _ := lan(t)
	node.sysctl("ipv4/neigh/e0/mcast_solicit", "1")
	w, err := New(Config{Namespace: node.ns, Interfaces: []Interface{{Index: node.index("e0"), Port: 0}}})
	node.must(err)
	hop := netip.MustParseAddr("192.0.2.99")
	key := neighborKey{node.index("e0"), hop}
	ask := func() { w.nextHops.request(request{makeHopKey(0, hop), true}, time.Now()) }
	kernel := func() (n neighbor) {
		n, _ = w.conn.neighbor(key)
		return n
	}
	node.must(w.conn.probe(key, false)) // another program's
	ask()
	n, _ := w.Adjacency(0, hop)
	a := &w.Adjacencies()[n]
	if a.State() != Resolving || a.Probes() != 1 {
		t.Fatalf("%v, asked %d times", a.State(), a.Probes())
	}
	w.nextHops.neighborChanged(&neighborChange{key: key, n: neighbor{state: unix.NUD_FAILED}})
	if a.State() != Resolving {
		t.Errorf("%v by a failure of the past", a.State())
	}
	for round, want := range []bool{false, true} {
		eventually(t, "the kernel has given up", true, func() bool { return kernel().state&unix.NUD_FAILED != 0 })
		w.nextHops.neighborChanged(&neighborChange{key: key, n: kernel()})
		if got := a.FailedSince(uint32(round)); a.State() != Failed || got != want {
			t.Errorf("round %d: %v, the request's failure: %v, want %v", round, a.State(), got, want)
		}
		ask()
	}
	node.must(w.Close())
}

// The link to a next hop returns. Nobody could answer before: an endpoint is asked for at once,
// without a packet, and the resolution that the kernel repeats once a second begins anew.
func TestALinkThatReturnsHasItsEndpointsAskedForAtOnce(t *testing.T) {
	for _, tt := range []struct {
		name           string
		retransmission string // of the kernel's requests, in milliseconds
		before         State
	}{
		{"has not answered", "20", Failed},
		{"is being asked for", "60000", Resolving},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node, peer := lan(t)
			node.probing("e0", tt.retransmission, "60000")
			peer.must(peer.LinkSetDown(peer.link("p0")))
			eventually(t, "carrier", false, func() bool { return node.link("e0").Attrs().OperState == netlink.OperUp })
			w := node.watch(Config{}, "e0")
			hop := netip.MustParseAddr("192.0.2.2")
			state := func() State {
				n, _ := w.Adjacency(0, hop)
				return w.Adjacencies()[n].State()
			}
			w.Resolve(0, 0, hop, true)
			eventually(t, "state", tt.before, state)
			before := w.Stats().Probes
			peer.must(peer.LinkSetUp(peer.link("p0")))
			eventually(t, "asked at once", before+1, func() uint64 { return w.Stats().Probes })
			eventually(t, "state", Valid, state)
		})
	}
}

// After the return of the link a client that has not answered is asked for by the next packet.
// Addresses of clients may be made up: none is asked for without a packet.
func TestALinkThatReturnsEndsTheFailuresOfThePast(t *testing.T) {
	node, _ := lan(t)
	w, err := New(Config{Namespace: node.ns, Interfaces: []Interface{{Index: node.index("e0"), Port: 0}}})
	node.must(err)
	endpoint, client := netip.MustParseAddr("192.0.2.98"), netip.MustParseAddr("192.0.2.99")
	adjacency := func(a netip.Addr) *Adjacency {
		n, _ := w.Adjacency(0, a)
		return &w.Adjacencies()[n]
	}
	fail := func(a netip.Addr) {
		key := neighborKey{node.index("e0"), a}
		node.must(w.conn.remove(key))
		w.nextHops.neighborChanged(&neighborChange{key: key, n: neighbor{state: unix.NUD_FAILED}})
	}
	for a, needed := range map[netip.Addr]bool{endpoint: true, client: false} {
		w.nextHops.request(request{makeHopKey(0, a), needed}, time.Now())
		fail(a)
		if adj := adjacency(a); adj.State() != Failed || !adj.FailedSince(0) || !adj.Silent() {
			t.Fatalf("%s: %v, silent %v", a, adj.State(), adj.Silent())
		}
	}
	w.nextHops.carrierChanged(node.index("e0"), carrier{lost: true, has: true}, time.Now())
	if s := adjacency(client).State(); s != Unresolved {
		t.Errorf("the client is %v", s)
	}
	if adj := adjacency(endpoint); adj.State() != Resolving || adj.Probes() != 2 || !adj.Silent() {
		t.Errorf("the endpoint is %v, asked for %d times, silent %v", adj.State(), adj.Probes(), adj.Silent())
	}
	node.must(w.Close())
}
