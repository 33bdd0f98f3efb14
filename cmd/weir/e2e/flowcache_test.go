package e2e

import (
	"encoding/binary"
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

// A download arrives in pieces that are larger than a packet: the interfaces keep their
// segmentation offload, and the kernel forwards the pieces as they are.
func TestWireTCXKeepsLargePieces(t *testing.T) {
	f := ownFixture(t, tcxOptions(toAttached, toPod))
	f.checkChecksums(t)
	for _, s := range []service{toAttached, toPod} {
		capture, err := f.Client.Capture("eth0")
		must(t, err)
		f.checkTransfers(t, s, false, 64<<20)
		frames, _ := capture.Stop()
		from, largest := s.at(httpPort, false).Addr().As4(), uint16(0)
		for _, frame := range frames {
			if len(frame) >= 34 && binary.BigEndian.Uint16(frame[12:]) == 0x0800 && [4]byte(frame[26:30]) == from {
				largest = max(largest, binary.BigEndian.Uint16(frame[16:]))
			}
		}
		if largest < 10_000 {
			t.Errorf("%s: of %d packets at the client the largest has %d bytes", s.name, len(frames), largest)
		}
	}
	status, err := f.admin.Status(inTime(t, within))
	must(t, err)
	for _, name := range []string{"eth0", "eth1"} {
		i := interfaceOf(status, name)
		if i == nil || i.Hook != "tcx" || i.Repeated == nil || i.Repeated.Packets == 0 {
			t.Errorf("%s: %+v, repeated %+v", name, i, i.Repeated)
		}
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
