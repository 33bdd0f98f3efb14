package e2e

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
)

// tcxOptions has the kernel forward established flows at hook tcx.
func tcxOptions(list ...service) options {
	return options{
		services:   list,
		interfaces: "[{name: eth0, hook: tcx}, {name: eth1, hook: tcx}]",
		extra:      "flowCache: {mode: auto}",
	}
}

// What a killed Weir has left is removed by a cleanup: veth pairs, programs and maps.
func TestWireCleanupRemovesTheFlowCache(t *testing.T) {
	f := ownFixture(t, tcxOptions(toAttached))
	if n := ownLinks(t, f.Edge.Edge); n != 8 {
		t.Errorf("%d interfaces of Weir, want the host veth and a pair for each of three interfaces", n)
	}
	must(t, f.weir.Kill())
	p, err := f.Edge.Edge.Start(f.command("cleanup", "--config", f.path("config.yaml")))
	must(t, err)
	<-p.Done()
	must(t, p.Err())
	if n := ownLinks(t, f.Edge.Edge); n != 0 {
		t.Errorf("%d interfaces of Weir are left", n)
	}
}

// ownLinks counts the interfaces that have a name of Weir's.
func ownLinks(t *testing.T, n *netlab.Namespace) (count int) {
	t.Helper()
	var links []netlink.Link
	must(t, n.Do(func() (err error) { links, err = netlink.LinkList(); return err }))
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "weir-") {
			count++
		}
	}
	return count
}
