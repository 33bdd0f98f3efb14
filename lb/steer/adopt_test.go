package steer

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// The sockets of the next process get packets by the program of the last one, before the next
// program is verified. What only the last process has served is the kernel's in the end.
func TestNextProcessServesByTheProgramThatIsAttached(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	front, gone := netip.AddrPortFrom(node4, 30080), netip.AddrPortFrom(node4, 30081)
	rangeGone, rangeKept := netip.AddrPortFrom(node4, 30100), netip.AddrPortFrom(node4, 30110)
	last := load(t, Config{PinDir: dir})
	if last.Adopted() {
		t.Fatal("there was no process before")
	}
	_, err := last.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	s := w.openSocket(0)
	must(t, last.SetSocket(0, 0, s.FD()))
	must(t, last.AddFrontend(front, unix.IPPROTO_UDP, 0))
	must(t, last.AddFrontend(gone, unix.IPPROTO_UDP, 0))
	must(t, last.AddRange(rangeGone, 30105, unix.IPPROTO_UDP, 0))
	must(t, last.AddRange(rangeKept, 30115, unix.IPPROTO_UDP, 0))
	must(t, last.SetSNAT(node4, 40000, 40001))
	must(t, last.AddVIP(netip.MustParseAddr("192.0.2.1")))
	must(t, last.Hold(time.Hour))
	must(t, last.Settle())
	must(t, s.Close())
	must(t, last.Close(false))

	p := load(t, Config{PinDir: dir})
	if !p.Adopted() || p.HoldEnded() {
		t.Fatalf("adopted %v, the hold has ended %v", p.Adopted(), p.HoldEnded())
	}
	kernel, host := w.listen(30081), w.listen(40000)
	w.send(front)
	s = w.openSocket(0)
	must(t, p.SetSocket(0, 0, s.FD()))
	w.send(front)
	w.socketGets(s)

	must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
	must(t, p.AddRange(rangeKept, 30115, unix.IPPROTO_UDP, 0))
	a, err := p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	if !a.Adopted {
		t.Errorf("attachment %+v", a)
	}
	if got := packets(t, p)[Held]; got != 1 {
		t.Errorf("%d packets held, want that before there was a socket", got)
	}
	w.send(gone)
	w.socketGets(s)
	must(t, p.Settle())
	w.send(gone)
	w.kernelGets(kernel)
	ranged := w.listen(30103)
	w.send(netip.AddrPortFrom(node4, 30103))
	w.kernelGets(ranged)
	w.send(netip.AddrPortFrom(node4, 30115))
	w.socketGets(s)
	w.send(netip.AddrPortFrom(node4, 40000))
	w.kernelGets(host)
	w.send(front)
	w.socketGets(s)
	if list, err := p.Frontends(); err != nil || len(list) != 1 {
		t.Errorf("frontends %v, %v", list, err)
	}
	must(t, p.Close(true))
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of pins is still there: %v", err)
	}
}

// Ranges of the last process make room for those of the next before it settles.
func TestRangesOfTheLastProcessMakeRoom(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	last := load(t, Config{PinDir: dir})
	_, err := last.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	for i := range uint16(MaxRanges) {
		must(t, last.AddRange(at(node4, 20000+100*i), 20050+100*i, unix.IPPROTO_TCP, 0))
	}
	must(t, last.Settle())
	must(t, last.Close(false))
	p := closed(t, load(t, Config{PinDir: dir}))
	if !p.Adopted() {
		t.Fatal("the maps are not adopted")
	}
	for i := range uint16(MaxRanges) {
		must(t, p.AddRange(at(node4, 30000+100*i), 30050+100*i, unix.IPPROTO_TCP, 0))
	}
	if err := p.AddRange(at(node4, 40000), 40001, unix.IPPROTO_TCP, 0); !errors.Is(err, ErrManyRanges) {
		t.Errorf("a range too many: %v", err)
	}
}

// Maps of another size are replaced, and those of a process that runs are left alone by one
// that has got no socket.
func TestMapsOfAnotherShapeAreNotAdopted(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	last := closed(t, load(t, Config{PinDir: dir}))
	_, err := last.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	must(t, last.Settle())

	other := load(t, Config{PinDir: dir, MaxFrontends: 7})
	if other.Adopted() {
		t.Error("maps of another size were adopted")
	}
	must(t, other.Close(true))
	again := load(t, Config{PinDir: dir})
	if !again.Adopted() {
		t.Error("the maps have gone")
	}
	must(t, again.Close(false))
	must(t, CleanupStale(dir))
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of pins is still there after the cleanup: %v", err)
	}
}

