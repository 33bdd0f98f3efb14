package steer

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/flowcache"
	"github.com/weirlb/weir/lb/uppair"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// loadFlows loads a program with the maps of an empty flow table.
func loadFlows(t testing.TB) *Program {
	p, _ := loadCache(t)
	return p
}

// loadCache is loadFlows, and returns the maps.
func loadCache(t testing.TB) (*Program, *flowcache.Cache) {
	t.Helper()
	c, err := flowcache.New(flowcache.Config{NextHops: 16, Endpoints: 64, Services: 64})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	flows, err := conntrack.Open(conntrack.Config{MaxFlows: 1024, Workers: 1, MaxEndpoints: 64, Memory: c, NextHops: 16})
	must(t, err)
	t.Cleanup(func() { must(t, flows.Close()) })
	must(t, c.SetTable(flows))
	return load(t, Config{Flows: c.Maps()}), c
}

// needTCX skips the test on a kernel without TCX.
func needTCX(t testing.TB) {
	t.Helper()
	labtest.Require(t)
	if p := ProbeTCX(); !p.OK() {
		t.Skip("skipped: ", p)
	}
}

// tcxOn is w's interface with the TCX hook, and the veth pair that it needs.
func tcxOn(t testing.TB, w *wire, dir string) Interface {
	t.Helper()
	needTCX(t)
	p, err := uppair.Open(uppair.Config{Slot: 0, Queues: 1, MTU: 1500})
	must(t, err)
	return Interface{Index: w.dev.Index, Slot: 0, Hook: TCX, Inner: p.Inner, PinDir: dir}
}

// tcxPrograms are the programs at an interface's TCX hook, in order.
func tcxPrograms(t testing.TB, ifindex int) []ebpf.ProgramID {
	t.Helper()
	q, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
	must(t, err)
	var ids []ebpf.ProgramID
	for _, p := range q.Programs {
		ids = append(ids, p.ID)
	}
	return ids
}

func TestTCXIsAttachedBeforeOtherPrograms(t *testing.T) {
	needTCX(t)
	w := newWire(t, netlab.LinkConfig{})
	other, err := passIngress()
	must(t, err)
	defer other.Close()
	foreign, err := link.AttachTCX(link.TCXOptions{Interface: w.dev.Index, Program: other, Attach: ebpf.AttachTCXIngress})
	must(t, err)
	defer foreign.Close()

	dir := bpffs(t)
	p := loadFlows(t)
	a, err := p.AttachInterface(tcxOn(t, w, dir))
	must(t, err)
	if !a.Pinned || a.Adopted || a.Hook != TCX || a.Mode != Native || !a.Attached() {
		t.Errorf("attachment %+v", a)
	}
	ingress, err := p.programs.ingress()
	must(t, err)
	if ids := tcxPrograms(t, w.dev.Index); len(ids) != 2 || ids[0] != programID(t, ingress) {
		t.Errorf("programs %v, want %v first", ids, programID(t, ingress))
	}
	if _, err := attachedMode(w.dev.Index); err == nil {
		t.Error("the interface has an XDP program")
	}
	if mode, err := attachedMode(a.inner.IfIndex); err != nil || mode != Native {
		t.Errorf("inner end: %v, %v", mode, err)
	}

	must(t, p.Close(true))
	if ids := tcxPrograms(t, w.dev.Index); len(ids) != 1 {
		t.Errorf("programs %v after the detachment", ids)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pins' directory is left: %v", err)
	}
}

func programID(t testing.TB, p *ebpf.Program) ebpf.ProgramID {
	t.Helper()
	info, err := p.Info()
	must(t, err)
	id, _ := info.ID()
	return id
}

func TestARestartAdoptsThePinnedTCXLink(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	first := loadFlows(t)
	in := tcxOn(t, w, dir)
	_, err := first.AttachInterface(in)
	must(t, err)
	must(t, first.Close(false))
	if ids := tcxPrograms(t, w.dev.Index); len(ids) != 1 {
		t.Fatalf("programs %v after the end of the process", ids)
	}

	second := loadFlows(t)
	a, err := second.AttachInterface(in)
	must(t, err)
	if !a.Adopted || !a.inner.Adopted {
		t.Errorf("attachment %+v, inner end %+v", a, a.inner)
	}
	ingress, err := second.programs.ingress()
	must(t, err)
	if ids := tcxPrograms(t, w.dev.Index); len(ids) != 1 || ids[0] != programID(t, ingress) {
		t.Errorf("programs %v", ids)
	}
	must(t, second.Close(true))
}

