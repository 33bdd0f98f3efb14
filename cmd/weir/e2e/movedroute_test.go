package e2e

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
)

// A second default route appears, the first goes and comes back: answers to clients behind it
// take the route that is left.
func TestWireDefaultRouteFailsOver(t *testing.T) {
	f := ownFixture(t, options{services: kinds})
	const far = 90
	f.linkPastEdge(t)
	source := map[bool]netip.Addr{false: netlab.Host4(far, 1), true: netlab.Host6(far, 1)}
	for _, a := range source {
		p := netip.PrefixFrom(a, a.BitLen())
		must(t, f.Client.AddAddr("eth1", p))
		by := netlab.Host4(controlNet, 2)
		if a.Is6() {
			by = netlab.Host6(controlNet, 2)
		}
		must(t, f.Fabric.AddRoute("wan", p, by))
	}
	dial := func(s service, six bool) (c net.Conn, err error) {
		return c, f.Client.Do(func() (err error) {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: source[six].AsSlice()}, Timeout: within}
			c, err = d.Dial("tcp", s.at(echoPort, six).String())
			return err
		})
	}
	edge := f.Edge.Edge
	route := func(name string, network, host uint8, metric int) (list []*netlink.Route) {
		l, err := edge.Interface(name)
		must(t, err)
		for _, r := range []struct{ any, by netip.Addr }{
			{netip.IPv4Unspecified(), netlab.Host4(network, host)}, {netip.IPv6Unspecified(), netlab.Host6(network, host)},
		} {
			list = append(list, &netlink.Route{LinkIndex: l.Attrs().Index, Gw: r.by.AsSlice(), Priority: metric,
				Dst: &net.IPNet{IP: r.any.AsSlice(), Mask: net.CIDRMask(0, r.any.BitLen())}})
		}
		return list
	}
	each := func(list []*netlink.Route, do func(*netlink.Route) error) {
		t.Helper()
		for _, r := range list {
			must(t, do(r))
		}
	}
	first, second := route("eth0", netlab.ClientNet, 2, 0), route("eth1", netlab.FabricNet, 254, 2000)
	arrived := func() uint64 {
		l, err := f.Client.Interface("eth1")
		must(t, err)
		return l.Attrs().Statistics.RxPackets
	}
	f.goingOn(t, dial, func() {
		each(second, edge.Netlink().RouteAdd)
		f.begins(t, "with two default routes")
		for range 2 {
			before := arrived()
			each(first, edge.Netlink().RouteDel)
			must(t, f.poll(func(context.Context) error {
				if arrived() < before+100 {
					return errors.New("answers do not take the second default route")
				}
				return nil
			}))
			for i := range 10 {
				c, err := dial(f.services[i%len(f.services)], i%2 == 1)
				must(t, err)
				c.Close()
			}
			each(first, edge.Netlink().RouteAdd)
			time.Sleep(200 * time.Millisecond)
		}
		each(second, edge.Netlink().RouteDel)
	})
}

// keepalived moves the addresses of Services to the node and away: connections go on, and new
// ones begin.
func TestWireServiceAddressComesToTheNode(t *testing.T) {
	f := ownFixture(t, options{services: kinds})
	each := func(do func(ifname string, p netip.Prefix) error) {
		t.Helper()
		for _, s := range kinds {
			for _, six := range []bool{false, true} {
				a := s.at(echoPort, six).Addr()
				must(t, do("eth0", netip.PrefixFrom(a, a.BitLen())))
			}
		}
	}
	f.goingOn(t, f.fromClient, func() {
		for range 3 {
			each(f.Edge.Edge.AddAddr)
			f.begins(t, "with the addresses")
			each(f.Edge.Edge.RemoveAddr)
			f.begins(t, "without the addresses")
			if code, body := f.probe(t, "http://127.0.0.1:9465/readyz"); code != http.StatusOK {
				t.Errorf("readyz: %d %s", code, body)
			}
		}
	})
}
