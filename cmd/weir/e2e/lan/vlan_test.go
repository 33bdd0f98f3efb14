package lan

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// Nodes share addresses of a link and of a VLAN on the same wire. Each has an owner, and another when
// that dies.
func TestGuestOwnersOnAVLAN(t *testing.T) {
	const network, tagged = 71, "eth0.100"
	b := newBed(t, 2, 1)
	vlan := func(n *netlab.Namespace, host uint8) {
		parent, err := n.Interface("eth0")
		must(t, err)
		a := netlink.NewLinkAttrs()
		a.Name, a.ParentIndex = tagged, parent.Attrs().Index
		l := &netlink.Vlan{LinkAttrs: a, VlanId: 100}
		must(t, n.Netlink().LinkAdd(l))
		must(t, n.Netlink().LinkSetUp(l))
		must(t, n.AddAddr(tagged, netip.PrefixFrom(netlab.Host4(network, host), 24)))
		must(t, n.AddAddr(tagged, netip.PrefixFrom(netlab.Host6(network, host), 64)))
	}
	vlan(b.Client, clientID)
	for i, n := range b.nodes {
		vlan(n.Namespace, uint8(firstNode+i))
		// A veth passes tags beside the packet otherwise, where XDP does not see them.
		must(t, b.Switch.SetOffloads(n.Namespace.Name(), map[string]bool{"tx-vlan-hw-insert": false}))
	}
	b.vips = append(b.vips, netlab.Host4(network, firstVIP), netlab.Host6(network, firstVIP))
	for i := range b.nodes {
		b.start(i, "interfaces: [{name: eth0}]", "interfaces: [{name: eth0}, {name: "+tagged+"}]", "interfaces: [eth0]", "interfaces: [eth0, "+tagged+"]")
	}
	b.untilOwned()
	for _, a := range b.vips {
		must(t, b.exchange(a, patience.For(3*time.Second)))
	}
	a := netlab.Host4(network, firstVIP)
	owner := b.owner(a)
	must(t, b.nodes[owner].Signal(syscall.SIGKILL))
	b.other(a, owner)
	for _, a := range b.vips {
		must(t, b.exchange(a, patience.For(3*time.Second)))
	}
}
