package steer

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

func TestARestartAdoptsThePinnedLink(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	first := load(t, Config{})
	_, err := first.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	must(t, first.AddFrontend(netip.AddrPortFrom(node4, 30080), unix.IPPROTO_UDP, 0))
	must(t, first.Close(false))

	second := load(t, Config{})
	a, err := second.Attach(w.dev.Index, 5, Auto, dir)
	must(t, err)
	if !a.Adopted || !a.Pinned || a.Mode != Native {
		t.Fatalf("attachment %+v", a)
	}
	// It is the new program that runs, with the new maps.
	s := w.openSocket(0)
	must(t, second.SetSocket(5, 0, s.FD()))
	front := netip.AddrPortFrom(node4, 30081)
	must(t, second.AddFrontend(front, unix.IPPROTO_UDP, 0))
	w.send(front)
	w.socketGets(s)
	must(t, second.Close(true))
	if _, err := attachedMode(w.dev.Index); err == nil {
		t.Error("still attached after Close(true)")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pins' directory is left: %v", err)
	}
}

// An interface whose packets are all the packet loop's has the program that forwards none, also
// where a process before had the other.
func TestAnInterfaceMayDoWithoutTheFlowTable(t *testing.T) {
	needFlowPrograms(t)
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	for _, steers := range []bool{false, true, false} {
		p := loadFlows(t)
		in := Interface{Index: w.dev.Index, PinDir: dir, Steers: steers}
		a, err := p.AttachInterface(in)
		must(t, err)
		want, err := p.programs.of(in)
		must(t, err)
		forwards, err := p.programs.xdp()
		must(t, err)
		check := func() {
			t.Helper()
			dev, err := netlink.LinkByIndex(w.dev.Index)
			must(t, err)
			if id := ebpf.ProgramID(dev.Attrs().Xdp.ProgId); id != programID(t, want) || (id != programID(t, forwards)) != steers {
				t.Errorf("program %d, want %d", id, programID(t, want))
			}
		}
		check()
		must(t, p.Refresh(a)) // as for a driver that has forgotten it
		check()
		must(t, p.Close(false))
	}
}

func TestARestartInAnotherModeAttachesAnew(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	first := load(t, Config{})
	_, err := first.Attach(w.dev.Index, 0, Native, dir)
	must(t, err)
	must(t, first.Close(false))
	second := closed(t, load(t, Config{}))
	a, err := second.Attach(w.dev.Index, 0, Generic, dir)
	must(t, err)
	if a.Adopted || !a.Pinned || a.Mode != Generic {
		t.Errorf("attachment %+v", a)
	}
}

func TestARenamedInterfaceKeepsItsLink(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	first := load(t, Config{})
	before, err := first.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	must(t, first.Close(false))
	dev, err := w.node.Interface(w.dev.Name)
	must(t, err)
	nl := w.node.Netlink()
	must(t, nl.LinkSetDown(dev))
	must(t, nl.LinkSetName(dev, "uplink"))
	must(t, nl.LinkSetUp(dev))

	second := closed(t, load(t, Config{}))
	after, err := second.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	if !after.Adopted || after.PinPath == before.PinPath {
		t.Errorf("attachment %+v", after)
	}
	if _, err := os.Stat(before.PinPath); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old pin is still there: %v", err)
	}
}

func TestPinsOfInterfacesThatAreGoneAreRemoved(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	gone := load(t, Config{})
	must(t, netlab.Connect(netlab.End{Namespace: w.node, Name: "old"}, netlab.End{Namespace: w.peer, Name: "older"}, netlab.LinkConfig{}))
	old, err := w.node.Interface("old")
	must(t, err)
	a, err := gone.Attach(old.Attrs().Index, 0, Auto, dir)
	must(t, err)
	must(t, gone.Close(false))
	must(t, w.node.Delete("old"))

	p := closed(t, load(t, Config{}))
	_, err = p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	if _, err := os.Stat(a.PinPath); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stale pin %s: %v", a.PinPath, err)
	}
}

func TestWithoutBPFFSTheLinkIsNotPinned(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	p := load(t, Config{})
	a, err := p.Attach(w.dev.Index, 0, Auto, filepath.Join(t.TempDir(), "weir"))
	must(t, err)
	if a.Pinned || !errors.Is(a.PinError, ErrNotBPFFS) {
		t.Errorf("pinned %v, %v", a.Pinned, a.PinError)
	}
	must(t, p.Close(false))
	if _, err := attachedMode(w.dev.Index); err == nil {
		t.Error("an unpinned link outlived its process's Close")
	}
}

