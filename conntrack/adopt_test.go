package conntrack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
		out[e.Key] = fmt.Sprintf("%v %v %v seen %d made %d mark %d %v", e.NewSrc(), e.NewDst(), c.State(), c.LastSeen(), c.Created(), c.Mark, e)
		return true
	})
	return out
}

func TestTheNextProcessCarriesOn(t *testing.T) {
	for name, size := range map[string]int{"same size": 2000, "larger": 5000, "smaller": 600} {
		t.Run(name, func(t *testing.T) {
			cfg := fileConfig(t)
			tab := open(t, cfg)
			if tab.Adopted() {
				t.Fatal("a new table says that it is adopted")
			}
			w := tab.Worker(0)
			w.Online()
			for i := range 700 {
				r := establish(t, tab, w, i)
				if i%7 == 0 || i >= 600 {
					w.Delete(r)
				}
				tab.Conn(r).Adj[0], tab.Conn(r).Mark = 99, uint32(i)
			}
			f := natFlow(9000)
			f.Mode = ModeIPIP
			mustCreate(t, w, f)
			cursor := tab.cursors[groupOf(tab, natFlow(0))%cursorCount].at.Load()
			want := snapshot(tab)
			tick := tab.Tick()
			if err := tab.Close(); err != nil {
				t.Fatal(err)
			}

			cfg.MaxFlows = size
			tab = open(t, cfg)
			defer tab.Close()
			a := tab.Adoption()
			if !a.Adopted || a.Flows != len(want) || a.Discarded != 0 || a.SetAside != "" || tab.MaxFlows() != size {
				t.Fatalf("adoption %+v of %d flows", a, len(want))
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
			if c := tab.cursors[groupOf(tab, natFlow(0))%cursorCount].at.Load(); c != cursor {
				t.Errorf("port rotation begins at %d again, it was at %d", c, cursor)
			}
			tab.Range(func(r Ref) bool {
				if c := tab.Conn(r); c.Adj != [2]uint64{} || c.Endpoint != NoNumber || c.Frontend != NoNumber {
					t.Fatalf("numbers of the old process are still there: %+v", c)
				}
				tab.SetNumbers(r, 5, 6)
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
	if a := tab.Adoption(); a.Flows != 200 || a.Discarded != 300 || a.Resized != 2000 {
		t.Fatalf("adoption %+v", a)
	}
	checkTable(t, tab)
}

// A copy of the file, made while workers change it, stands for what a process that
// is killed leaves behind (and is worse: it is torn). It must open, and every
// connection in it must be whole.
func TestAFileLeftAtAnyInstantIsAdopted(t *testing.T) {
	cfg := fileConfig(t)
	cfg.MaxFlows, cfg.Workers = 300, 2
	tab := open(t, cfg)
	stable := map[Key]bool{}
	w := tab.Worker(0)
	w.Online()
	for i := range 50 {
		stable[tab.Entry(establish(t, tab, w, 100000+i)).Key] = true
	}
	w.Offline()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for n := range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w := tab.Worker(n)
			rng := rand.New(rand.NewPCG(9, uint64(n)))
			w.Online()
			defer w.Offline()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				stepShared(t, tab, w, rng, 64, uint32(i/100))
				if i%16 == 0 {
					w.Quiesce()
				}
			}
		}()
	}
	copies := 40
	if testing.Short() {
		copies = 10
	}
	for n := range copies {
		tab.Sweep(uint32(n), 300)
		copied := cfg
		copied.Path = filepath.Join(filepath.Dir(cfg.Path), fmt.Sprintf("copy%d", n))
		copyFile(t, cfg.Path, copied.Path)
		checkCopy(t, copied, stable)
	}
	close(stop)
	wg.Wait()
	tab.Close()
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
}

func checkCopy(t *testing.T, cfg Config, stable map[Key]bool) {
	t.Helper()
	tab := open(t, cfg)
	defer os.Remove(cfg.Path)
	defer tab.Close()
	if a := tab.Adoption(); !a.Adopted {
		t.Fatalf("not adopted: %+v", a)
	}
	checkTable(t, tab)
	for k := range stable {
		r := tab.lookup(k)
		if r == 0 {
			t.Fatal("an established flow is lost")
		}
		e := tab.Entry(r)
		if tab.lookup(MakeKey(e.NewDst(), e.NewSrc(), ProtoTCP)) != r.Other() {
			t.Fatal("an established flow has lost its answers")
		}
	}
	checkFree(t, tab)
}

// killedProcess is what a killed daemon is to the test below.
const killedProcess = "CONNTRACK_TEST_KILLED"

func TestMain(m *testing.M) {
	if path := os.Getenv(killedProcess); path != "" {
		mutateUntilKilled(path)
	}
	os.Exit(m.Run())
}

func mutateUntilKilled(path string) {
	tab, err := Open(Config{Path: path, MaxFlows: 300, Workers: 1, MaxEndpoints: 64})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	w := tab.Worker(0)
	w.Online()
	rng := rand.New(rand.NewPCG(9, uint64(os.Getpid())))
	fmt.Println("ready", tab.Adoption().Flows)
	for i := 0; ; i++ {
		stepShared(nil, tab, w, rng, 64, tab.Tick())
		w.Quiesce()
	}
}

func TestAProcessThatIsKilledLeavesASoundFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows")
	for round := range 8 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killedProcess+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 64)
		n, _ := out.Read(line)
		if !strings.HasPrefix(string(line[:n]), "ready") {
			t.Fatalf("round %d: %s", round, line[:n])
		}
		if _, err := Open(Config{Path: path, MaxFlows: 300, Workers: 1}); !errors.Is(err, ErrInUse) {
			t.Errorf("a second process may open the file: %v", err)
		}
		time.Sleep(time.Duration(1+round*3) * time.Millisecond) // any instant will do
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		tab := open(t, Config{Path: path, MaxFlows: 300, Workers: 1, MaxEndpoints: 64})
		if a := tab.Adoption(); !a.Adopted || a.Discarded != 0 {
			t.Fatalf("round %d: adoption %+v", round, a)
		}
		checkTable(t, tab)
		checkFree(t, tab)
		tab.Close()
	}
}

