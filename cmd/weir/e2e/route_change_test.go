package e2e

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// An endpoint gets another router. An established connection to it takes the new path, and
// many connections to another endpoint look up no route.
func TestWireRouteChangeConcernsItsConnectionsAlone(t *testing.T) {
	const others = 40
	f := ownFixture(t, options{services: []service{toAttached, toRouted}})
	must(t, f.ZoneA.SetSysctl("net/ipv4/conf/all/send_redirects", "0"))
	must(t, f.ZoneA.SetSysctl("net/ipv4/conf/eth0/send_redirects", "0"))
	bothFamilies(t, func(t *testing.T, six bool) {
		dial := func(s service) net.Conn {
			c, err := f.Client.DialContext(inTime(t, within), "tcp", s.at(echoPort, six).String())
			must(t, err)
			t.Cleanup(func() { c.Close() })
			must(t, workload.PingPong(c, "before", within))
			return c
		}
		concerned := dial(toRouted)
		var conns []net.Conn
		for range others {
			conns = append(conns, dial(toAttached))
		}
		before := f.routeLookups(t)

		link, err := f.Edge.Edge.Interface("eth1")
		must(t, err)
		to, by := routed.addr(six), attached.addr(six)
		must(t, f.Edge.Edge.Netlink().RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index, Gw: by.AsSlice(),
			Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())},
		}))
		forwarded := "IpForwDatagrams"
		if six {
			forwarded = "Ip6OutForwDatagrams"
		}
		count, err := f.ZoneA.Counters()
		must(t, err)
		was := count[forwarded]
		must(t, f.poll(func(context.Context) error {
			if err := workload.PingPong(concerned, "after", within); err != nil {
				return err
			}
			now, err := f.ZoneA.Counters()
			if err == nil && now[forwarded] == was {
				err = errors.New("the connection does not take the new route")
			}
			return err
		}))
		for _, c := range conns {
			must(t, workload.PingPong(c, "after", within))
		}
		// Of the concerned connection, if it was on the slow path, and of segments that were
		// sent again.
		if n := f.routeLookups(t) - before; n >= others/2 {
			t.Errorf("%d route look-ups after a change that concerns a connection of %d", n, others+1)
		}
	})
}

// routeLookups is how often workers have looked up a route for a flow.
func (f *fixture) routeLookups(t *testing.T) (n uint64) {
	t.Helper()
	status, err := f.admin.Status(inTime(t, within))
	must(t, err)
	for _, w := range status.Workers {
		n += w.Counters[counter.RouteLookups]
	}
	return n
}
