package bgp_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

// Without addresses of the link, the session goes over link-local addresses and carries both
// families; also with the router that takes the place of another, with another address.
func TestWireUnnumbered(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	must(t, netlab.Connect(netlab.End{Namespace: f.Nodes[0], Name: "up0"}, netlab.End{Namespace: f.Router, Name: "node0"}, netlab.LinkConfig{}))
	s := start(t, f.Nodes[0], bgp.Neighbor{Interface: "up0"})
	begin := func() *router.Router {
		t.Helper()
		r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Interface: "node0"}))
		return started(t, r, err)
	}
	r := begin()
	s.set(t, announce.Route{Prefix: vip4}, announce.Route{Prefix: vip6})
	served := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience.For(40*time.Second))
		defer cancel()
		for _, p := range []netip.Prefix{vip4, vip6} {
			must(t, s.Until(ctx, func(context.Context) error {
				hops, err := router.NextHops(f.Router, p)
				if err != nil || len(hops) != 1 || !hops[0].IsLinkLocalUnicast() {
					return fmt.Errorf("%s has next hops %v, %v; peers %+v", p, hops, err, s.say(t, ""))
				}
				return nil
			}))
		}
	}
	served()
	address := linkLocal(t, f, "node0")

	must(t, r.Kill())
	must(t, os.RemoveAll(f.Dir()+"/frr-router"))
	link, nl := mustLink(t, f, "node0"), f.Router.Netlink()
	must(t, nl.LinkSetDown(link))
	must(t, nl.LinkSetHardwareAddr(link, net.HardwareAddr{2, 0, 0, 0, 0, 0x77}))
	must(t, nl.LinkSetUp(link))
	untilHops(t, f, vip4)
	// The kernel forgets the neighbors of a link without a carrier, unless the carrier is back soon:
	// it may still have a router that no packet was sent to.
	up, err := f.Nodes[0].Interface("up0")
	must(t, err)
	must(t, f.Nodes[0].Netlink().NeighSet(&netlink.Neigh{
		LinkIndex: up.Attrs().Index, Family: netlink.FAMILY_V6, State: netlink.NUD_STALE,
		IP: net.ParseIP("fe80::dead"), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0xde, 0xad},
	}))
	begin()
	served()
	if now := linkLocal(t, f, "node0"); now == address {
		t.Errorf("the address of the router is still %s", now)
	}
}

// linkLocal is the link-local address of an interface of the router.
func linkLocal(t *testing.T, f *netlab.Fleet, name string) string {
	t.Helper()
	list, err := f.Router.Netlink().AddrList(mustLink(t, f, name), netlink.FAMILY_V6)
	must(t, err)
	for _, a := range list {
		if a.IP.IsLinkLocalUnicast() {
			return a.IP.String()
		}
	}
	return ""
}
