package bgp_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

// twoSessions are two routers for a node: two addresses of a router, with sessions of two addresses
// of the node.
func twoSessions(t *testing.T, f *netlab.Fleet) (first, second bgp.Neighbor) {
	t.Helper()
	second = bgp.Neighbor{Address: netlab.Host4(netlab.FleetNet, 250), Source: netlab.Host4(netlab.FleetNet, 249)}
	for _, x := range []struct {
		at   *netlab.Namespace
		link string
		a    netip.Addr
	}{{f.Router, "br0", second.Address}, {f.Nodes[0], "eth0", second.Source}} {
		link, err := x.at.Netlink().LinkByName(x.link)
		must(t, err)
		a, err := netlink.ParseAddr(x.a.String() + "/24")
		must(t, err)
		must(t, x.at.Netlink().AddrAdd(link, a))
	}
	return bgp.Neighbor{Address: netlab.Host4(netlab.FleetNet, netlab.FleetRouter)}, second
}

// untilHeard waits for the paths of a prefix in FRR: the last byte of the neighbor's address,
// communities, and the local preference where there is one.
func untilHeard(t *testing.T, s *speaker, r *router.Router, p netip.Prefix, want string) {
	t.Helper()
	for deadline := time.Now().Add(patience.For(30 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		type text struct {
			String string `json:"string"`
		}
		var got struct {
			Paths []struct {
				ASPath         text `json:"aspath"`
				Community      text `json:"community"`
				LargeCommunity text `json:"largeCommunity"`
				Peer           struct {
					ID string `json:"peerId"`
				} `json:"peer"`
			} `json:"paths"`
		}
		must(t, r.VTYSH("show bgp ipv4 unicast "+p.String()+" json", &got))
		var heard []string
		for _, x := range got.Paths {
			heard = append(heard, strings.Join(strings.Fields(fmt.Sprint(netip.MustParseAddr(x.Peer.ID).As4()[3], " ", x.ASPath.String, " ", x.Community.String, " ", x.LargeCommunity.String)), " "))
		}
		slices.Sort(heard)
		if text := strings.Join(heard, ", "); text == want {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("%v: heard %q, want %q; %+v", p, text, want, s.say(t, ""))
		}
	}
}

// A route goes to the routers alone that it is for, with their attributes. It follows a change of
// these without a new session, and a router that is added later.
func TestWireRoutesOfSomePeers(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	first, second := twoSessions(t, f)
	r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0), second.Source}}))
	started(t, r, err)
	s := start(t, f.Nodes[0], first)
	community := func(n uint32) announce.Attributes {
		return announce.Attributes{Communities: []uint32{65001<<16 | n}, LargeCommunities: [][3]uint32{{65001, 1, n}}}
	}
	peers := func(n *bgp.Neighbor, a announce.Attributes) map[string]announce.Attributes {
		return map[string]announce.Attributes{n.Name(): a}
	}
	all := announce.Route{Prefix: netip.MustParsePrefix("10.99.0.11/32"), Attributes: community(1)}
	one := announce.Route{Prefix: vip4, Limited: true, Peers: peers(&second, community(2))}
	s.set(t, all, one)
	untilHeard(t, s, r, all.Prefix, "11 65001 65001:1 65001:1:1")
	untilHeard(t, s, r, one.Prefix, "")

	s.say(t, neighborsLine(t, first, second))
	untilHeard(t, s, r, one.Prefix, "249 65001 65001:2 65001:1:2")
	untilHeard(t, s, r, all.Prefix, "11 65001 65001:1 65001:1:1, 249 65001 65001:1 65001:1:1")

	// Another router, without another attribute of the route.
	one.Peers = peers(&first, community(2))
	all.Peers = peers(&second, community(3))
	s.set(t, all, one)
	untilHeard(t, s, r, one.Prefix, "11 65001 65001:2 65001:1:2")
	untilHeard(t, s, r, all.Prefix, "11 65001 65001:1 65001:1:1, 249 65001 65001:3 65001:1:3")

	one.Limited, one.Peers = false, nil
	s.set(t, one)
	untilHeard(t, s, r, one.Prefix, "11 65001, 249 65001")
	untilHeard(t, s, r, all.Prefix, "")
	one.Limited = true
	s.set(t, one)
	untilHeard(t, s, r, one.Prefix, "")
	for _, p := range s.say(t, "") {
		if p.Ends != 0 || !p.Established {
			t.Errorf("%+v", p)
		}
	}
}

// A router of any number but the node's own has a session, whatever its number, and sees the node
// with a number of this session. One of the node's own number is told nothing.
func TestWireNumbersOfSessions(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	first, second := twoSessions(t, f)
	r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0), second.Source}}))
	started(t, r, err)
	first.Hold, first.Keepalive = 9*time.Second, 3*time.Second
	second.Hold, second.Keepalive = first.Hold, first.Keepalive
	second.ASN, second.LocalASN = router.ASN, router.NodeASN
	own, any := first, first
	own.LocalASN, any.LocalASN = 0, router.NodeASN
	for _, c := range []struct {
		name string
		asn  uint32 // of the node
		n    bgp.Neighbor
		want string
	}{
		{"any number", router.NodeASN, own, "11 65001"},
		{"a number of the session", 64999, second, "249 65001"},
		{"both", 64998, any, "11 65001"},
	} {
		s := startWith(t, f.Nodes[0], bgp.Config{ASN: c.asn, Neighbors: []bgp.Neighbor{c.n}})
		s.set(t, announce.Route{Prefix: vip4})
		untilHeard(t, s, r, vip4, c.want)
		if p := s.say(t, "")[0]; p.ASN != router.ASN || p.Ends != 0 {
			t.Errorf("%s: %+v", c.name, p)
		}
		must(t, s.Kill())
		untilHops(t, f, vip4)
	}

	inside := f.Dir() + "/inside"
	must(t, r.Kill())
	must(t, os.Mkdir(inside, 0o755))
	r, err = router.StartFRR(f.Router, inside, strings.ReplaceAll(router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0)}}),
		fmt.Sprintf("remote-as %d", router.NodeASN), "remote-as internal"))
	started(t, r, err)
	s := startWith(t, f.Nodes[0], bgp.Config{ASN: router.ASN, Neighbors: []bgp.Neighbor{own}})
	s.set(t, announce.Route{Prefix: vip4})
	for deadline := time.Now().Add(patience.For(30 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
		hops, err := router.NextHops(f.Router, vip4)
		must(t, err)
		p := s.say(t, "")[0]
		if len(hops) > 0 {
			t.Fatalf("next hops %v, %+v", hops, p)
		}
		if p.Ends > 0 && !p.Established {
			if !strings.Contains(p.Reason, "which is the node's own") {
				t.Errorf("%+v", p)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", p)
		}
	}
}
