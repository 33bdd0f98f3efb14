package conntrack

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack/flowstate"
)

func open(t testing.TB, cfg Config) *Table {
	t.Helper()
	tab, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func fileConfig(t testing.TB) Config {
	return Config{Path: filepath.Join(t.TempDir(), "weir", "flows"), MaxFlows: 2000, Workers: 1, MaxEndpoints: 64}
}

// snapshot is what of a table survives its process.
func snapshot(tab *Table) map[Key]string {
	out := map[Key]string{}
	tab.Range(func(r Ref) bool {
		c, e := tab.Conn(r), *tab.Entry(r)
		out[e.Key] = fmt.Sprintf("%v %v %v seen %d made %d %v", tab.NewSrc(r), tab.NewDst(r), c.State(), c.LastSeen(), c.Created(), e)
		return true
	})
	return out
}

func TestTheNextProcessCarriesOn(t *testing.T) {
	memories(t, testNextProcess)
}

func testNextProcess(t *testing.T, cfg Config) {
	path := cfg.Path
	for name, size := range map[string]int{"same size": 2000, "larger": 5000, "smaller": 600} {
		t.Run(name, func(t *testing.T) {
			cfg.Path, cfg.MaxFlows = path+name, 2000
			if m, ok := cfg.Memory.(*mapMemory); ok {
				*m = mapMemory{}
			}
			tab := open(t, cfg)
			if tab.Restored() {
				t.Fatal("a new table reports that it was restored")
			}
			w := tab.Worker(0)
			w.Online()
			tab.baseTick = 100
			for i := range 700 {
				r := establish(t, tab, w, i)
				if i%7 == 0 || i >= 600 {
					w.Delete(r)
				}
			}
			f := natFlow(9000)
			f.Mode = ModeIPIP
			mustCreate(t, w, f)
			cursor := tab.ports.cursors[groupOf(tab, natFlow(0))%cursorCount].at.Load()
			want := snapshot(tab)
			tick := tab.Tick()
			if err := tab.Close(); err != nil {
				t.Fatal(err)
			}

			cfg.MaxFlows = size
			tab = open(t, cfg)
			defer tab.Close()
			a := tab.Restoration()
			if !a.Restored || a.Flows != len(want) || a.Discarded != 0 || a.SetAside != "" || tab.MaxFlows() != size {
				t.Fatalf("restoration %+v of %d flows", a, len(want))
			}
			got := snapshot(tab)
			for k, v := range want {
				if got[k] != v {
					t.Fatalf("flow was %s\n is now %s", v, got[k])
				}
			}
			if tab.Tick() < tick {
				t.Errorf("the clock went back from %d to %d", tick, tab.Tick())
			}
			if c := tab.ports.cursors[groupOf(tab, natFlow(0))%cursorCount].at.Load(); c != cursor {
				t.Errorf("port rotation begins at %d again, it was at %d", c, cursor)
			}
			tab.Range(func(r Ref) bool {
				if c := tab.Conn(r); c.EndpointID != NoID || c.ServiceID != NoID {
					t.Fatalf("numbers of the old process are still there: %+v", c)
				}
				tab.SetIDs(r, 5, 6)
				return true
			})
			if n := tab.EndpointFlows(5); int(n) != len(want) {
				t.Errorf("endpoint has %d flows, want %d", n, len(want))
			}
			checkTable(t, tab)
			w = tab.Worker(0)
			w.Online()
			for i := 700; i < 750; i++ {
				establish(t, tab, w, i)
			}
			checkTable(t, tab)
			checkFree(t, tab)
		})
	}
}

func TestATableWithLessRoomKeepsWhatFits(t *testing.T) {
	cfg := fileConfig(t)
	tab := open(t, cfg)
	w := tab.Worker(0)
	w.Online()
	for i := range 500 {
		establish(t, tab, w, i)
	}
	tab.Close()
	cfg.MaxFlows = 200
	tab = open(t, cfg)
	defer tab.Close()
	if a := tab.Restoration(); a.Flows != 200 || a.Discarded != 300 || a.Resized != 2000 {
		t.Fatalf("restoration %+v", a)
	}
	checkTable(t, tab)
}

// A process that is killed while it copies the table leaves the file of the copy, as large as the
// table. The next process removes it, also with nothing to copy itself, as after a downgrade. While a
// process has the table no other touches the copy.
func TestAnUnfinishedCopyOfTheTableIsRemoved(t *testing.T) {
	cfg := fileConfig(t)
	tab := open(t, cfg)
	w := tab.Worker(0)
	w.Online()
	establish(t, tab, w, 1)
	part := cfg.Path + newSuffix
	exists := func() bool {
		_, err := os.Lstat(part)
		return err == nil
	}
	if err := os.WriteFile(part, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(cfg); !errors.Is(err, ErrInUse) || !exists() {
		t.Errorf("another process: %v, copy is there %v", err, exists())
	}
	tab.Close()
	tab = open(t, cfg)
	defer tab.Close()
	if a := tab.Restoration(); a.Flows != 1 || exists() {
		t.Errorf("restoration %+v, unfinished copy is there %v", a, exists())
	}
}

func TestAFileThatCannotBeRestoredIsSetAside(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(b []byte) []byte
		reason string
	}{
		"text":                 {func([]byte) []byte { return []byte("hello\n") }, "not a flow table"},
		"zeros":                {func(b []byte) []byte { return make([]byte, len(b)) }, "not a flow table"},
		"a flipped bit":        {func(b []byte) []byte { b[24] ^= 4; return b }, "damaged"},
		"cut short":            {func(b []byte) []byte { return b[:len(b)-4096] }, "damaged"},
		"too long":             {func(b []byte) []byte { return append(b, make([]byte, 4096)...) }, "damaged"},
		"another version":      {func(b []byte) []byte { return reshape(b, func(s *shape) { s.Version++ }) }, fmt.Sprintf("layout version %d", layoutVersion+1)},
		"an earlier version":   {func(b []byte) []byte { return reshape(b, func(s *shape) { s.Version-- }) }, fmt.Sprintf("layout version %d", layoutVersion-1)},
		"another boot":         {func(b []byte) []byte { return reshape(b, func(s *shape) { s.BootID[0]++ }) }, "before the last boot"},
		"a size that is wrong": {func(b []byte) []byte { return reshape(b, func(s *shape) { s.MaxFlows += 100 }) }, "damaged"},
		"no flows at all":      {func(b []byte) []byte { return reshape(b, func(s *shape) { s.MaxFlows = 0 }) }, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := fileConfig(t)
			tab := open(t, cfg)
			w := tab.Worker(0)
			w.Online()
			establish(t, tab, w, 1)
			tab.Close()
			b, err := os.ReadFile(cfg.Path)
			if err != nil {
				t.Fatal(err)
			}
			b = c.damage(b)
			if err := os.WriteFile(cfg.Path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			tab = open(t, cfg)
			defer tab.Close()
			a := tab.Restoration()
			if a.Restored || a.SetAside != cfg.Path+".bad" || !strings.Contains(a.Reason, c.reason) {
				t.Fatalf("restoration %+v", a)
			}
			kept, err := os.ReadFile(a.SetAside)
			if err != nil || !bytes.Equal(kept, b[:min(len(b), setAsideKeep)]) {
				t.Errorf("%d bytes are kept of %d: %v", len(kept), len(b), err)
			}
			w = tab.Worker(0)
			w.Online()
			establish(t, tab, w, 1)
		})
	}
}

func reshape(b []byte, f func(*shape)) []byte {
	tab := &Table{}
	(&opener{Table: tab}).viewFile(b, planFor(1), 1)
	f(&tab.head.Shape)
	tab.head.Sum = tab.head.Shape.sum()
	return b
}

// Random damage behind the header costs the connections that it hit, no more.
func TestDamagedConnectionsAreDiscarded(t *testing.T) {
	memories(t, testDamagedConnections)
}

func testDamagedConnections(t *testing.T, cfg Config) {
	cfg.MaxFlows = 200
	tab := open(t, cfg)
	w := tab.Worker(0)
	w.Online()
	for i := range 150 {
		establish(t, tab, w, i)
	}
	tab.Close()
	left := leftBy(t, cfg)
	good := bytes.Clone(left)
	rng := rand.New(rand.NewPCG(3, 3))
	p := planFor(200)
	for range 30 {
		copy(left, good)
		for range 20 {
			at := p.conns + rng.Int64N(int64(len(left))-p.conns)
			left[at] = byte(rng.Uint32())
		}
		tab := open(t, cfg)
		if a := tab.Restoration(); !a.Restored || a.Flows < 130 {
			t.Fatalf("restoration %+v", a)
		}
		now := tab.Tick()
		tab.Range(func(r Ref) bool {
			if tab.Conn(r).Idle(now+1) == 0 {
				t.Errorf("flow was last seen at %d, it is %d", tab.Conn(r).LastSeen(), now)
			}
			return true
		})
		checkTable(t, tab)
		checkFree(t, tab)
		tab.Close()
	}
}

func TestTheClockGoesOnWhenTheMonotonicOneDoesNot(t *testing.T) {
	cfg := fileConfig(t)
	tab := open(t, cfg)
	tab.head.note(5000, time.Now().Add(-10*time.Second))
	tab.closing.Store(true) // leave the header so
	tab.head.Epoch += int64(time.Hour)
	if err := tab.mem.close(); err != nil {
		t.Fatal(err)
	}
	tab = open(t, cfg)
	defer tab.Close()
	if got, want := tab.Tick(), uint32(5000+10*TicksPerSecond); got < want || got > want+20*TicksPerSecond {
		t.Errorf("tick %d, want about %d", got, want)
	}
}

func TestWantOfRoomIsAnErrorWithAFigure(t *testing.T) {
	if _, err := Open(Config{MaxFlows: 1 << 30, Workers: 1}); err == nil || !strings.Contains(err.Error(), "MB are available") {
		t.Errorf("more than all memory: %v", err)
	}
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root to mount a small tmpfs")
		}
		t.Skip("needs root to mount a small tmpfs")
	}
	dir := t.TempDir()
	if err := unix.Mount("flows", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("mount a small tmpfs: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	cfg := Config{Path: filepath.Join(dir, "flows"), MaxFlows: 100_000, Workers: 1}
	_, err := Open(cfg)
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "allocate 18 MB for 100000 flows") {
		t.Errorf("small tmpfs: %v", err)
	}
	cfg.MaxFlows = 1000
	tab, err := Open(cfg)
	if err != nil {
		t.Fatalf("a table that fits: %v", err)
	}
	w := tab.Worker(0)
	w.Online()
	establish(t, tab, w, 1)
	tab.Close()
	// No room for a second, larger one: the old is kept to be looked at, and said.
	cfg.MaxFlows = 16000
	tab, err = Open(cfg)
	if err != nil {
		t.Fatalf("resize: %v", err)
	}
	defer tab.Close()
	if a := tab.Restoration(); a.Restored || !strings.Contains(a.Reason, "no space left") {
		t.Errorf("restoration %+v", a)
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	dir := t.TempDir()
	for want, cfg := range map[string]Config{
		"0 workers":                {MaxFlows: 10},
		"-1 flows":                 {MaxFlows: -1, Workers: 1},
		"flows: want 1 to":         {MaxFlows: 1 << 40, Workers: 1},
		"-1 endpoints":             {MaxFlows: 10, Workers: 1, MaxEndpoints: -1},
		"timeout Established -1ns": {MaxFlows: 10, Workers: 1, Timeouts: flowstate.Timeouts{Established: -1}},
		"is a directory":           {MaxFlows: 10, Workers: 1, Path: dir},
		"not a directory":          {MaxFlows: 10, Workers: 1, Path: "/proc/version/flows"},
	} {
		if tab, err := Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: table %v, error %v", want, tab != nil, err)
		}
	}
}
