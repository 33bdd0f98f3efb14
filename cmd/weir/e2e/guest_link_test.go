package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/doctor"
	"github.com/weirlb/weir/perf/netlab"
)

// needLink skips the test on a kernel without a kind of link.
func needLink(t *testing.T, n *netlab.Namespace, l netlink.Link) {
	t.Helper()
	err := n.Netlink().LinkAdd(l)
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("skipped: the kernel has no %s: %v", l.Type(), err)
	}
	must(t, err)
	must(t, n.Netlink().LinkDel(l))
}

func named(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// newBonded is a fixture whose clients are behind a bond of two members on either side, and
// behind VLANs on top of it. Members are NICs, where there are some. Weir is not started. top is
// the name of the uppermost interface.
func newBonded(t *testing.T, mode netlink.BondMode, vlans ...int) (f *fixture, top string) {
	t.Helper()
	top = "bond0"
	for _, v := range vlans {
		top += fmt.Sprintf(".%d", v)
	}
	f = ownFixture(t, options{services: []service{toAttached, toPod}, stopped: true, interfaces: "[{name: " + top + "}, {name: eth1}]"})
	needLink(t, f.Client, netlink.NewLinkBond(named("probe")))
	sides := map[uint8]*netlab.Namespace{1: f.Edge.Edge, 2: f.Client}
	for host, n := range sides { // the link that the bond stands for; a NIC cannot be deleted
		for _, a := range onNetwork(netlab.ClientNet, host) {
			must(t, n.RemoveAddr("eth0", a))
		}
		eth0, err := n.Interface("eth0")
		must(t, err)
		must(t, n.Netlink().LinkSetDown(eth0))
	}
	for _, m := range []string{"m0", "m1"} {
		must(t, netlab.Connect(netlab.End{Namespace: f.Edge.Edge, Name: m}, netlab.End{Namespace: f.Client, Name: m}, netlab.LinkConfig{Wire: true}))
		if len(vlans) > 0 {
			f.keepTagsInside(t, m)
		}
	}
	for host, n := range sides {
		bond := netlink.NewLinkBond(named("bond0"))
		bond.Mode, bond.Miimon = mode, 100
		if mode == netlink.BOND_MODE_802_3AD {
			bond.LacpRate, bond.XmitHashPolicy = netlink.BOND_LACP_RATE_FAST, netlink.BOND_XMIT_HASH_POLICY_LAYER3_4
		}
		must(t, n.Netlink().LinkAdd(bond))
		for _, m := range []string{"m0", "m1"} {
			join(t, n, m)
		}
		if mode == netlink.BOND_MODE_ACTIVE_BACKUP { // both sides use the same link
			must(t, n.Inside(func() error { return os.WriteFile("/sys/class/net/bond0/bonding/primary", []byte("m0"), 0o200) }))
		}
		raise(t, n, "bond0")
		stackVLANs(t, n, "bond0", vlans...)
		for _, a := range onNetwork(netlab.ClientNet, host) {
			must(t, n.AddAddr(top, a))
		}
	}
	f.routeTop(t, top)
	return f, top
}

// routeTop makes the routes of clients and edge node by the uppermost interface. IPv6 routes
// outlive the address that they were made with.
func (f *fixture) routeTop(t *testing.T, top string) {
	t.Helper()
	for _, r := range []struct {
		n       *netlab.Namespace
		to, via string
	}{
		{f.Client, "10.99.0.0/24", "10.10.0.1"}, {f.Client, "fd99::/64", "fd10::1"},
		{f.Edge.Edge, "0.0.0.0/0", "10.10.0.2"}, {f.Edge.Edge, "::/0", "fd10::2"},
	} {
		must(t, r.n.ReplaceRoute(top, netip.MustParsePrefix(r.to), netip.MustParseAddr(r.via)))
	}
}

// stackVLANs makes VLAN interfaces upon each other: base.100, base.100.200.
func stackVLANs(t *testing.T, n *netlab.Namespace, base string, vlans ...int) {
	t.Helper()
	for _, v := range vlans {
		parent, err := n.Interface(base)
		must(t, err)
		base += fmt.Sprintf(".%d", v)
		a := named(base)
		a.ParentIndex = parent.Attrs().Index
		if err := n.Netlink().LinkAdd(&netlink.Vlan{LinkAttrs: a, VlanId: v}); errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("skipped: the kernel has no VLAN interfaces")
		} else if err != nil {
			t.Fatal(err)
		}
		raise(t, n, base)
	}
}