// The pins of the two hooks are told apart, and an interface has a link at one of them.
func TestAnotherHookReplacesTheFirst(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	tcx := tcxOn(t, w, dir)
	xdp := Interface{Index: w.dev.Index, Slot: 0, PinDir: dir}
	for _, in := range []Interface{xdp, tcx, xdp} {
		p := loadFlows(t)
		a, err := p.AttachInterface(in)
		must(t, err)
		if a.Adopted || a.Hook != in.Hook {
			t.Errorf("%v: attachment %+v", in.Hook, a)
		}
		_, noXDP := attachedMode(w.dev.Index)
		if ids := tcxPrograms(t, w.dev.Index); (noXDP == nil) != (in.Hook == XDP) || (len(ids) == 1) != (in.Hook == TCX) {
			t.Errorf("%v: XDP %v, TCX programs %v", in.Hook, noXDP, ids)
		}
		must(t, p.Close(false))
	}
	must(t, CleanupStale(dir))
	if _, err := attachedMode(w.dev.Index); err == nil {
		t.Error("XDP is left after the cleanup")
	}
}

func TestCleanupDetachesTCX(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	p := loadFlows(t)
	_, err := p.AttachInterface(tcxOn(t, w, dir))
	must(t, err)
	must(t, p.Close(false))
	must(t, CleanupStale(dir))
	if ids := tcxPrograms(t, w.dev.Index); len(ids) != 0 {
		t.Errorf("programs %v", ids)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pins' directory is left: %v", err)
	}
}

func TestTCXIsRefusedWithAReason(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	p := closed(t, loadFlows(t))
	good := tcxOn(t, w, t.TempDir())
	for reason, change := range map[string]func(*Interface){
		"excludes mode: generic": func(in *Interface) { in.Mode = Generic },
		"inner end":              func(in *Interface) { in.Inner = 99 },
	} {
		in := good
		change(&in)
		if _, err := p.AttachInterface(in); !errors.Is(err, ErrTCX) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%v, want %q", err, reason)
		}
	}
	generic, err := passProgram(0)
	must(t, err)
	defer generic.Close()
	l, err := link.AttachXDP(link.XDPOptions{Program: generic, Interface: w.dev.Index, Flags: link.XDPGenericMode})
	must(t, err)
	if _, err := p.AttachInterface(good); !errors.Is(err, ErrTCX) || !strings.Contains(err.Error(), "generic mode") {
		t.Errorf("%v, want a word of the program in generic mode", err)
	}
	must(t, l.Close())
	if ids := tcxPrograms(t, w.dev.Index); len(ids) != 0 {
		t.Errorf("programs %v are left of attachments that failed", ids)
	}
}

// A guarded interface gets the TCX program before it loses the guard: the kernel gets none of
// Weir's packets.
func TestTCXReplacesAGuardWithoutAGap(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	p, cache := loadCache(t)
	closed(t, p)
	to := netip.AddrPortFrom(node4, 5353)
	must(t, p.AddFrontend(to, unix.IPPROTO_UDP, 0))
	must(t, p.Hold(time.Hour))
	must(t, p.sockets.note(0, 0, true))
	in := tcxOn(t, w, dir)
	inner, err := netlink.LinkByIndex(in.Inner)
	must(t, err)
	must(t, cache.SetUp(0, uint32(inner.Attrs().ParentIndex)))
	must(t, p.Guard(Interface{Index: in.Index, Mode: Native, PinDir: dir}))
	kernel := w.listen(5353)

	ctx, stop := context.WithCancel(t.Context())
	sent, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		_ = w.peer.Do(func() error {
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
			if err != nil {
				return err
			}
			defer c.Close()
			for ctx.Err() == nil {
				if _, err := c.Write(make([]byte, payloadLen)); err == nil {
					select {
					case sent <- struct{}{}:
					default:
					}
				}
			}
			return nil
		})
	}()
	<-sent
	_, err = p.AttachInterface(in)
	must(t, err)
	stop()
	<-done
	must(t, kernel.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	if n, err := kernel.Read(make([]byte, 100)); err == nil {
		t.Errorf("the kernel got a packet of %d bytes", n)
	}
	if _, err := attachedMode(w.dev.Index); err == nil {
		t.Error("the guard is still there")
	}
}