func TestAnotherXDPProgramIsLeftAlone(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	first := closed(t, load(t, Config{}))
	_, err := first.Attach(w.dev.Index, 0, Auto, t.TempDir())
	must(t, err)
	second := closed(t, load(t, Config{}))
	_, err = second.Attach(w.dev.Index, 0, Auto, t.TempDir())
	if !inUse(err) {
		t.Fatalf("%v, want EBUSY or EEXIST", err)
	}
	t.Log(err)
}

func TestAutoFallsBackToGenericAndSaysWhy(t *testing.T) {
	labtest.Require(t)
	lab, err := netlab.New()
	must(t, err)
	t.Cleanup(func() { must(t, lab.Close()) })
	node, err := lab.Namespace("node")
	must(t, err)
	must(t, node.Bridge("br0", nil)) // bridges have no native XDP
	dev, err := node.Interface("br0")
	must(t, err)
	enter(t, node)
	p := closed(t, load(t, Config{}))
	_, err = p.Attach(dev.Attrs().Index, 0, Native, t.TempDir())
	if !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("native: %v, want EOPNOTSUPP", err)
	}
	vlans := map[VLAN]net.HardwareAddr{7: dev.Attrs().HardwareAddr}
	if _, err = p.AttachInterface(Interface{Index: dev.Attrs().Index, Mode: Native, PinDir: t.TempDir(), VLANs: vlans}); err == nil {
		t.Error("attached natively, with a VLAN")
	}
	var key steerVlanKey
	if err := p.maps.steer.Vlans.NextKey(nil, &key); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("VLAN %+v is left of an attachment that failed: %v", key, err)
	}
	a, err := p.Attach(dev.Attrs().Index, 0, Auto, t.TempDir())
	must(t, err)
	if a.Mode != Generic || !errors.Is(a.NativeError, unix.EOPNOTSUPP) {
		t.Errorf("attachment %+v", a)
	}
	t.Log(a.NativeError)
}

func TestJumboFramesAttachNatively(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{MTU: 9000})
	p := closed(t, load(t, Config{}))
	if !p.Frags() {
		t.Skip("skipped: the kernel has no XDP programs for packets of several buffers")
	}
	a, err := p.Attach(w.dev.Index, 0, Native, t.TempDir())
	must(t, err)
	if a.Mode != Native {
		t.Errorf("mode %v", a.Mode)
	}
}

// TestMTUWithoutFragsIsNamed is what kernels before 5.18, and many drivers, say
// to jumbo frames.
func TestMTUWithoutFragsIsNamed(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{MTU: 9000})
	p, err := withMaps(Config{MaxFrontends: 1, MaxSNAT: 1})
	must(t, err)
	p.programs.noFrags.Store(true)
	closed(t, p)
	_, err = p.Attach(w.dev.Index, 0, Native, t.TempDir())
	if !errors.Is(err, unix.ERANGE) || !strings.Contains(err.Error(), "MTU") {
		t.Errorf("native: %v, want ERANGE and a word on the MTU", err)
	}
	a, err := p.Attach(w.dev.Index, 0, Auto, t.TempDir())
	must(t, err)
	if a.Mode != Generic || !errors.Is(a.NativeError, unix.ERANGE) {
		t.Errorf("attachment %+v", a)
	}
}

func TestAttachSaysWhatIsWrong(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	p := closed(t, load(t, Config{}))
	dir := t.TempDir()
	if _, err := p.Attach(9999, 0, Auto, dir); err == nil {
		t.Error("attached to no interface")
	}
	if _, err := p.Attach(w.dev.Index, MaxSlots, Auto, dir); err == nil {
		t.Error("attached as slot 64")
	}
	if _, err := p.Attach(1, 0, Auto, dir); err == nil {
		t.Error("attached to the loopback interface, which has no Ethernet address of its own")
	}
	a, err := p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	if _, err := p.Attach(w.dev.Index, 1, Auto, dir); err == nil {
		t.Error("attached twice to one interface")
	}
	must(t, p.Detach(a))
	must(t, p.Detach(a)) // a second time does nothing
	_, err = p.Attach(w.dev.Index, 1, Auto, dir)
	must(t, err)
}