// raise sets an interface up.
func raise(t *testing.T, n *netlab.Namespace, name string) {
	t.Helper()
	l, err := n.Interface(name)
	must(t, err)
	must(t, n.Netlink().LinkSetUp(l))
}

// join makes an interface, which must be down for that, a member of bond0.
func join(t *testing.T, n *netlab.Namespace, name string) {
	t.Helper()
	l, err := n.Interface(name)
	must(t, err)
	bond, err := n.Interface("bond0")
	must(t, err)
	must(t, n.Netlink().LinkSetDown(l))
	must(t, n.Netlink().LinkSetMasterByIndex(l, bond.Attrs().Index))
	raise(t, n, name)
}

// leave takes a member out of the edge node's bond, and sets it down.
func (f *fixture) leave(t *testing.T, name string) {
	t.Helper()
	l, err := f.Edge.Edge.Interface(name)
	must(t, err)
	must(t, f.Edge.Edge.Netlink().LinkSetNoMaster(l))
	must(t, f.Edge.Edge.Netlink().LinkSetDown(l))
}

// untilMembers waits until Weir has exactly these members attached, and packets may leave by
// so many of them.
func (f *fixture) untilMembers(t *testing.T, active int, members ...string) {
	t.Helper()
	must(t, f.poll(func(ctx context.Context) error {
		status, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		got, usable := []string{}, 0
		for _, i := range status.Interfaces {
			if !strings.HasPrefix(i.Interface, "bond0") || carriesVLANs(status, i.Name) {
				continue
			}
			got = append(got, cmp.Or(i.Device, i.Name))
			if !i.Inactive {
				usable++
			}
		}
		if slices.Sort(got); !slices.Equal(got, members) || usable != active {
			return fmt.Errorf("members %v, %d active; want %v, %d active: %+v", got, usable, members, active, ports(status))
		}
		return nil
	}))
}

// carriesVLANs reports whether an interface is attached for the VLANs upon it.
func carriesVLANs(s *api.Status, name string) bool {
	return slices.ContainsFunc(s.Interfaces, func(i api.Interface) bool { return i.VLAN != 0 && i.Device == name })
}

func ports(s *api.Status) []string {
	var list []string
	for _, i := range s.Interfaces {
		list = append(list, fmt.Sprintf("%s of %s, inactive %v", i.Name, i.Interface, i.Inactive))
	}
	return list
}

// The kernel's own bonds, alone and below a VLAN: connections go on while a member leaves and
// joins again, and new ones begin meanwhile.
func TestGuestBond(t *testing.T) {
	for _, c := range []struct {
		name   string
		mode   netlink.BondMode
		active int // of two members
		vlans  []int
	}{
		{"active-backup", netlink.BOND_MODE_ACTIVE_BACKUP, 1, nil},
		{"802.3ad", netlink.BOND_MODE_802_3AD, 2, nil},
		{"VLAN upon active-backup", netlink.BOND_MODE_ACTIVE_BACKUP, 1, []int{100}},
		{"VLAN upon 802.3ad", netlink.BOND_MODE_802_3AD, 2, []int{100}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, _ := newBonded(t, c.mode, c.vlans...)
			must(t, f.start())
			f.untilMembers(t, c.active, "m0", "m1")
			f.exchange(t)
			f.goingOn(t, f.fromClient, func() {
				f.leave(t, "m0")
				f.untilMembers(t, 1, "m1")
				f.begins(t, "after a member has left")
				join(t, f.Edge.Edge, "m0")
				f.untilMembers(t, c.active, "m0", "m1")
			})
			for _, s := range f.services { // once more every size of datagram would take minutes without KVM
				bothFamilies(t, func(t *testing.T, six bool) { f.checkTransfers(t, s, six, 1<<20) })
			}
		})
	}
}

