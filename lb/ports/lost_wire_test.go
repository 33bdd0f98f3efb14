package ports

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/uppair"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// Packets that the kernel loses behind a redirect are counted. Those before the first look are
// not: devices and pairs are older than the process.
func TestWireLossesBehindARedirectAreCounted(t *testing.T) {
	labtest.Require(t)
	lab, err := netlab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	node, err := lab.Namespace("node")
	if err != nil {
		t.Fatal(err)
	}
	lan := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0", MTU: 1500}, PeerName: "peer0"}
	var pair *uppair.Pair
	var l losses
	look := func(want Lost) {
		t.Helper()
		err := node.Do(func() error {
			found, err := netlink.LinkByName("lan0")
			if err == nil {
				l.look(found.Attrs().Index, pair, found)
			}
			return err
		})
		if got := l.since(); err != nil || got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	// lose sends a packet that the other end does not take.
	lose := func(names ...string) {
		t.Helper()
		for _, name := range names {
			tap, err := netlab.NewTap(node, name)
			if err != nil {
				t.Fatal(err)
			}
			if err := tap.Send(make([]byte, 1414)); !errors.Is(err, unix.ENOBUFS) {
				t.Errorf("%s: %v", name, err)
			}
			if err := tap.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := node.Do(func() (err error) {
		if pair, err = uppair.Open(uppair.Config{Slot: 0, Queues: 1, MTU: 1500}); err == nil {
			err = netlink.LinkAdd(lan)
		}
		for name, mtu := range map[string]int{"lan0": 1500, "peer0": 1280, "weir-dn0": 1280} {
			var dev netlink.Link
			if err == nil {
				dev, err = netlink.LinkByName(name)
			}
			if err == nil {
				err = errors.Join(netlink.LinkSetMTU(dev, mtu), netlink.LinkSetUp(dev))
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	lose("lan0", "weir-up0")
	look(Lost{})
	lose("weir-up0")
	look(Lost{Pair: 1})
	lose("lan0", "lan0")
	look(Lost{Pair: 1, Transmit: 2})
}

// The kernel's count may begin anew, as a driver resets it.
func TestACountThatBeginsAnewIsTakenAsItIs(t *testing.T) {
	var l losses
	l.note(Lost{Transmit: 100})
	l.note(Lost{Transmit: 3})
	if got := l.since(); got.Transmit != 3 {
		t.Errorf("%+v", got)
	}
}
