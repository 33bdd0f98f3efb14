package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// While one of two endpoints cannot be reached, no connection fails: the other one has all, without any
// check. A next hop that does not answer delays those alone that find it out.
func TestWireConnectionsGoToEndpointsInReach(t *testing.T) {
	t.Parallel()
	off := map[string]string{"weir.dev/passive-health-check": "off"}
	nobody := endpoint{netlab.FabricNet, 99, "zonea"} // no host has the address
	services := []service{
		{name: "route", index: 31, endpoints: []endpoint{attached, routed}, annotations: off},
		{name: "neighbor", index: 32, endpoints: []endpoint{attached, nobody}, annotations: off},
	}
	f := ownFixture(t, options{services: services})
	f.loseZoneB(t)
	for _, key := range []string{"net/ipv4/neigh/eth1/retrans_time_ms", "net/ipv6/neigh/eth1/retrans_time_ms"} {
		must(t, f.Edge.Edge.SetSysctl(key, "100")) // the kernel gives up in 0.3 s
	}
	for _, s := range services {
		bothFamilies(t, func(t *testing.T, six bool) {
			must(t, f.poll(func(ctx context.Context) error {
				before, err := f.Client.Counters()
				must(t, err)
				got := map[netip.Addr]int{}
				for range 20 {
					c, err := f.Client.DialContext(ctx, "tcp", s.at(echoPort, six).String())
					if err != nil && s.name == "route" {
						return err // Weir may not have heard of the route
					}
					must(t, err)
					got[f.endpointOf(t, c).Addr()]++
					c.Close()
				}
				if len(got) != 1 {
					return fmt.Errorf("connections go to %v", got)
				}
				after, err := f.Client.Counters()
				must(t, err)
				if n := after.Sub(before)["TcpExtTCPSynRetrans"]; n > 0 {
					return fmt.Errorf("%s: %d SYNs were sent again; %s", s.name, n, f.whatWasDropped())
				}
				return nil
			}))
		})
	}
}

// loseZoneB has no route lead to the endpoint behind a router.
func (f *fixture) loseZoneB(t *testing.T) {
	t.Helper()
	for _, six := range []bool{false, true} {
		a := routed.addr(six)
		must(t, f.Edge.Edge.Netlink().RouteAdd(&netlink.Route{
			Type: unix.RTN_UNREACHABLE, Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		}))
	}
}