// The kernel's own VLAN interface upon a link, which is a NIC where there are some.
func TestGuestVLAN(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached, toPod}, stopped: true, interfaces: "[{name: eth0.100}, {name: eth1}]"})
	for host, n := range map[uint8]*netlab.Namespace{1: f.Edge.Edge, 2: f.Client} {
		stackVLANs(t, n, "eth0", 100)
		for _, a := range onNetwork(netlab.ClientNet, host) {
			must(t, n.RemoveAddr("eth0", a))
			must(t, n.AddAddr("eth0.100", a))
		}
	}
	f.routeTop(t, "eth0.100")
	if os.Getenv(netlab.NICs) == "" {
		f.namesInsertion(t, true)
	}
	f.keepTagsInside(t, "eth0")
	f.namesInsertion(t, false)
	must(t, f.start())
	f.exchange(t)
}

// keepTagsInside has a veth of the clients send VLAN tags as they are on a wire, in the packet. A
// veth passes them beside the packet otherwise, where XDP does not see them.
func (f *fixture) keepTagsInside(t *testing.T, name string) {
	t.Helper()
	if os.Getenv(netlab.NICs) == "" {
		must(t, f.Client.SetOffloads(name, map[string]bool{"tx-vlan-hw-insert": false}))
	}
}

// namesInsertion checks that weir check and weir doctor name the insertion of tags by the peer
// of eth0, and how to end it; or neither does.
func (f *fixture) namesInsertion(t *testing.T, want bool) {
	t.Helper()
	const fact = "tx-vlan-hw-insert is on at eth0, the peer of eth0"
	const mend = " ethtool -K eth0 txvlan off"
	stdout, stderr, _ := f.check(t)
	if named := strings.Contains(stdout, fact) && strings.Contains(stdout, mend); named != want {
		t.Errorf("weir check names the insertion of tags: %v, want %v:\n%s%s", named, want, stdout, stderr)
	}
	r, _ := f.doctor(t, f.command("doctor", "-o", "json", "--config", f.path("config.yaml")))
	named := slices.ContainsFunc(r.Findings, func(x doctor.Finding) bool {
		return x.Verdict == doctor.Warning && strings.Contains(x.Fact, fact) && strings.Contains(x.Mend, mend)
	})
	if named != want {
		t.Errorf("weir doctor names the insertion of tags: %v, want %v: %+v", named, want, r.Findings)
	}
}

// Interfaces that have no queues of their own are refused, with what to attach instead.
func TestGuestRefusedLinks(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	edge := f.Edge.Edge
	eth0, err := edge.Interface("eth0")
	must(t, err)
	on := func(name string) netlink.LinkAttrs {
		a := named(name)
		a.ParentIndex = eth0.Attrs().Index
		return a
	}
	for name, c := range map[string]struct {
		link  netlink.Link
		reads []string
	}{
		"macvlan": {&netlink.Macvlan{LinkAttrs: on("mac0"), Mode: netlink.MACVLAN_MODE_BRIDGE}, []string{"mac0", "attach", "eth0"}},
		"bridge":  {&netlink.Bridge{LinkAttrs: named("br0")}, []string{"br0", "attach"}},
		"ipvlan":  {&netlink.IPVlan{LinkAttrs: on("ipv0")}, []string{"ipv0", "attach", "eth0"}},
		"QinQ":    {nil, []string{"eth0.100.200", "eth0.100"}},
	} {
		t.Run(name, func(t *testing.T) {
			target := "eth0.100.200"
			if c.link == nil {
				stackVLANs(t, edge, "eth0", 100, 200)
			} else {
				target = c.link.Attrs().Name
				err := edge.Netlink().LinkAdd(c.link)
				if errors.Is(err, unix.EOPNOTSUPP) {
					t.Skipf("skipped: the kernel has no %s: %v", name, err)
				}
				must(t, err)
				raise(t, edge, target)
				defer func() { must(t, edge.Netlink().LinkDel(c.link)) }()
			}
			stdout, stderr, exit := f.check(t, "--interface", target)
			if exit != 1 {
				t.Errorf("exit status %d, want 1: %s%s", exit, stdout, stderr)
			}
			t.Log(strings.TrimSpace(stderr))
			for _, want := range c.reads {
				if !strings.Contains(stderr, want) {
					t.Errorf("it does not name %s: %s", want, stderr)
				}
			}
		})
	}
}
