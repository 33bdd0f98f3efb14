package bgp_test

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

// A route that is withdrawn while the session is down, as by a drain, does not come back with the
// session; one that stays does.
func TestWireWithdrawalWhileTheSessionIsDown(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	text := router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0)}})
	r, err := router.StartFRR(f.Router, f.Dir(), text)
	started(t, r, err)
	s := start(t, f.Nodes[0], bothFamilies("")[0])
	stays := netip.PrefixFrom(vip4.Addr().Next(), 32)
	s.set(t, announce.Route{Prefix: vip4}, announce.Route{Prefix: stays})
	untilHops(t, f, vip4, node4(0))
	must(t, r.Kill())
	for deadline := time.Now().Add(patience.For(20 * time.Second)); s.say(t, "")[0].Established; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the session outlives the router")
		}
	}
	s.set(t, announce.Route{Prefix: stays})
	must(t, f.Router.Netlink().LinkSetDown(mustLink(t, f, "br0"))) // the kernel forgets the routes of before
	must(t, f.Router.Netlink().LinkSetUp(mustLink(t, f, "br0")))
	untilHops(t, f, stays)
	must(t, os.RemoveAll(f.Dir()+"/frr-router"))
	r, err = router.StartFRR(f.Router, f.Dir(), text)
	started(t, r, err)
	untilHops(t, f, stays, node4(0))
	untilHops(t, f, vip4)
}

func mustLink(t *testing.T, f *netlab.Fleet, name string) netlink.Link {
	t.Helper()
	l, err := f.Router.Interface(name)
	must(t, err)
	return l
}
