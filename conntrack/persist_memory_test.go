package conntrack

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// mapMemory is Memory in maps of the kernel, of which kept outlives a table as a pin does.
// Its methods fail with the errors that are set.
type mapMemory struct {
	kept                *os.File // the map that the next table finds
	made                *os.File
	tableErr, indexErr  error
	keepErr             error
	dropped             bool
	lastSize, tableSize int64
}

// makeMap makes an array of cells that can be mapped.
func makeMap(size int64) (*os.File, error) {
	attr := struct{ kind, key, value, entries, flags uint32 }{
		unix.BPF_MAP_TYPE_ARRAY, 4, 64, uint32((size + 63) / 64), unix.BPF_F_MMAPABLE,
	}
	fd, _, e := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if e != 0 {
		return nil, e
	}
	return os.NewFile(fd, "map"), nil
}

func mapOf(f *os.File, size int64) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func newMapMemory(t testing.TB) *mapMemory {
	f, err := makeMap(64)
	if err != nil {
		if errors.Is(err, unix.EPERM) && os.Getenv("CI") == "" {
			t.Skip("skipped: the kernel gives no maps: ", err)
		}
		t.Fatal(err)
	}
	f.Close()
	return &mapMemory{}
}

func (m *mapMemory) Last() []byte {
	if m.kept == nil {
		return nil
	}
	b, err := mapOf(m.kept, m.lastSize)
	if err != nil {
		panic(err)
	}
	return b
}

func (m *mapMemory) Table(size int64) ([]byte, error) {
	if m.tableErr != nil {
		return nil, m.tableErr
	}
	var err error
	if m.made, err = makeMap(size); err != nil {
		return nil, err
	}
	m.tableSize = size
	return mapOf(m.made, size)
}

func (m *mapMemory) Index(size int64) ([]byte, error) {
	if m.indexErr != nil {
		return nil, m.indexErr
	}
	f, err := makeMap(size)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping holds it
	return mapOf(f, (size+4095)&^4095)
}

func (m *mapMemory) Keep() error {
	if m.keepErr != nil {
		return m.keepErr
	}
	m.kept, m.lastSize = m.made, m.tableSize
	return nil
}

func (m *mapMemory) Drop() error {
	m.kept, m.dropped = nil, true
	return nil
}

// memories are the memories that a table may be in, with a configuration for each.
func memories(t *testing.T, f func(t *testing.T, cfg Config)) {
	t.Run("file", func(t *testing.T) { f(t, fileConfig(t)) })
	t.Run("map", func(t *testing.T) {
		cfg := fileConfig(t)
		cfg.Memory, cfg.NextHops = newMapMemory(t), 4096
		f(t, cfg)
	})
}