// Maps that another user could have pinned are not adopted.
func TestMapsOfAnotherUserAreNotAdopted(t *testing.T) {
	for name, change := range map[string]func(dir, maps string) error{
		"directory of pins": func(dir, _ string) error { return os.Chown(dir, 65534, -1) },
		"directory of maps": func(_, maps string) error { return os.Chown(maps, 65534, -1) },
		"map":               func(_, maps string) error { return os.Chmod(filepath.Join(maps, "frontends"), 0o666) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t, netlab.LinkConfig{}) // the namespace is that of this thread alone
			dir := bpffs(t)
			last := load(t, Config{PinDir: dir})
			_, err := last.Attach(w.dev.Index, 0, Auto, dir)
			must(t, err)
			must(t, last.Settle())
			maps, err := last.pins.namespace()
			must(t, err)
			must(t, last.Close(false))
			must(t, change(dir, maps))
			next := load(t, Config{PinDir: dir})
			if next.Adopted() {
				t.Error("the maps were adopted")
			}
			must(t, next.Close(false))
			must(t, os.Chown(dir, 0, -1))
			must(t, CleanupStale(dir))
		})
	}
}

// Maps of a network namespace that is gone do not stay for good.
func TestMapsOfAGoneNamespaceAreRemoved(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	last := load(t, Config{PinDir: dir})
	_, err := last.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	gone := filepath.Join(dir, mapsPrefix+"1-1")
	must(t, os.Mkdir(gone, 0o700))
	must(t, last.Settle())
	if _, err := os.Stat(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the maps of namespace 1 are still there: %v", err)
	}
	must(t, last.Close(true))
}

// A cleanup leaves the Weir of another network namespace alone, and removes that of a namespace
// that is gone.
func TestCleanupLeavesOtherNamespacesAlone(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	p := load(t, Config{PinDir: dir})
	_, err := p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	must(t, p.Settle())
	maps, err := p.pins.namespace()
	must(t, err)
	table := filepath.Join(dir, tablePrefix+"1") // of lb/flowcache
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	must(t, err)
	must(t, m.Pin(table))
	must(t, m.Close())
	must(t, os.Mkdir(filepath.Join(dir, mapsPrefix+"1-1"), 0o700))
	count := func() int {
		entries, err := os.ReadDir(dir)
		must(t, err)
		return len(entries)
	}
	must(t, w.peer.Do(func() error { return CleanupStale(dir) }))
	if _, err := os.Stat(maps); err != nil || count() != 3 {
		t.Errorf("%d pins, of 3 beside those of the namespace that is gone: %v", count(), err)
	}
	if _, err := attachedMode(w.dev.Index); err != nil {
		t.Errorf("the program is detached: %v", err)
	}
	must(t, p.Close(false))
	must(t, CleanupStale(dir))
	if _, err := attachedMode(w.dev.Index); err == nil || count() != 1 {
		t.Errorf("%d pins are left, want the table: %v", count(), err)
	}
}

// The guard of an interface stays when the process leaves for the next one, which adopts it: the
// kernel would reset the connections in between.
func TestAGuardOutlivesTheProcess(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	last := load(t, Config{PinDir: dir})
	must(t, last.Guard(Interface{Index: w.dev.Index, Mode: Native, PinDir: dir}))
	must(t, last.Close(false))
	if mode, err := attachedMode(w.dev.Index); err != nil || mode != Native {
		t.Fatalf("the guard has ended: %v, %v", mode, err)
	}
	p := closed(t, load(t, Config{PinDir: dir}))
	a, err := p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	if !a.Adopted {
		t.Errorf("attachment %+v", a)
	}
}

// The namespace of a killed Weir ends, and the interface comes to another with the program on it. A
// cleanup there takes the program off, and leaves the interfaces that have not come.
func TestCleanupFollowsAnInterface(t *testing.T) {
	for _, hook := range []Hook{XDP, TCX} {
		t.Run(hook.String(), func(t *testing.T) {
			w := newWire(t, netlab.LinkConfig{})
			dir := bpffs(t)
			in, p := Interface{Index: w.dev.Index, PinDir: dir}, loadFlows(t)
			if hook == TCX {
				in = tcxOn(t, w, dir)
			}
			_, err := p.AttachInterface(in)
			must(t, err)
			must(t, p.Close(false))
			dev, err := w.node.Interface(w.dev.Name)
			must(t, err)
			must(t, w.node.Netlink().LinkSetNsFd(dev, int(w.peer.Handle())))
			must(t, w.peer.Do(func() error { return CleanupStale(dir) }))
			pins, err := listPins(dir)
			must(t, err)
			pins = slices.DeleteFunc(pins, func(p pinned) bool { return hook == TCX && p.index == in.Inner })
			if len(pins) > 0 {
				t.Errorf("left: %+v", pins)
			}
		})
	}
}
