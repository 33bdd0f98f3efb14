package device

import (
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var mac = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// host is a machine with one of everything.
func host() []Link {
	up := func(index int, name, kind string) Link {
		return Link{Index: index, Name: name, Kind: kind, MAC: mac, MTU: 1500, Up: true}
	}
	on := func(l Link, parent int) Link { l.Parent = parent; return l }
	in := func(l Link, master int, active bool) Link { l.Master, l.Active = master, active; return l }
	vlan := func(l Link, id, protocol uint16) Link { l.VLAN, l.Protocol = id, protocol; return l }
	bond := func(l Link, mode string) Link { l.Bond = mode; return l }
	down := func(l Link) Link { l.Up = false; return l }
	return []Link{
		{Index: 1, Name: "lo", Kind: "device", Up: true},
		up(2, "eth0", "device"), up(3, "veth0", "veth"), down(up(4, "eth4", "device")),
		vlan(on(up(10, "eth0.100", "vlan"), 2), 100, unix.ETH_P_8021Q),
		vlan(on(up(11, "eth0.200", "vlan"), 2), 200, unix.ETH_P_8021AD),
		vlan(on(up(12, "eth0.100.7", "vlan"), 10), 7, unix.ETH_P_8021Q),
		vlan(on(up(13, "eth4.5", "vlan"), 4), 5, 0),
		vlan(on(up(14, "far.5", "vlan"), 999), 5, unix.ETH_P_8021Q),

		bond(up(20, "bond0", "bond"), "802.3ad"),
		in(up(22, "eth2", "device"), 20, true), in(up(21, "eth1", "device"), 20, true),
		in(up(23, "eth3", "device"), 20, false), in(down(up(24, "eth5", "device")), 20, true),
		vlan(on(up(25, "bond0.9", "vlan"), 20), 9, unix.ETH_P_8021Q),
		bond(up(26, "bond1", "bond"), "active-backup"),
		bond(up(27, "bond2", "bond"), "balance-alb"), in(up(28, "eth6", "device"), 27, true),
		bond(up(29, "bond3", "bond"), "balance-xor"), in(up(30, "tap3", "tuntap"), 29, true),
		bond(down(up(31, "bond4", "bond")), "balance-xor"), in(up(32, "eth7", "device"), 31, true),

		up(40, "br0", "bridge"), in(up(41, "port1", "veth"), 40, false), in(up(42, "port2", "device"), 40, false),
		vlan(on(up(43, "br0.3", "vlan"), 40), 3, unix.ETH_P_8021Q),
		up(44, "team0", "team"), in(up(45, "eth8", "device"), 44, false),
		on(up(46, "mac0", "macvlan"), 2), on(up(47, "ipv0", "ipvlan"), 999), on(up(48, "vxlan0", "vxlan"), 2),
		up(49, "tap0", "tuntap"), up(50, "dummy0", "dummy"), up(51, "new0", "novelty"),
	}
}

func TestAttachedInterfacesAreThePortsThatCarryThem(t *testing.T) {
	const q, ad = unix.ETH_P_8021Q, unix.ETH_P_8021AD
	for name, want := range map[string][]Port{
		"eth0":     {{Interface: 2, Device: 2, Active: true}},
		"veth0":    {{Interface: 3, Device: 3, Active: true}},
		"eth4":     {{Interface: 4, Device: 4}},
		"eth0.100": {{Interface: 10, Device: 2, VLAN: 100, Protocol: q, Active: true}},
		"eth0.200": {{Interface: 11, Device: 2, VLAN: 200, Protocol: ad, Active: true}},
		"eth4.5":   {{Interface: 13, Device: 4, VLAN: 5, Protocol: q}},
		// A member that the bond does not use, or that is down, has its sockets
		// and is not sent by.
		"bond0": {{Interface: 20, Device: 21, Member: true, Active: true}, {Interface: 20, Device: 22, Member: true, Active: true},
			{Interface: 20, Device: 23, Member: true}, {Interface: 20, Device: 24, Member: true}},
		"bond0.9": {{Interface: 25, Device: 21, Member: true, VLAN: 9, Protocol: q, Active: true}, {Interface: 25, Device: 22, Member: true, VLAN: 9, Protocol: q, Active: true},
			{Interface: 25, Device: 23, Member: true, VLAN: 9, Protocol: q}, {Interface: 25, Device: 24, Member: true, VLAN: 9, Protocol: q}},
		"bond4": {{Interface: 31, Device: 32, Member: true}},
		"port1": {{Interface: 41, Device: 41, Active: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Resolve(name, host())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhatCannotBeAttachedSaysWhatCan(t *testing.T) {
	for name, want := range map[string][]string{
		"eth9":       {"no such interface"},
		"lo":         {"not an Ethernet interface"},
		"eth1":       {"member of bond bond0", "attach that instead"},
		"eth8":       {"member of team team0"},
		"bond1":      {"without members"},
		"bond2":      {"balance-alb", "active-backup"},
		"bond3":      {"tap3", "tuntap"},
		"br0":        {"bridge", "port1, port2", "addresses"},
		"br0.3":      {"lies upon br0", "port1, port2"},
		"team0":      {"bond", "eth8"},
		"mac0":       {"attach eth0"},
		"ipv0":       {"attach the device upon which it lies"},
		"vxlan0":     {"attach the device that carries it", "without attaching it"},
		"tap0":       {"attach the device"},
		"dummy0":     {"attach the device"},
		"new0":       {"novelty", "attach the device"},
		"eth0.100.7": {"VLAN in VLAN eth0.100", "attach a VLAN interface upon the device"},
		"far.5":      {"another network namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			ports, err := Resolve(name, host())
			if err == nil {
				t.Fatalf("attached by %+v", ports)
			}
			for _, s := range append(want, name) {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is not one line", err)
			}
		})
	}
}

// What netlink says becomes a description; there is no bond and no VLAN
// interface on the kernels that run this test, but there are their messages.
func TestLinksAreDescribed(t *testing.T) {
	attrs := func(index int, name string) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, Name: name, HardwareAddr: mac, MTU: 1500, RawFlags: unix.IFF_UP, OperState: netlink.OperUp}
	}
	bond := netlink.NewLinkBond(attrs(20, "bond0"))
	bond.Mode = netlink.BOND_MODE_802_3AD
	member := func(state netlink.BondSlaveState, mii netlink.BondSlaveMiiStatus) netlink.Link {
		a := attrs(21, "eth1")
		a.MasterIndex, a.Slave = 20, &netlink.BondSlave{State: state, MiiStatus: mii}
		return &netlink.Device{LinkAttrs: a}
	}
	vlan := &netlink.Vlan{LinkAttrs: attrs(10, "eth0.100"), VlanId: 100, VlanProtocol: netlink.VLAN_PROTOCOL_8021AD}
	vlan.ParentIndex = 2
	veth := &netlink.Veth{LinkAttrs: attrs(3, "veth0")}
	veth.ParentIndex = 2
	noCarrier := attrs(2, "eth0")
	noCarrier.OperState = netlink.OperLowerLayerDown
	for _, c := range []struct {
		link netlink.Link
		want Link
	}{
		{bond, Link{Index: 20, Name: "bond0", Kind: "bond", Up: true, Bond: "802.3ad"}},
		{member(netlink.BondStateActive, netlink.BondLinkUp), Link{Index: 21, Name: "eth1", Kind: "device", Up: true, Master: 20, Active: true}},
		{member(netlink.BondStateBackup, netlink.BondLinkUp), Link{Index: 21, Name: "eth1", Kind: "device", Up: true, Master: 20}},
		{member(netlink.BondStateActive, netlink.BondLinkDown), Link{Index: 21, Name: "eth1", Kind: "device", Up: true, Master: 20}},
		{vlan, Link{Index: 10, Name: "eth0.100", Kind: "vlan", Up: true, Parent: 2, VLAN: 100, Protocol: unix.ETH_P_8021AD}},
		{veth, Link{Index: 3, Name: "veth0", Kind: "veth", Up: true}},
		{&netlink.Device{LinkAttrs: noCarrier}, Link{Index: 2, Name: "eth0", Kind: "device"}},
	} {
		c.want.MAC, c.want.MTU, c.want.Enabled = mac, 1500, true
		if diff := cmp.Diff(c.want, newLink(c.link)); diff != "" {
			t.Error(diff)
		}
	}
}

// A member that cannot be attached is no reason to stop sending by the others.
func TestABondGoesOnWithTheMembersThatCanBeAttached(t *testing.T) {
	links := append(host(), Link{Index: 60, Name: "tap9", Kind: "tuntap", MAC: mac, Up: true, Master: 20, Active: true})
	for _, name := range []string{"bond0", "bond0.9"} {
		want, err := Resolve(name, host())
		if err != nil {
			t.Fatal(err)
		}
		got, err := Resolve(name, links)
		if err == nil || !strings.Contains(err.Error(), "its member tap9 is a tuntap: only devices can carry") {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
