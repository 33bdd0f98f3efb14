package doctor

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// lan is a node that owns two addresses on a link, a host, and their switch:
//
//	node eth0, eth1; host eth0 ---- br0
type lan struct {
	node, host, bridge *netlab.Namespace
	t                  *testing.T
}

func lanMust(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newLAN(t *testing.T) *lan {
	labtest.Require(t)
	lab, err := netlab.New()
	lanMust(t, err)
	t.Cleanup(func() { lanMust(t, lab.Close()) })
	l := &lan{t: t}
	for name, n := range map[string]**netlab.Namespace{"node": &l.node, "host": &l.host, "switch": &l.bridge} {
		*n, err = lab.Namespace(name)
		lanMust(t, err)
	}
	on := func(prefixes ...string) (list []netip.Prefix) {
		for _, p := range prefixes {
			list = append(list, netip.MustParsePrefix(p))
		}
		return list
	}
	for port, e := range map[string]netlab.End{
		"node":  {Namespace: l.node, Name: "eth0", Addrs: on("10.70.0.11/24", "fd70::b/64")},
		"node1": {Namespace: l.node, Name: "eth1"},
		"host":  {Namespace: l.host, Name: "eth0", Addrs: on("10.70.0.200/24", "fd70::c8/64")},
	} {
		lanMust(t, netlab.Connect(e, netlab.End{Namespace: l.bridge, Name: port}, netlab.LinkConfig{}))
	}
	lanMust(t, l.bridge.Bridge("br0", []string{"node", "node1", "host"}))
	return l
}

// run runs commands in a namespace, a line each, as a machine's operator would.
func (l *lan) run(n *netlab.Namespace, lines ...string) {
	l.t.Helper()
	for _, line := range lines {
		lanMust(l.t, n.Do(func() error {
			out, err := exec.Command("sh", "-c", line).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", line, err, out)
			}
			return nil
		}))
	}
}

// mac is the MAC address of eth0.
func (l *lan) mac(n *netlab.Namespace) string {
	l.t.Helper()
	i, err := n.Interface("eth0")
	lanMust(l.t, err)
	return i.Attrs().HardwareAddr.String()
}

// found are the findings about links on the node. rival is the MAC address of the host that last claimed the
// IPv4 address, "" for none.
func (l *lan) found(rival string) string {
	l.t.Helper()
	const a4, a6 = "10.70.0.100", "fd70::64"
	now := time.Now()
	s := &api.Status{Announce: &api.Announce{}}
	for _, a := range []string{a4, a6} {
		x := &api.AnnouncedL2{State: "owner", Interface: "eth0"}
		if rival != "" && a == a4 {
			x.Rival, x.RivalHeard = rival, &now
		}
		s.Announce.Addresses = append(s.Announce.Addresses, api.AnnouncedAddress{Address: netip.MustParseAddr(a), L2: x})
	}
	p := newPatient(s)
	p.cfg.Announce.L2.Interfaces = []string{"eth0"}
	p.frontends = []api.Frontend{
		{Address: a4 + ":80", Endpoints: []api.FrontendEndpoint{{Address: "10.70.0.200:80", Mode: config.ForwardNAT}}},
		{Address: "[" + a6 + "]:80"},
	}
	lanMust(l.t, l.node.Do(func() error { lans{p}.examine(); return nil }))
	return found(p)
}

// A switch that drops ARP and neighbor discovery of addresses that are not the node's is found by the answers
// that do not come, and so are the settings of the kernel by which hosts reach another than the owner.
func TestWireLinksOfAnnouncedAddresses(t *testing.T) {
	l := newLAN(t)
	var hello []net.Conn
	for _, a := range []string{"10.70.0.200:9", "[fd70::c8]:9"} {
		c, err := l.node.DialContext(context.Background(), "udp", a)
		lanMust(t, err)
		t.Cleanup(func() { _ = c.Close() })
		hello = append(hello, c)
	}
	until := func(name, rival, want string) {
		t.Helper()
		for deadline := time.Now().Add(patience.For(10 * time.Second)); ; time.Sleep(50 * time.Millisecond) {
			for _, c := range hello { // so that the kernel knows the host
				_, _ = c.Write([]byte("hello"))
			}
			got := l.found(rival)
			if strings.Contains(got, want) {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: %q, want %q", name, got, want)
				return
			}
		}
	}
	const passes = "ok interface eth0: hosts answer ARP to 10.70.0.100, which this node owns | \n" +
		"ok interface eth0: hosts answer neighbor discovery to fd70::64, which this node owns | \n" +
		"ok interface eth0: 2 addresses of frontends are in its subnets, and this node owns 2: neither the kernel nor an endpoint answers for them beside the owner | \n"
	until("a sound link", "", passes)
	filter := func(rule string) string {
		return "nft 'add table bridge s; add chain bridge s f { type filter hook forward priority 0; }; add rule bridge s f " + rule + " drop'"
	}
	const unfilter = "nft delete table bridge s"
	for _, c := range []struct {
		name        string
		at          *netlab.Namespace
		cause, undo []string
		rival       string
		want        string
	}{
		{"a switch with ARP inspection", l.bridge, []string{filter("arp saddr ip 10.70.0.100")}, []string{unfilter}, "",
			"fault interface eth0: 10.70.0.200 answers ARP to 10.70.0.11 and not to 10.70.0.100, which this node owns: the switch drops it"},
		{"a switch with a filter of IPv6", l.bridge, []string{filter("ip6 saddr fd70::64")}, []string{unfilter}, "",
			"fault interface eth0: fd70::c8 answers neighbor discovery to "},
		{"a switch without another host", l.bridge, []string{"ip link set host down"}, []string{"ip link set host up"}, "",
			"ok interface eth0: no host answers ARP: whether"},
		{"a port that takes the node's MAC address alone", l.bridge,
			[]string{"bridge link set dev node locked on learning off", "bridge fdb replace " + l.mac(l.node) + " dev node master static"},
			[]string{"bridge link set dev node locked off learning on"}, "", passes},
		{"the kernel answers", l.node, []string{"ip address add 10.70.0.100/32 dev lo"}, nil, "",
			"fault arp_ignore: it is 0, and the kernel has 10.70.0.100 on lo: it answers ARP for it on eth0 beside the owner | sysctl -w net.ipv4.conf.eth0.arp_ignore=1"},
		{"the kernel has the address", l.node, []string{"sysctl -qw net.ipv4.conf.eth0.arp_ignore=1"}, []string{"ip address del 10.70.0.100/32 dev lo"}, "",
			"warning interface lo: the kernel has 10.70.0.100: this node does not announce it on eth0 | ip address del 10.70.0.100 dev lo"},
		{"two interfaces of a subnet", l.node, []string{"ip address add 10.70.0.12/24 dev eth1"}, nil, "",
			"warning arp_ignore: it is 0, and eth1 is in a subnet of eth0"},
		{"the route is by another", l.node,
			[]string{"ip route add 10.70.0.0/25 dev eth1", "sysctl -qw net.ipv4.conf.eth0.rp_filter=1"},
			[]string{"ip address del 10.70.0.12/24 dev eth1", "sysctl -qw net.ipv4.conf.eth0.rp_filter=0"}, "",
			"fault rp_filter: it is strict on eth0, and the route to 10.70.0.0/24 is by eth1"},
		{"an endpoint answers", l.node, nil, nil, l.mac(l.host), "fault endpoint 10.70.0.200: it answers ARP for 10.70.0.100 itself"},
	} {
		l.run(c.at, c.cause...)
		until(c.name, c.rival, c.want)
		l.run(c.at, c.undo...)
	}
}
