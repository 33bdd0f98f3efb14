package bgp_test

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/router"
)

// gracefully gives neighbors graceful restart.
func gracefully(list []bgp.Neighbor, keep time.Duration) []bgp.Neighbor {
	list = slices.Clone(list)
	for i := range list {
		list[i].GracefulRestart = keep
	}
	return list
}

// watchRoutes returns the prefixes that the router's kernel has lost since, when it is called.
func watchRoutes(t *testing.T, f *netlab.Fleet) func() []netip.Prefix {
	t.Helper()
	updates, done := make(chan netlink.RouteUpdate, 4096), make(chan struct{})
	must(t, f.Router.Inside(func() error { return netlink.RouteSubscribe(updates, done) }))
	return func() (lost []netip.Prefix) {
		close(done)
		for u := range updates {
			if p, ok := netip.AddrFromSlice(u.Dst.IP); ok && u.Type == unix.RTM_DELROUTE {
				ones, _ := u.Dst.Mask.Size()
				lost = append(lost, netip.PrefixFrom(p.Unmap(), ones))
			}
		}
		return lost
	}
}

// A router keeps the routes of a killed node until the next process has sent its own, and drops
// those that this process does not announce any more. It withdraws when the node ends by itself.
func TestWireGracefulRestart(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0)}}))
	started(t, r, err)
	neighbors := gracefully(bothFamilies("")[:1], 30*time.Second)
	gone := netip.PrefixFrom(vip4.Addr().Next(), 32)

	s := start(t, f.Nodes[0], neighbors...)
	s.set(t, announce.Route{Prefix: vip4}, announce.Route{Prefix: gone})
	untilHops(t, f, vip4, node4(0))
	untilHops(t, f, gone, node4(0))

	changes := watchRoutes(t, f)
	must(t, s.Kill())
	s = start(t, f.Nodes[0], neighbors...)
	s.set(t, announce.Route{Prefix: vip4})
	s.untilPeers(t, "the session", func(p *announce.Peer) bool { return p.Established })
	untilHops(t, f, gone)
	untilHops(t, f, vip4, node4(0))
	if lost := changes(); slices.Contains(lost, vip4) || !slices.Contains(lost, gone) {
		t.Errorf("after a kill: %v were withdrawn, want %v alone", lost, gone)
	}

	changes = watchRoutes(t, f)
	_, err = fmt.Fprintln(s.in, "leave")
	must(t, err)
	<-s.Done()
	s = start(t, f.Nodes[0], neighbors...)
	s.set(t, announce.Route{Prefix: vip4})
	s.untilPeers(t, "the session", func(p *announce.Peer) bool { return p.Established })
	untilHops(t, f, vip4, node4(0))
	if lost := changes(); len(lost) > 0 {
		t.Errorf("before another process: %v were withdrawn", lost)
	}

	s.set(t, announce.Route{Prefix: vip4})
	must(t, s.in.(io.Closer).Close()) // it ends by itself
	untilHops(t, f, vip4)
}

// A process without routes does not wait for long before it has a session. A router that is
// replaced gets the routes.
func TestWireGracefulRestartWithoutRoutes(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	text := router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0)}})
	r, err := router.StartFRR(f.Router, f.Dir(), text)
	started(t, r, err)
	s := start(t, f.Nodes[0], gracefully(bothFamilies("")[:1], 4*time.Second)...)
	s.untilPeers(t, "the session", func(p *announce.Peer) bool { return p.Established })
	s.set(t, announce.Route{Prefix: vip4})
	untilHops(t, f, vip4, node4(0))

	must(t, r.Kill())
	must(t, f.Router.Netlink().LinkSetDown(mustLink(t, f, "br0"))) // the kernel forgets the routes of before
	must(t, f.Router.Netlink().LinkSetUp(mustLink(t, f, "br0")))
	must(t, os.RemoveAll(f.Dir()+"/frr-router"))
	r, err = router.StartFRR(f.Router, f.Dir(), text)
	started(t, r, err)
	untilHops(t, f, vip4, node4(0))
}

// A router that a node has no more keeps nothing: it is told.
func TestWireGracefulRestartOfARouterThatIsRemoved(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0)}}))
	started(t, r, err)
	neighbors := gracefully(bothFamilies("")[:1], 600*time.Second)
	s := start(t, f.Nodes[0], neighbors...)
	s.set(t, announce.Route{Prefix: vip4})
	untilHops(t, f, vip4, node4(0))
	s.say(t, neighborsLine(t))
	untilHops(t, f, vip4)
}

// A node that starts again and may announce nothing has the router drop what it has kept.
func TestWireGracefulRestartOfANodeThatMayNotAnnounce(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0)}}))
	started(t, r, err)
	neighbors := gracefully(bothFamilies("")[:1], 600*time.Second)
	s := start(t, f.Nodes[0], neighbors...)
	s.set(t, announce.Route{Prefix: vip4})
	untilHops(t, f, vip4, node4(0))
	must(t, s.Kill())
	s = start(t, f.Nodes[0], neighbors...)
	s.say(t, "settled")
	untilHops(t, f, vip4)
}
