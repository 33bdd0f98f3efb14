package uppair

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/vethpair"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newNode leaves the test on a thread inside a new network namespace.
func newNode(t *testing.T) *netlab.Namespace {
	t.Helper()
	labtest.Require(t)
	lab, err := netlab.New()
	must(t, err)
	t.Cleanup(func() { must(t, lab.Close()) })
	node, err := lab.Namespace("node")
	must(t, err)
	runtime.LockOSThread()
	home, err := netns.Get()
	must(t, err)
	must(t, netns.Set(node.Handle()))
	t.Cleanup(func() {
		must(t, netns.Set(home))
		home.Close()
		runtime.UnlockOSThread()
	})
	return node
}

func interfaces(t *testing.T) (names []string) {
	t.Helper()
	links, err := netlink.LinkList()
	must(t, err)
	for _, l := range links {
		if l.Attrs().Name != "lo" {
			names = append(names, l.Attrs().Name)
		}
	}
	slices.Sort(names)
	return names
}

func TestAPairIsUpAndSilent(t *testing.T) {
	node := newNode(t)
	p, err := Open(Config{Slot: 7, Queues: 3, MTU: 9000})
	must(t, err)
	for i, name := range []string{"weir-up7", "weir-dn7"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		a := l.Attrs()
		if a.Index != []int{p.Outer, p.Inner}[i] || a.MTU != 9000 || a.NumRxQueues != 3 || a.NumTxQueues != 3 {
			t.Errorf("%s: %+v", name, a)
		}
		if a.RawFlags&unix.IFF_UP == 0 || a.RawFlags&unix.IFF_NOARP == 0 {
			t.Errorf("%s: flags %#x", name, a.RawFlags)
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		must(t, err)
		if len(addrs) > 0 {
			t.Errorf("%s has addresses %v", name, addrs)
		}
		features, err := node.Offloads(name)
		must(t, err)
		if features["tx-vlan-hw-insert"] || features["tx-vlan-stag-hw-insert"] {
			t.Errorf("%s takes VLAN tags out of the bytes", name)
		}
		if features[vethpair.FragmentLists] {
			t.Errorf("%s sends lists of packets", name)
		}
	}
	must(t, p.Close())
	must(t, p.Close())
	if left := interfaces(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAPairOfAnEarlierProcessIsTakenOver(t *testing.T) {
	newNode(t)
	first, err := Open(Config{Slot: 0, Queues: 2, MTU: 1500})
	must(t, err)
	second, err := Open(Config{Slot: 0, Queues: 2, MTU: 3000})
	must(t, err)
	if second.Inner != first.Inner || second.Outer != first.Outer {
		t.Errorf("made again: %+v, was %+v", second, first)
	}
	if l, err := netlink.LinkByIndex(second.Inner); err != nil || l.Attrs().MTU != 3000 {
		t.Errorf("MTU of the inner end: %+v, %v", l, err)
	}
	third, err := Open(Config{Slot: 0, Queues: 1, MTU: 3000})
	must(t, err)
	if third.Inner == first.Inner {
		t.Error("a pair with other queues was kept")
	}
}

// A pair that is as it is to be stays so, and another is silenced again.
func TestAPairIsSilencedAgain(t *testing.T) {
	newNode(t)
	cfg := Config{Slot: 0, Queues: 2, MTU: 1500}
	first, err := Open(cfg)
	must(t, err)
	tool, err := ethtool.NewEthtool()
	must(t, err)
	defer tool.Close()
	changed := func(feature string) func(netlink.Link) error {
		return func(l netlink.Link) error { return tool.Change(l.Attrs().Name, map[string]bool{feature: true}) }
	}
	for _, change := range []func(netlink.Link) error{
		func(netlink.Link) error { return nil }, netlink.LinkSetARPOn, netlink.LinkSetDown,
		func(l netlink.Link) error { return netlink.LinkSetIP6AddrGenMode(l, 0) },
		func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) },
		changed("tx-vlan-hw-insert"), changed(vethpair.FragmentLists),
	} {
		l, err := netlink.LinkByIndex(first.Inner)
		must(t, err)
		must(t, change(l))
		again, err := Open(cfg)
		must(t, err)
		if again.Inner != first.Inner || again.Outer != first.Outer {
			t.Errorf("made again: %+v, was %+v", again, first)
		}
		l, err = netlink.LinkByIndex(first.Inner)
		must(t, err)
		if flags := l.Attrs().RawFlags; flags&unix.IFF_UP == 0 || flags&unix.IFF_NOARP == 0 {
			t.Errorf("flags %#x", flags)
		}
		features, err := tool.Features(l.Attrs().Name)
		must(t, err)
		mode, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + l.Attrs().Name + "/addr_gen_mode")
		must(t, err)
		insert, lists := features["tx-vlan-hw-insert"], features[vethpair.FragmentLists]
		if insert || lists || string(mode) != "1\n" || l.Attrs().MTU != cfg.MTU {
			t.Errorf("VLAN insertion %v, fragment lists %v, address mode %q, MTU %d", insert, lists, mode, l.Attrs().MTU)
		}
	}
	must(t, first.Close())
}

func TestCleanupRemovesPairsAndNothingElse(t *testing.T) {
	node := newNode(t)
	for _, slot := range []int{0, 12, 63} {
		_, err := Open(Config{Slot: slot, Queues: 1, MTU: 1500})
		must(t, err)
	}
	foreign := []string{"weir-up-x", "weir-up07", "weir-up5", "weir-up6", "weir-dn6"}
	for _, name := range foreign {
		must(t, node.Bridge(name, nil))
	}
	if _, err := Open(Config{Slot: 5, Queues: 1, MTU: 1500}); !errors.Is(err, vethpair.ErrForeign) {
		t.Errorf("slot 5: %v", err)
	}
	if _, err := Open(Config{Slot: 6, Queues: 1, MTU: 1500}); !errors.Is(err, vethpair.ErrForeign) {
		t.Errorf("slot 6: %v", err)
	}
	must(t, Cleanup())
	slices.Sort(foreign)
	if left := interfaces(t); !slices.Equal(left, foreign) {
		t.Errorf("interfaces %v, want %v", left, foreign)
	}
	must(t, Cleanup())
}

// A pair takes the packets of an interface that gets a larger MTU.
func TestAPairIsWidened(t *testing.T) {
	node := newNode(t)
	p, err := Open(Config{Slot: 3, Queues: 1, MTU: 1500})
	must(t, err)
	defer p.Close()
	for _, tt := range []struct{ mtu, want int }{{1400, 1500}, {1500, 1500}, {3000, 3000}, {1500, 3000}, {3400, 3400}} {
		mended, err := p.Keep(tt.mtu)
		if must(t, err); mended != "" {
			t.Errorf("MTU %d: mended %q", tt.mtu, mended)
		}
		for _, name := range []string{"weir-up3", "weir-dn3"} {
			l, err := node.Interface(name)
			must(t, err)
			if got := l.Attrs().MTU; got != tt.want {
				t.Errorf("after %d %s has the MTU %d, want %d", tt.mtu, name, got, tt.want)
			}
		}
	}
}
