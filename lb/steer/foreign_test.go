package steer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// pinnedMap is something in the directory for pins that is not Weir's.
func pinnedMap(t *testing.T, path string) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, m.Pin(path))
	return m
}

// What others keep beside Weir's pins is in nobody's way, and stays: links are
// pinned, adopted and removed as ever, and only who removes them all is told.
func TestForeignPinsAreLeftAlone(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	other, below := filepath.Join(dir, "another"), filepath.Join(dir, "below")
	pinnedMap(t, other)
	must(t, os.Mkdir(below, 0o700))
	first := load(t, Config{})
	a, err := first.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	if !a.Pinned {
		t.Errorf("not pinned: %v", a.PinError)
	}
	must(t, first.Close(false))
	second := load(t, Config{})
	if a, err = second.Attach(w.dev.Index, 0, Auto, dir); err != nil || !a.Adopted {
		t.Errorf("adopted %+v, %v", a, err)
	}
	must(t, second.Close(false))
	err = CleanupStale(dir)
	if err == nil {
		t.Fatal("nothing was said of what is not Weir's")
	}
	for _, s := range []string{other + " is a BPF map, not Weir's: move it", below + " is no BPF object, not Weir's: move it"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v: does not say %q", err, s)
		}
	}
	if _, err := attachedMode(w.dev.Index); err == nil {
		t.Error("Weir's own link is still there")
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("the map is gone: %v", err)
	}
	must(t, os.Remove(other))
	must(t, os.Remove(below))
	must(t, CleanupStale(dir))
}

// Where the place itself is taken, the link goes without a pin.
func TestForeignPinInTheWay(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	path, _, err := preparePin(dir, w.dev.Name, XDP)
	must(t, err)
	pinnedMap(t, path)
	p := closed(t, load(t, Config{}))
	a, err := p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	if a.Pinned || a.PinError == nil || !strings.Contains(a.PinError.Error(), path+" is a BPF map, not Weir's: move it") {
		t.Errorf("pinned %v: %v", a.Pinned, a.PinError)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the map is gone: %v", err)
	}
}

// Without a descriptor to look at a link with, it is not taken for somebody else's.
func TestAPinThatCannotBeOpenedIsNotForeign(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	p := closed(t, load(t, Config{}))
	a, err := p.Attach(w.dev.Index, 0, Auto, bpffs(t))
	must(t, err)
	var limit, none unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	none.Max = limit.Max
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	l, err := openPin(a.PinPath)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if err == nil {
		t.Fatal(l.Close())
	}
	if errors.Is(err, errForeign) || !errors.Is(err, unix.EMFILE) {
		t.Error(err)
	}
}
