package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/vethpair"
	"github.com/weirlb/weir/perf/netlab"
)

// Veth pairs of Weir's own are mended when another program changes them, and connections succeed
// again. The node does not report health meanwhile for longer than the repair takes.
func TestWireOwnPairsAreMended(t *testing.T) {
	f := ownFixture(t, tcxOptions(toAttached, toPod))
	node := f.Edge.Edge
	down := func(l netlink.Link) error { return node.Netlink().LinkSetDown(l) }
	small := func(l netlink.Link) error { return node.Netlink().LinkSetMTU(l, 1280) }
	resolves := func(l netlink.Link) error { return node.Netlink().LinkSetARPOn(l) }
	lists := func(l netlink.Link) error {
		return node.SetOffloads(l.Attrs().Name, map[string]bool{vethpair.FragmentLists: true})
	}
	for _, tt := range []struct {
		link, change string
		do           func(netlink.Link) error
	}{
		{"weir-up0", "down", down},
		{"weir-dn0", "down", down},
		{"weir-dn0", "smaller", small},
		{"weir-up0", "smaller", small},
		{"weir-up0", "asks for addresses", resolves},
		{"weir-dn0", "sends lists", lists},
		{"weir-host", "down", down},
		{"weir-xdp", "down", down},
		{"weir-host", "smaller", small},
		{"weir-xdp", "smaller", small},
		{"weir-up0", "gone", func(netlink.Link) error { return node.Delete("weir-up0") }},
	} {
		t.Run(tt.link+" "+tt.change, func(t *testing.T) {
			l, err := node.Interface(tt.link)
			must(t, err)
			must(t, tt.do(l))
			must(t, f.poll(func(context.Context) error { return asMade(node, tt.link) }))
			must(t, f.poll(func(context.Context) error { return f.exchangeOnce(toAttached, false) }))
			must(t, f.exchangeOnce(toPod, true))
		})
	}
	if log := f.weir.LogTail(1000); !strings.Contains(log, "weir-up0 is down") {
		t.Error("the log does not have the repair")
	}
}

// asMade reports how an end of a pair differs from the state in which it was made.
func asMade(n *netlab.Namespace, name string) error {
	l, err := n.Interface(name)
	if err != nil {
		return err
	}
	features, err := n.Offloads(name)
	if err != nil {
		return err
	}
	a := l.Attrs()
	arp := !strings.HasPrefix(name, "weir-host") && !strings.HasPrefix(name, "weir-xdp") && a.RawFlags&unix.IFF_NOARP == 0
	if a.RawFlags&unix.IFF_UP == 0 || a.MTU < 1500 || arp || name != "weir-xdp" && features[vethpair.FragmentLists] {
		return fmt.Errorf("%s: flags %#x, MTU %d, lists %v", name, a.RawFlags, a.MTU, features[vethpair.FragmentLists])
	}
	return nil
}
