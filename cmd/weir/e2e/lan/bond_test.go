package lan

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// An owner on a bond stays the owner when a member loses the carrier, and gives its addresses up with the last.
func TestGuestOwnersOnABond(t *testing.T) {
	b := newBed(t, 2, 1)
	for i := range b.nodes {
		b.bond(i)
		b.start(i, "interfaces: [{name: eth0}]", "interfaces: [{name: bond0}]", "interfaces: [eth0]", "interfaces: [bond0]")
	}
	b.untilOwned()
	a := vip4(0)
	owner := b.owner(a)
	name := b.nodes[owner].Namespace.Name()
	all := func(when string) {
		t.Helper()
		for _, a := range b.vips {
			b.until(a.String()+" answers "+when, func() bool { return b.exchange(a, patience.For(3*time.Second)) == nil })
		}
	}
	all("at the start")
	for _, port := range []string{name, name + "b"} {
		l, err := b.Switch.Interface(port)
		must(t, err)
		must(t, b.Switch.Netlink().LinkSetDown(l))
		if port == name {
			all("through the other member")
			if now := b.owner(a); now != owner {
				t.Errorf("the owner is node %d, was %d: a member of the bond has a carrier", now, owner)
			}
		}
	}
	b.other(a, owner)
	all("without the first owner")
}

// bond gives a node a bond of eth0 and of another port of the switch, with the addresses of eth0.
func (b *bed) bond(i int) {
	t, n := b.t, b.nodes[i].Namespace
	t.Helper()
	second := n.Name() + "b"
	must(t, netlab.Connect(netlab.End{Namespace: n, Name: "eth1"}, netlab.End{Namespace: b.Switch, Name: second}, netlab.LinkConfig{}))
	must(t, b.AddPort(second))
	a := netlink.NewLinkAttrs()
	a.Name = "bond0"
	bond := netlink.NewLinkBond(a)
	bond.Mode, bond.Miimon = netlink.BOND_MODE_ACTIVE_BACKUP, 50
	must(t, n.Netlink().LinkAdd(bond))
	host := uint8(firstNode + i)
	addresses := []netip.Prefix{netip.PrefixFrom(netlab.Host4(network, host), 24), netip.PrefixFrom(netlab.Host6(network, host), 64)}
	for _, address := range addresses {
		must(t, n.RemoveAddr("eth0", address))
	}
	for _, name := range []string{"eth0", "eth1"} {
		l, err := n.Interface(name)
		must(t, err)
		must(t, n.Netlink().LinkSetDown(l))
		must(t, n.Netlink().LinkSetMasterByIndex(l, bond.Attrs().Index))
		must(t, n.Netlink().LinkSetUp(l))
	}
	must(t, n.Netlink().LinkSetUp(bond))
	for _, address := range addresses {
		must(t, n.AddAddr("bond0", address))
	}
}