func TestAFileThatCannotBeAdoptedIsSetAside(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(b []byte) []byte
		reason string
	}{
		"text":                 {func([]byte) []byte { return []byte("hello\n") }, "not a flow table"},
		"zeros":                {func(b []byte) []byte { return make([]byte, len(b)) }, "not a flow table"},
		"a flipped bit":        {func(b []byte) []byte { b[24] ^= 4; return b }, "damaged"},
		"cut short":            {func(b []byte) []byte { return b[:len(b)-4096] }, "damaged"},
		"too long":             {func(b []byte) []byte { return append(b, make([]byte, 4096)...) }, "damaged"},
		"another version":      {func(b []byte) []byte { return reshape(b, func(s *shape) { s.Version++ }) }, "layout version 2"},
		"another boot":         {func(b []byte) []byte { return reshape(b, func(s *shape) { s.BootID[0]++ }) }, "before the last boot"},
		"a size that is wrong": {func(b []byte) []byte { return reshape(b, func(s *shape) { s.MaxFlows++ }) }, "damaged"},
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
			a := tab.Adoption()
			if a.Adopted || a.SetAside != cfg.Path+".bad" || !strings.Contains(a.Reason, c.reason) {
				t.Fatalf("adoption %+v", a)
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
	tab.viewFile(b, planFor(1), 1)
	f(&tab.head.Shape)
	tab.head.Sum = tab.head.Shape.sum()
	return b
}

// Random damage behind the header costs the connections that it hit, no more.
func TestDamagedConnectionsAreDiscarded(t *testing.T) {
	cfg := fileConfig(t)
	cfg.MaxFlows = 200
	tab := open(t, cfg)
	w := tab.Worker(0)
	w.Online()
	for i := range 150 {
		establish(t, tab, w, i)
	}
	tab.Close()
	good, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 3))
	p := planFor(200)
	for range 30 {
		b := bytes.Clone(good)
		for range 20 {
			at := p.conns + rng.Int64N(int64(len(b))-p.conns)
			b[at] = byte(rng.Uint32())
		}
		if err := os.WriteFile(cfg.Path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		tab := open(t, cfg)
		if a := tab.Adoption(); !a.Adopted || a.Flows < 130 {
			t.Fatalf("adoption %+v", a)
		}
		checkTable(t, tab)
		checkFree(t, tab)
		tab.Close()
	}
}

func TestTheClockGoesOnWhenTheMonotonicOneDoesNot(t *testing.T) {
	cfg := fileConfig(t)
	tab := open(t, cfg)
	tab.head.note(5000, time.Now().Add(-10*time.Second))
	tab.closed.Store(true) // leave the header so
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
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "allocate 34 MB for 100000 flows") {
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
	cfg.MaxFlows = 8000
	tab, err = Open(cfg)
	if err != nil {
		t.Fatalf("resize: %v", err)
	}
	defer tab.Close()
	if a := tab.Adoption(); a.Adopted || !strings.Contains(a.Reason, "no space left") {
		t.Errorf("adoption %+v", a)
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	dir := t.TempDir()
	for want, cfg := range map[string]Config{
		"0 workers":                {MaxFlows: 10},
		"-1 flows":                 {MaxFlows: -1, Workers: 1},
		"flows: want 1 to":         {MaxFlows: 1 << 40, Workers: 1},
		"-1 endpoints":             {MaxFlows: 10, Workers: 1, MaxEndpoints: -1},
		"timeout Established -1ns": {MaxFlows: 10, Workers: 1, Timeouts: Timeouts{Established: -1}},
		"is a directory":           {MaxFlows: 10, Workers: 1, Path: dir},
		"not a directory":          {MaxFlows: 10, Workers: 1, Path: "/proc/version/flows"},
	} {
		if tab, err := Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: table %v, error %v", want, tab != nil, err)
		}
	}
}