// leftBy is what the last process has left, mapped.
func leftBy(t *testing.T, cfg Config) []byte {
	t.Helper()
	if m, ok := cfg.Memory.(*mapMemory); ok {
		return m.Last()
	}
	f, err := os.OpenFile(cfg.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b, err := mapOf(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// fillAndClose makes n established flows in a new table and returns what is to survive.
func fillAndClose(t *testing.T, cfg Config, n int) map[Key]string {
	t.Helper()
	tab := open(t, cfg)
	w := tab.Worker(0)
	w.Online()
	for i := range n {
		establish(t, tab, w, i)
	}
	w.Offline()
	want := snapshot(tab)
	if err := tab.Close(); err != nil {
		t.Fatal(err)
	}
	return want
}

func checkSurvived(t *testing.T, tab *Table, want map[Key]string) {
	t.Helper()
	got := snapshot(tab)
	if len(got) != len(want) {
		t.Errorf("%d flows, want %d", len(got), len(want))
	}
	for k := range want {
		if got[k] == "" {
			t.Fatal("a flow is lost")
		}
	}
	checkTable(t, tab)
	checkFree(t, tab)
}

func TestConnectionsFollowFromFileToMemoryAndBack(t *testing.T) {
	cfg := fileConfig(t)
	want := fillAndClose(t, cfg, 300)
	m := newMapMemory(t)
	for i, memory := range []Memory{m, m, nil} {
		cfg.Memory = memory
		if memory == nil { // as with the memory switched off
			cfg.Memory, m.tableErr, m.indexErr = m, errors.ErrUnsupported, errors.ErrUnsupported
		}
		cfg.MaxFlows = []int{2000, 3000, 1000}[i]
		tab := open(t, cfg)
		a := tab.Restoration()
		if !a.Restored || a.Discarded != 0 || tab.MaxFlows() != cfg.MaxFlows {
			t.Fatalf("step %d: %+v", i, a)
		}
		if inFile := a.MemoryErr != nil; inFile != (memory == nil) {
			t.Errorf("step %d: %v", i, a.MemoryErr)
		}
		checkSurvived(t, tab, want)
		st, err := os.Stat(cfg.Path)
		if err != nil {
			t.Fatal(err)
		}
		if empty := st.Size() == 0; empty != (memory != nil) {
			t.Errorf("step %d: the file has %d bytes", i, st.Size())
		}
		tab.Close()
	}
	if !m.dropped {
		t.Error("the memory was not dropped")
	}
	cfg.Memory = nil
	tab := open(t, cfg)
	defer tab.Close()
	checkSurvived(t, tab, want)
}

// A process that ends for good leaves no memory: its connections are in the file, which has blocks
// for them alone. Where that is not possible the file is no table.
func TestConnectionsAreSavedFromMemory(t *testing.T) {
	cfg, m := fileConfig(t), newMapMemory(t)
	cfg.Memory, cfg.MaxFlows = m, 100_000
	tab := open(t, cfg)
	w := tab.Worker(0)
	w.Online()
	for i := range 300 {
		establish(t, tab, w, i)
	}
	w.Offline()
	want := snapshot(tab)
	for range 2 {
		if err := Save(tab); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(cfg.Path, &st); err != nil || st.Size < 100_000*bytesPerFlow/2 || st.Blocks*512 > st.Size/4 {
		t.Errorf("%d bytes in %d blocks, %v", st.Size, st.Blocks, err)
	}
	tab.Close()
	for step, memory := range []Memory{nil, newMapMemory(t)} {
		cfg.Memory = memory
		tab := open(t, cfg)
		if a := tab.Restoration(); !a.Restored || a.Discarded != 0 || a.SetAside != "" {
			t.Fatalf("step %d: %+v", step, a)
		}
		checkSurvived(t, tab, want)
		if memory == nil {
			if err := unix.Stat(cfg.Path, &st); err != nil || st.Blocks*512 < st.Size {
				t.Errorf("a write may lack a block: %d of %d bytes, %v", st.Blocks*512, st.Size, err)
			}
			if err := Save(tab); err != nil {
				t.Error(err)
			}
		}
		tab.Close()
	}

	cfg.Memory, cfg.MaxFlows = newMapMemory(t), 100_000
	tab = open(t, cfg)
	defer tab.Close()
	file := tab.mem.file
	defer func() { tab.mem.file = file }()
	if tab.mem.file, _ = os.Open(cfg.Path); Save(tab) == nil {
		t.Error("it was saved to a file for reading")
	}
	if inFile, err := os.Stat(cfg.Path); err != nil || inFile.Size() != 0 {
		t.Errorf("the file has %d bytes, %v", inFile.Size(), err)
	}
}

// With the table in memory the program of the last process goes on by the next-hop words of
// its steady flows: they stay until this process has its own.
func TestNextHopWordsStayInMemory(t *testing.T) {
	for _, nextHops := range []int{2, 3, 4096} {
		t.Run(fmt.Sprint(nextHops), func(t *testing.T) { testNextHopWords(t, nextHops) })
	}
}

func testNextHopWords(t *testing.T, nextHops int) {
	memories(t, func(t *testing.T, cfg Config) {
		tab := open(t, cfg)
		w := tab.Worker(0)
		w.Online()
		for _, client := range []string{"192.0.2.1:1000", "[2001:db8::1]:1000"} {
			f := natFlow(1)
			if client[0] == '[' {
				f = natFlow6(1)
			}
			f.Established = true
			r := mustCreate(t, w, f)
			c := tab.Conn(r)
			for c.state&flowstate.Slow != 0 {
				c.state &^= flowstate.Slow | flowstate.Young
			}
			settleBy(tab, r, [2]uint64{7<<32 | 1, 7<<32 | 2})
			if tab.NextHop(r) != 7<<32|1 || tab.NextHop(r.Other()) != 7<<32|2 {
				t.Fatalf("words %x, %x", tab.NextHop(r), tab.NextHop(r.Other()))
			}
		}
		generation := tab.Entry(1).gen
		tab.Close()
		cfg.NextHops = nextHops
		tab = open(t, cfg)
		defer tab.Close()
		n := 0
		tab.Range(func(r Ref) bool {
			n++
			stays := tab.NextHop(r) == 7<<32|1 && tab.NextHop(r.Other()) == 7<<32|2
			if stays != (cfg.Memory != nil && nextHops > 2) {
				t.Errorf("family %d: words %x, %x", tab.Entry(r).Key.Family(), tab.NextHop(r), tab.NextHop(r.Other()))
			}
			return true
		})
		if n != 2 || tab.Restoration().Discarded != 0 || tab.Entry(1).gen != generation {
			t.Errorf("%d flows, %+v", n, tab.Restoration())
		}
	})
}

func TestTheFileTakesOverWhenMemoryFails(t *testing.T) {
	for name, spoil := range map[string]func(*mapMemory){
		"table": func(m *mapMemory) { m.tableErr = unix.ENOMEM },
		"index": func(m *mapMemory) { m.indexErr = unix.ENOMEM },
		"pin":   func(m *mapMemory) { m.keepErr = unix.EPERM },
	} {
		for _, last := range []string{"nothing", "file", "map"} {
			t.Run(name+" after "+last, func(t *testing.T) {
				cfg, m := fileConfig(t), newMapMemory(t)
				var want map[Key]string
				switch last {
				case "file":
					want = fillAndClose(t, cfg, 300)
				case "map":
					cfg.Memory = m
					want = fillAndClose(t, cfg, 300)
				}
				cfg.Memory, cfg.MaxFlows = m, 1000 // a new map is needed
				spoil(m)
				for range 2 {
					tab := open(t, cfg)
					if tab.Restoration().MemoryErr == nil {
						t.Error("no reason is given")
					}
					checkSurvived(t, tab, want)
					tab.Close()
				}
			})
		}
	}
}

func TestMemoryThatIsNoTableIsReplaced(t *testing.T) {
	for name, spoil := range map[string]func(m *mapMemory, b []byte){
		"zero":      func(_ *mapMemory, b []byte) { clear(b) },
		"checksum":  func(_ *mapMemory, b []byte) { b[unsafe.Offsetof(shape{}.Seed)]++ },
		"version":   func(_ *mapMemory, b []byte) { b[unsafe.Offsetof(shape{}.Version)]++ },
		"truncated": func(m *mapMemory, _ []byte) { m.lastSize -= 4096 },
		"page":      func(m *mapMemory, _ []byte) { m.lastSize = 4096 },
		"other boot": func(_ *mapMemory, b []byte) {
			h := (*header)(unsafe.Pointer(&b[0]))
			h.Shape.BootID[0]++
			h.Sum = h.Shape.sum()
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMapMemory(t)
			cfg := fileConfig(t)
			cfg.Memory = m
			fillAndClose(t, cfg, 100)
			was := m.kept
			spoil(m, m.Last())
			tab := open(t, cfg)
			defer tab.Close()
			a := tab.Restoration()
			if a.Restored || a.MemoryReason == "" || a.MemoryErr != nil || m.kept == was {
				t.Errorf("restoration %+v", a)
			}
			checkSurvived(t, tab, nil)
		})
	}
}

// childMemory is the memory of a process whose parent has given it the kept map as fd 3.
func childMemory(size string) (*mapMemory, error) {
	n, err := strconv.ParseInt(size, 10, 64)
	return &mapMemory{kept: os.NewFile(3, "map"), lastSize: n}, err
}
