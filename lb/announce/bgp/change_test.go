package bgp_test

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

// neighborsLine is the line that replaces the neighbors of a speaker.
func neighborsLine(t *testing.T, list ...bgp.Neighbor) string {
	t.Helper()
	for i := range list {
		list[i].ASN, list[i].Hold, list[i].Keepalive = router.ASN, 9*time.Second, 3*time.Second
	}
	b, err := json.Marshal(map[string]any{"neighbors": list})
	must(t, err)
	return string(b)
}

// A speaker takes and drops neighbors while it runs. A session with a neighbor that stays goes on,
// with BFD, and one with other settings begins anew, with all routes.
func TestWireNeighborsChange(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0), node6(0)}, BFD: 300}))
	started(t, r, err)
	fast := &bgp.BFD{Receive: 300 * time.Millisecond, Transmit: 300 * time.Millisecond, Multiplier: 3}
	four := bgp.Neighbor{Address: netlab.Host4(netlab.FleetNet, netlab.FleetRouter), BFD: fast}
	six := bgp.Neighbor{Address: netlab.Host6(netlab.FleetNet, netlab.FleetRouter), BFD: fast}

	s := start(t, f.Nodes[0])
	if peers := s.set(t, announce.Route{Prefix: vip4}, announce.Route{Prefix: vip6}); len(peers) != 0 {
		t.Fatalf("without neighbors: %+v", peers)
	}
	s.say(t, neighborsLine(t, four))
	untilHops(t, f, vip4, node4(0))
	first := s.untilBFD(t, four.Address)

	s.say(t, neighborsLine(t, six, four))
	untilHops(t, f, vip6, node6(0))
	s.untilBFD(t, six.Address)
	if now := s.untilBFD(t, four.Address); !now.Since.Equal(first.Since) || now.Ends != 0 {
		t.Errorf("the session with a neighbor that stays began anew: %+v, before %+v", now, first)
	}

	slow := four
	slow.BFD = nil
	if peers := s.say(t, neighborsLine(t, six, slow)); len(peers) != 2 {
		t.Errorf("%+v", peers)
	}
	deadline := time.Now().Add(patience.For(20 * time.Second))
	for {
		p := peerAt(s.say(t, ""), four.Address)
		if p.Established && p.BFD == "" && p.Routes == 1 && p.Ends == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("with other settings: %+v", p)
		}
		time.Sleep(20 * time.Millisecond)
	}
	untilHops(t, f, vip4, node4(0))

	if peers := s.say(t, neighborsLine(t, six)); len(peers) != 1 || peers[0].Name != six.Address.String() {
		t.Errorf("a neighbor less: %+v", peers)
	}
	untilHops(t, f, vip4)
	untilHops(t, f, vip6, node6(0))
	if peers := s.say(t, neighborsLine(t)); len(peers) != 0 {
		t.Errorf("no neighbor: %+v", peers)
	}
	untilHops(t, f, vip6)
}

func peerAt(peers []announce.Peer, a netip.Addr) announce.Peer {
	for _, p := range peers {
		if p.Name == a.String() {
			return p
		}
	}
	return announce.Peer{}
}

// untilBFD waits until BFD with a neighbor is up.
func (s *speaker) untilBFD(t *testing.T, a netip.Addr) announce.Peer {
	t.Helper()
	for deadline := time.Now().Add(patience.For(20 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		p := peerAt(s.say(t, ""), a)
		if p.Established && p.BFD == "up" {
			return p
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v: %+v", a, p)
		}
	}
}
