package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// A second uplink of the edge node, and clients that are reached by both: the first is the main
// table's, and each provider drops packets from the other's addresses.
const (
	uplinkNet = 70
	behindNet = 71
)

// Answers leave by the uplink that routing rules name for the frontend's address, and move with
// established connections when the rules change.
func TestWireAnswersLeaveByTheUplinkOfRoutingRules(t *testing.T) {
	first, second := toAttached, toRouted
	f := ownFixture(t, options{services: []service{first, second, toOverlay}, stopped: true,
		interfaces: "[{name: eth0}, {name: eth1}, {name: eth2}]"})
	edge := f.Edge.Edge
	addrs := func(host uint8) []netip.Prefix {
		return []netip.Prefix{netip.PrefixFrom(netlab.Host4(uplinkNet, host), 24), netip.PrefixFrom(netlab.Host6(uplinkNet, host), 64)}
	}
	must(t, netlab.Connect(netlab.End{Namespace: edge, Name: "eth2", Addrs: addrs(1)},
		netlab.End{Namespace: f.Client, Name: "eth2", Addrs: addrs(2)}, netlab.LinkConfig{}))
	for _, six := range []bool{false, true} {
		f.secondUplink(t, second, six)
		f.overlayByRule(t, six)
	}
	must(t, f.start())
	must(t, f.poll(func(context.Context) error { return f.exchangeOnce(toOverlay, false) }))
	bothFamilies(t, func(t *testing.T, six bool) {
		for _, s := range []service{first, second} {
			for _, network := range []string{"tcp", "udp"} {
				c := f.dialFromBehind(t, network, s, six)
				must(t, workload.PingPong(c, "by the uplink of the address", within))
			}
		}
		// The first uplink takes over: rules and the provider's filter follow.
		c := f.dialFromBehind(t, "tcp", second, six)
		must(t, workload.PingPong(c, "before", within))
		must(t, f.Client.Do(func() error { return exec.Command("nft", "flush ruleset").Run() }))
		must(t, edge.Netlink().RuleDel(f.uplinkRule(second, six)))
		must(t, f.poll(func(context.Context) error {
			before := f.received(t, "eth2")
			for range 20 {
				if err := workload.PingPong(c, "after", within); err != nil {
					return err
				}
			}
			if n := f.received(t, "eth2") - before; n >= 20 {
				return fmt.Errorf("%d packets still arrive by the second uplink", n)
			}
			return nil
		}))
	})
}

// overlayByRule has the routes to the endpoint behind the overlay be of a table that a rule names. The
// kernel does not forward what comes from there.
func (f *fixture) overlayByRule(t *testing.T, six bool) {
	t.Helper()
	edge, family, sysctl := f.Edge.Edge, netlink.FAMILY_V4, "net/ipv4/conf/vxlan0/forwarding"
	dst := &net.IPNet{IP: netlab.Host4(netlab.RemoteNet, 0).AsSlice(), Mask: net.CIDRMask(24, 32)}
	if six {
		family, sysctl = netlink.FAMILY_V6, "net/ipv6/conf/vxlan0/forwarding"
		dst = &net.IPNet{IP: netlab.Host6(netlab.RemoteNet, 0).AsSlice(), Mask: net.CIDRMask(64, 128)}
	}
	list, err := edge.Netlink().RouteListFiltered(family, &netlink.Route{Dst: dst}, netlink.RT_FILTER_DST)
	must(t, err)
	if len(list) != 1 {
		t.Fatalf("routes to the overlay: %v", list)
	}
	must(t, edge.Netlink().RouteDel(&list[0]))
	list[0].Table = 120
	must(t, edge.Netlink().RouteAdd(&list[0]))
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Family, rule.Dst = 90, 120, family, dst
	must(t, edge.Netlink().RuleAdd(rule))
	must(t, edge.SetSysctl(sysctl, "0"))
}

// uplinkRule sends the answers of a Service to table 110.
func (f *fixture) uplinkRule(s service, six bool) *netlink.Rule {
	r := netlink.NewRule()
	at := s.at(echoPort, six).Addr()
	r.Priority, r.Table, r.Family = 100, 110, netlink.FAMILY_V4
	if six {
		r.Family = netlink.FAMILY_V6
	}
	r.Src = &net.IPNet{IP: at.AsSlice(), Mask: net.CIDRMask(at.BitLen(), at.BitLen())}
	return r
}

// secondUplink gives the clients addresses behind both uplinks, of which the second is the Service's.
func (f *fixture) secondUplink(t *testing.T, s service, six bool) {
	t.Helper()
	edge, family, family4 := f.Edge.Edge, "ip6", netlink.FAMILY_V6
	vip, by, main, behind := s.at(echoPort, six).Addr(), netlab.Host6(uplinkNet, 2), netlab.Host6(netlab.ClientNet, 2), netlab.Host6(behindNet, 5)
	if !six {
		family, family4 = "ip", netlink.FAMILY_V4
		by, main, behind = netlab.Host4(uplinkNet, 2), netlab.Host4(netlab.ClientNet, 2), netlab.Host4(behindNet, 5)
	}
	must(t, f.Client.AddAddr("lo", netip.PrefixFrom(behind, behind.BitLen())))
	must(t, edge.AddRoute("eth0", netip.PrefixFrom(behind, behind.BitLen()), main))
	link, err := edge.Interface("eth2")
	must(t, err)
	must(t, edge.Netlink().RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: by.AsSlice(), Table: 110, Family: family4}))
	must(t, edge.Netlink().RuleAdd(f.uplinkRule(s, six)))
	at := netlab.Host6(uplinkNet, 1)
	if !six {
		at = netlab.Host4(uplinkNet, 1)
	}
	must(t, f.Client.AddRoute("eth2", netip.PrefixFrom(vip, vip.BitLen()), at))
	must(t, f.Client.Do(func() error {
		return exec.Command("nft", fmt.Sprintf("table %[1]s providers {\nchain in {\ntype filter hook prerouting priority raw;\n"+
			"iifname eth0 %[1]s saddr %[2]s drop\niifname eth2 meta l4proto { tcp, udp } %[1]s saddr != %[2]s drop\n}\n}\n", family, vip)).Run()
	}))
}

// dialFromBehind connects to a Service from the address behind both uplinks.
func (f *fixture) dialFromBehind(t *testing.T, network string, s service, six bool) net.Conn {
	t.Helper()
	from := netlab.Host4(behindNet, 5).AsSlice()
	if six {
		from = netlab.Host6(behindNet, 5).AsSlice()
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
	if network == "udp" {
		d.LocalAddr = &net.UDPAddr{IP: from}
	}
	c, err := f.Client.DialWith(inTime(t, within), &d, network, s.at(echoPort, six).String())
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// received counts the packets that a client's interface has received.
func (f *fixture) received(t *testing.T, ifname string) uint64 {
	t.Helper()
	l, err := f.Client.Interface(ifname)
	must(t, err)
	return l.Attrs().Statistics.RxPackets
}
