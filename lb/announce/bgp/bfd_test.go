package bgp_test

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

// endless is a hold time that no test waits for: what happens before is by BFD.
const endless = time.Hour

// A router withdraws from a node that stops or is cut off in silence, and takes it back for good
// when it answers again: BFD that has expired meanwhile does not end the sessions that follow. make
// bfd has all cases; without it there is the cut alone, of a session that the router has not named.
func TestWireBFDFindsSilentDeath(t *testing.T) {
	all := os.Getenv("WEIR_BFD_ALL") != ""
	ranges := []netip.Prefix{netip.MustParsePrefix("10.60.0.0/24"), netip.MustParsePrefix("fd60::/64")}
	for name, n := range map[string]router.Neighbors{
		"named neighbors": {Addresses: []netip.Addr{node4(0), node6(0)}},
		"listen range":    {Ranges: ranges},
	} {
		if !all && n.Ranges == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			requireFRR(t)
			f := newFleet(t, 1)
			n.Hold, n.BFD = int(endless/time.Second), 500
			r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(n))
			started(t, r, err)
			peers := bothFamilies("")
			for i := range peers {
				peers[i].Hold = endless
				peers[i].BFD = &bgp.BFD{Receive: 500 * time.Millisecond, Transmit: 500 * time.Millisecond, Multiplier: 3}
			}
			s := start(t, f.Nodes[0], peers...)
			s.set(t, announce.Route{Prefix: vip4}, announce.Route{Prefix: vip6})
			back := func() {
				t.Helper()
				untilHops(t, f, vip4, node4(0))
				untilHops(t, f, vip6, node6(0))
				s.untilPeers(t, "have BFD", func(p *announce.Peer) bool { return p.Established && p.BFD == "up" })
			}
			gone := func() {
				t.Helper()
				untilHops(t, f, vip4)
				untilHops(t, f, vip6)
			}
			back()

			if all {
				must(t, s.Signal(syscall.SIGSTOP))
				gone()
				must(t, s.Signal(syscall.SIGCONT))
				back()
			}

			must(t, f.Router.Netlink().LinkSetDown(mustLink(t, f, "node1")))
			gone()
			s.untilPeers(t, "are down", func(p *announce.Peer) bool {
				return !p.Established && p.BFD == "down" && strings.HasPrefix(p.Reason, "BFD: ")
			})
			must(t, f.Router.Netlink().LinkSetUp(mustLink(t, f, "node1")))
			back()

			// Two interruptions, and at most a session each that did not last.
			for _, p := range s.say(t, "") {
				if p.Ends > 4 {
					t.Errorf("peer %+v", p)
				}
			}
		})
	}
}

// BFD that fails ends the session of its peer, and no other.
func TestWireBFDLeavesOtherPeers(t *testing.T) {
	requireFRR(t)
	f := newFleet(t, 1)
	r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{
		Addresses: []netip.Addr{node4(0), node6(0)}, Hold: int(endless / time.Second), BFD: 500,
	}))
	started(t, r, err)
	peers := bothFamilies("")
	for i := range peers {
		peers[i].Hold = endless
		peers[i].BFD = &bgp.BFD{Receive: 500 * time.Millisecond, Transmit: 500 * time.Millisecond, Multiplier: 3}
	}
	s := start(t, f.Nodes[0], peers...)
	s.set(t, announce.Route{Prefix: vip4}, announce.Route{Prefix: vip6})
	up := func() {
		t.Helper()
		untilHops(t, f, vip4, node4(0))
		untilHops(t, f, vip6, node6(0))
		s.untilPeers(t, "have BFD", func(p *announce.Peer) bool { return p.Established && p.BFD == "up" })
	}
	up()
	address := &netlink.Addr{IPNet: &net.IPNet{IP: peers[0].Address.AsSlice(), Mask: net.CIDRMask(24, 32)}}
	must(t, f.Router.Netlink().AddrDel(mustLink(t, f, "br0"), address))
	s.untilPeers(t, "of IPv4 alone are down", func(p *announce.Peer) bool { return p.Established == (p.Name == peers[1].Address.String()) })
	must(t, f.Router.Netlink().AddrAdd(mustLink(t, f, "br0"), address))
	up()
	if p := s.say(t, "")[1]; p.Ends != 0 {
		t.Errorf("the session of IPv6 has ended: %+v", p)
	}
}

// A router without BFD is announced to all the same.
func TestWireRouterWithoutBFD(t *testing.T) {
	requireFRR(t)
	f := newFleet(t, 1)
	r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0)}}))
	started(t, r, err)
	peer := bothFamilies("")[0]
	peer.BFD = &bgp.BFD{Receive: 50 * time.Millisecond, Transmit: 50 * time.Millisecond, Multiplier: 2}
	s := start(t, f.Nodes[0], peer)
	s.set(t, announce.Route{Prefix: vip4})
	untilHops(t, f, vip4, node4(0))
	time.Sleep(3 * time.Second) // BFD starts after a second
	if p := s.say(t, "")[0]; !p.Established || p.BFD != "down" || p.Ends != 0 {
		t.Errorf("peer %+v", p)
	}
}

// untilPeers waits until all peers are as wanted.
func (s *speaker) untilPeers(t *testing.T, what string, wanted func(*announce.Peer) bool) {
	t.Helper()
	deadline := time.Now().Add(patience.For(40 * time.Second))
	for {
		peers, all := s.say(t, ""), true
		for i := range peers {
			all = all && wanted(&peers[i])
		}
		if all {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not all peers %s: %+v", what, peers)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
