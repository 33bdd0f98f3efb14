package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// asFromWire are the settings of a host whose packets look as if they came by a wire, with
// whole checksums, and to whose veth an XDP program can send, because the peer polls.
var asFromWire = map[string]bool{"rx-gro": true, "tx-checksum-ip-generic": false}

// hooks are the two at which the kernel forwards established flows.
var hooks = []string{"xdp", "tcx"}

// cachedFixture is a fixture in which the kernel forwards established flows at a hook.
func cachedFixture(t *testing.T, hook string, o options) *fixture {
	t.Helper()
	o.interfaces = fmt.Sprintf("[{name: eth0, hook: %s}, {name: eth1, hook: %s}]", hook, hook)
	o.extra += "flowCache: {mode: auto}\n"
	o.stopped = true
	f := ownFixture(t, o)
	f.fromWire(t, hook)
	must(t, f.start())
	return f
}

// fromWire has packets arrive with whole checksums if the kernel forwards them at hook xdp.
func (f *fixture) fromWire(t *testing.T, hook string) {
	t.Helper()
	if hook == "xdp" {
		must(t, f.Client.SetOffloads("eth0", asFromWire))
		must(t, f.Fabric.SetOffloads("edge", map[string]bool{"rx-gro": true}))
		must(t, f.ZoneA.SetOffloads("eth0", asFromWire))
	}
}

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
		capture, err := netlab.NewCapture(f.Client, "eth0")
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

// Pieces of more than 64 KB (BIG TCP) stay in the kernel.
func TestWireTCXForwardsBigTCP(t *testing.T) {
	o := tcxOptions(toAttached)
	o.stopped = true
	f := ownFixture(t, o)
	for _, n := range []*netlab.Namespace{f.Client, f.Fabric, f.Edge.Edge, f.ZoneA} {
		must(t, n.Do(allowBigTCP))
	}
	must(t, f.start())
	f.checkChecksums(t)
	steered := func() (n uint64) {
		s, err := f.admin.Status(inTime(t, within))
		must(t, err)
		for _, name := range []string{"eth0", "eth1"} {
			n += interfaceOf(s, name).Repeated.Steered
		}
		return n
	}
	const bytes = 64 << 20
	for _, six := range []bool{false, true} {
		before := steered()
		f.checkTransfers(t, toAttached, six, bytes)
		if n := steered() - before; n > bytes/9000/4 {
			t.Errorf("%s: %d packets reach the packet loop", family(six), n)
		}
	}
}

// allowBigTCP allows packets of 185 kB on each veth.
func allowBigTCP() error {
	const largest = 185_000
	links, err := netlink.LinkList()
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		for _, set := range []func(netlink.Link, int) error{
			netlink.LinkSetGSOMaxSize, netlink.LinkSetGROMaxSize, netlink.LinkSetGSOIPv4MaxSize, netlink.LinkSetGROIPv4MaxSize,
		} {
			err = errors.Join(err, set(l, largest))
		}
	}
	return err
}

// What a killed Weir has left is removed by a cleanup: veth pairs, programs and maps. A running
// Weir loses nothing by it.
func TestWireCleanupRemovesTheFlowCache(t *testing.T) {
	f := ownFixture(t, tcxOptions(toAttached))
	cleanUp := func() (left int, err error) {
		p, err := f.Edge.Edge.Start(f.command("cleanup", "--config", f.path("config.yaml")))
		must(t, err)
		<-p.Done()
		return ownLinks(t, f.Edge.Edge), p.Err()
	}
	conn := f.dialed(t, toAttached.at(echoPort, false))
	// The host veth, and a pair for each of three interfaces.
	if n, err := cleanUp(); err == nil || n != 8 {
		t.Errorf("while Weir runs: %v, %d interfaces of Weir", err, n)
	}
	must(t, workload.PingPong(conn, "after the refused cleanup", within))
	must(t, f.exchangeOnce(toAttached, false))
	must(t, f.weir.Kill())
	if n, err := cleanUp(); err != nil || n != 0 {
		t.Errorf("after a kill: %v, %d interfaces of Weir", err, n)
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

// repeatsAll waits until no packet of the connections reaches the packet loop.
func (f *fixture) repeatsAll(t *testing.T, talks []*talk) {
	t.Helper()
	var before, now [2]api.Repeated
	look := func(to *[2]api.Repeated) error {
		s, err := f.admin.Status(inTime(t, within))
		if err != nil {
			return err
		}
		for i, name := range []string{"eth0", "eth1"} {
			r := interfaceOf(s, name).Repeated
			if r == nil {
				return fmt.Errorf("%s: the kernel forwards nothing", name)
			}
			to[i] = *r
		}
		return nil
	}
	must(t, f.poll(func(context.Context) error {
		if err := look(&before); err != nil {
			return err
		}
		saidBy(t, talks, 5)
		if err := look(&now); err != nil {
			return err
		}
		for i := range now {
			if n := now[i].Steered - before[i].Steered; n > 0 {
				return fmt.Errorf("eth%d: %d packets reach the packet loop, %d do not", i, n, now[i].Packets-before[i].Packets)
			}
		}
		return nil
	}))
}
