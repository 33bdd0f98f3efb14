package flowcache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
)

func TestTheNextProcessAdoptsThePinnedTable(t *testing.T) {
	dir := bpffs(t)
	p := start(t, dir, 2000)
	p.create(0, 100)
	id := mapID(t, p.cache.Maps()["flow_table"])
	p.end()

	p = start(t, dir, 2000)
	p.checkFlows(100)
	if mapID(t, p.cache.Maps()["flow_table"]) != id {
		t.Error("the table is another map")
	}
	p.create(100, 10)
	p.end()

	p = start(t, dir, 3000)
	p.checkFlows(110)
	if mapID(t, p.cache.Maps()["flow_table"]) == id {
		t.Error("a larger table is the same map")
	}
	if a := p.flows.Restoration(); a.Resized != 2000 {
		t.Errorf("restoration %+v", a)
	}
	p.end()
	checkPins(t, dir, 1)

	e, err := OpenEarlier(dir)
	must(t, err)
	path := filepath.Join(filepath.Dir(dir)+".flows", "table")
	flows, err := conntrack.Open(conntrack.Config{Path: path, MaxFlows: 3000, Workers: 1, Memory: e})
	must(t, err)
	(&process{t, nil, flows}).checkFlows(110)
	if a := flows.Restoration(); !errors.Is(a.MemoryErr, ErrOff) {
		t.Errorf("restoration %+v", a)
	}
	must(t, e.Close())
	must(t, flows.Close())
	checkPins(t, dir, 0)
	if e, err := OpenEarlier(dir); e != nil || err != nil {
		t.Errorf("an earlier table %v, %v", e, err)
	}

	p = start(t, dir, 3000) // and from the file again
	p.checkFlows(110)
	p.end()
}

// A stop with a full disk leaves no memory in the kernel either.
func TestATableThatCannotBeSavedIsNotPinned(t *testing.T) {
	dir := bpffs(t)
	files := filepath.Dir(dir) + ".flows"
	must(t, os.MkdirAll(files, 0o755))
	must(t, unix.Mount("tmpfs", files, "tmpfs", 0, "size=16k"))
	defer func() { must(t, unix.Unmount(files, unix.MNT_DETACH)) }()
	p := start(t, dir, 2000)
	p.create(0, 100)
	if err := p.cache.Save(p.flows); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("saved to a full disk: %v", err)
	}
	p.end()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		checkPins(t, dir, 0)
	}
}

func mapID(t *testing.T, m *ebpf.Map) ebpf.MapID {
	t.Helper()
	info, err := m.Info()
	must(t, err)
	id, _ := info.ID()
	return id
}

func checkPins(t *testing.T, dir string, n int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) != n {
		t.Errorf("%d pins, want %d: %v", len(entries), n, entries)
	}
}

func TestASecondProcessIsRefused(t *testing.T) {
	dir := bpffs(t)
	p := start(t, dir, 2000)
	if _, err := New(config(dir)); !errors.Is(err, conntrack.ErrInUse) {
		t.Errorf("a second cache: %v", err)
	}
	if _, err := OpenEarlier(dir); !errors.Is(err, conntrack.ErrInUse) {
		t.Errorf("a second process without: %v", err)
	}
	p.end()
	start(t, dir, 2000).end()
}

// A process that was killed before its new table was whole leaves a pin that nobody adopts.
func TestATableThatIsNotWholeIsRemoved(t *testing.T) {
	dir := bpffs(t)
	p := start(t, dir, 2000)
	p.create(0, 10)
	must(t, p.cache.Maps()["flow_index"].Pin(p.cache.pins.path+newSuffix))
	p.end()
	checkPins(t, dir, 2)
	p = start(t, dir, 2000)
	p.checkFlows(10)
	checkPins(t, dir, 1)
	p.end()

	// The table of another network namespace stays, as long as that has a link.
	own, err := netns()
	must(t, err)
	other := filepath.Join(dir, pinPrefix+"1")
	must(t, os.Rename(filepath.Join(dir, pinPrefix+own), other))
	link := filepath.Join(dir, "1-eth0")
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	must(t, err)
	must(t, m.Pin(link))
	must(t, m.Close())
	must(t, CleanupStale(dir))
	checkPins(t, dir, 2)
	must(t, os.Remove(link))
	must(t, CleanupStale(dir))
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	must(t, CleanupStale(dir+"/none"))
}

func TestForeignObjectsAreLeftAlone(t *testing.T) {
	other := func(typ ebpf.MapType, value uint32, flags uint32) func() (interface {
		Pin(string) error
		Close() error
	}, error) {
		return func() (interface {
			Pin(string) error
			Close() error
		}, error) {
			return ebpf.NewMap(&ebpf.MapSpec{Type: typ, KeySize: 4, ValueSize: value, MaxEntries: 100, Flags: flags})
		}
	}
	for name, makeObject := range map[string]func() (interface {
		Pin(string) error
		Close() error
	}, error){
		"hash":            other(ebpf.Hash, 64, 0),
		"other element":   other(ebpf.Array, 128, unix.BPF_F_MMAPABLE),
		"not for mapping": other(ebpf.Array, 64, 0),
		"zeros":           other(ebpf.Array, 64, unix.BPF_F_MMAPABLE),
	} {
		t.Run(name, func(t *testing.T) {
			dir := bpffs(t)
			start(t, dir, 2000).end()
			entries, err := os.ReadDir(dir)
			must(t, err)
			path := filepath.Join(dir, entries[0].Name())
			must(t, os.Remove(path))
			object, err := makeObject()
			must(t, err)
			must(t, object.Pin(path))
			must(t, object.Close())

			if _, err := New(config(dir)); !errors.Is(err, ErrForeign) {
				t.Errorf("New: %v", err)
			}
			if _, err := OpenEarlier(dir); !errors.Is(err, ErrForeign) {
				t.Errorf("OpenEarlier: %v", err)
			}
			err = CleanupStale(dir)
			if foreign := name != "zeros"; errors.Is(err, ErrForeign) != foreign { // by type it could be a table
				t.Errorf("CleanupStale: %v", err)
			}
		})
	}
}

// A table of ours that is damaged is replaced.
func TestADamagedTableIsReplaced(t *testing.T) {
	dir := bpffs(t)
	p := start(t, dir, 2000)
	p.create(0, 10)
	p.cache.made.b[24]++
	p.end()
	p = start(t, dir, 2000)
	defer p.end()
	p.checkFlows(0)
	if a := p.flows.Restoration(); a.MemoryReason == "" {
		t.Errorf("restoration %+v", a)
	}
	checkPins(t, dir, 1)
}

func TestNothingIsPinnedElsewhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "weir")
	if _, err := New(config(dir)); err == nil {
		t.Error("a table in a directory that is in no BPF file system")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory was made")
	}
	if e, err := OpenEarlier(dir); e != nil || err != nil {
		t.Errorf("an earlier table %v, %v", e, err)
	}
}
