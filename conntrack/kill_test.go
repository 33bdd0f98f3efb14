package conntrack

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A copy of the file, made while workers change it, stands for what a process that
// is killed leaves behind (and is worse: it is torn). It must open, and every
// connection in it must be whole.
func TestAFileLeftAtAnyInstantIsRestored(t *testing.T) {
	cfg := fileConfig(t)
	cfg.MaxFlows, cfg.Workers = 300, 2
	tab := open(t, cfg)
	stable := map[Key]bool{}
	w := tab.Worker(0)
	w.Online()
	for i := range 50 {
		stable[tab.Entry(establish(t, tab, w, 100000+i)).Tuple()] = true
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
	if a := tab.Restoration(); !a.Restored {
		t.Fatalf("not restored: %+v", a)
	}
	checkTable(t, tab)
	for k := range stable {
		r := tab.lookup(k)
		if r == 0 {
			t.Fatal("an established flow is lost")
		}
		if tab.lookup(MakeKey(tab.NewDst(r), tab.NewSrc(r), ProtoTCP)) != r.Other() {
			t.Fatal("an established flow has lost its answers")
		}
	}
	checkFree(t, tab)
}

// killedProcess is what a killed daemon is to the test below.
const (
	killedProcess = "CONNTRACK_TEST_KILLED"
	killedMapSize = "CONNTRACK_TEST_MAP_SIZE" // of the map that is fd 3
	killedFlows   = "CONNTRACK_TEST_FLOWS"    // size of a table that is opened, and not changed
)

func TestMain(m *testing.M) {
	if path := os.Getenv(killedProcess); path != "" {
		mutateUntilKilled(path, os.Getenv(killedMapSize))
	}
	os.Exit(m.Run())
}

func mutateUntilKilled(path, mapSize string) {
	cfg := Config{Path: path, MaxFlows: 300, Workers: 1, MaxEndpoints: 64}
	flows, err := strconv.Atoi(cmp.Or(os.Getenv(killedFlows), "300"))
	cfg.MaxFlows = flows
	if mapSize != "" {
		cfg.Memory, err = childMemory(mapSize)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	tab, err := Open(cfg)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	w := tab.Worker(0)
	w.Online()
	rng := rand.New(rand.NewPCG(9, uint64(os.Getpid())))
	fmt.Println("ready", tab.Restoration().Flows)
	if os.Getenv(killedFlows) != "" {
		time.Sleep(time.Minute)
	}
	for i := 0; ; i++ {
		stepShared(nil, tab, w, rng, 64, tab.Tick())
		w.Quiesce()
	}
}

// kills is how often the test below kills a process.
var kills = flag.Int("kills", 8, "processes to kill")

func TestAProcessThatIsKilledLeavesASoundTable(t *testing.T) {
	memories(t, func(t *testing.T, cfg Config) {
		cfg.MaxFlows = 300
		m, _ := cfg.Memory.(*mapMemory)
		if m != nil {
			open(t, cfg).Close()
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for round := range *kills {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), killedProcess+"="+cfg.Path)
			if m != nil {
				cmd.Env = append(cmd.Env, fmt.Sprint(killedMapSize, "=", m.lastSize))
				cmd.ExtraFiles = []*os.File{m.kept}
			}
			killAfter(t, cmd, cfg, time.Duration(rng.IntN(25_000))*time.Microsecond) // any instant will do
			tab := open(t, cfg)
			if a := tab.Restoration(); !a.Restored || a.Discarded != 0 || a.MemoryErr != nil {
				t.Fatalf("round %d: restoration %+v", round, a)
			}
			checkTable(t, tab)
			checkFree(t, tab)
			tab.Close()
		}
	})
}

// killAfter runs a process that has the table of cfg, and kills it.
func killAfter(t *testing.T, cmd *exec.Cmd, cfg Config, after time.Duration) {
	t.Helper()
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
		t.Fatalf("%s", line[:n])
	}
	if _, err := Open(cfg); !errors.Is(err, ErrInUse) {
		t.Errorf("a second process may open the table: %v", err)
	}
	time.Sleep(after)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
