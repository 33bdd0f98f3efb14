package manifest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// watch is a running Source and what it has delivered, put together.
type watch struct {
	t   *testing.T
	src *Source

	mu      sync.Mutex
	ports   map[string]uint16 // by Service name
	synced  bool
	updates int
	change  chan struct{}
	// withdrawn counts how often a Service was deleted.
	withdrawn map[string]int
}

func run(t *testing.T, path string) *watch {
	t.Helper()
	return runWith(t, Config{Path: path, Shorter: 20 * time.Millisecond})
}

func runWith(t *testing.T, cfg Config) *watch {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	w := &watch{t: t, ports: map[string]uint16{}, withdrawn: map[string]int{}, change: make(chan struct{}, 1)}
	cfg.Store = discovery.Options{NodeName: "edge-1"}
	cfg.Log = slog.New(slog.DiscardHandler)
	cfg.Quiet = 5 * time.Millisecond
	cfg.Poll = time.Hour // notification alone must do
	w.src = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.src.Run(ctx, w.deliver) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		goleak.VerifyNone(t, leaks)
	})
	return w
}

func (w *watch) deliver(up *discovery.Update) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, svc := range up.Put {
		w.ports[svc.Name.Name] = svc.Ports[0].Port
	}
	for _, name := range up.Deleted {
		delete(w.ports, name.Name)
		w.withdrawn[name.Name]++
	}
	w.synced = w.synced || up.Synced
	w.updates++
	select {
	case w.change <- struct{}{}:
	default:
	}
}

// await waits until exactly these Services are served.
func (w *watch) await(want map[string]uint16) {
	w.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		w.mu.Lock()
		ok := w.synced && len(w.ports) == len(want)
		for name, port := range want {
			ok = ok && w.ports[name] == port
		}
		got := w.ports
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-w.change:
		case <-deadline:
			w.t.Fatalf("served %v, want %v; report: %v", got, want, w.src.Report().Err())
		}
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchDirectory(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	writeFile(t, a, service("web", 80))
	w := run(t, dir)
	w.await(map[string]uint16{"web": 80})

	writeFile(t, b, service("api", 81)) // a new file
	w.await(map[string]uint16{"web": 80, "api": 81})

	writeFile(t, a, service("web", 82)) // written in place
	w.await(map[string]uint16{"web": 82, "api": 81})

	writeFile(t, filepath.Join(dir, ".a.tmp"), service("web", 83)) // renamed over
	must(t, os.Rename(filepath.Join(dir, ".a.tmp"), a))
	w.await(map[string]uint16{"web": 83, "api": 81})

	must(t, os.Remove(a)) // deleted and made again
	w.await(map[string]uint16{"api": 81})
	writeFile(t, a, service("web", 84))
	w.await(map[string]uint16{"web": 84, "api": 81})

	must(t, os.Rename(a, filepath.Join(dir, "c.yaml"))) // renamed, still there
	writeFile(t, b, service("api", 85))
	w.await(map[string]uint16{"web": 84, "api": 85})
}

func TestWatchEmptyDirectorySyncs(t *testing.T) {
	w := run(t, t.TempDir())
	w.await(nil)
}

func TestWatchConfigMapVolume(t *testing.T) {
	// As the kubelet lays out a ConfigMap volume: files are links through
	// ..data, which is swapped by rename.
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "..2026_1", "a.yaml"), service("web", 80))
	must(t, os.Symlink("..2026_1", filepath.Join(dir, "..data")))
	must(t, os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")))
	w := run(t, dir)
	w.await(map[string]uint16{"web": 80})
	file := run(t, filepath.Join(dir, "a.yaml")) // the file alone, too
	file.await(map[string]uint16{"web": 80})

	for i, generation := range []string{"..2026_2", "..2026_3"} {
		port := 81 + i
		writeFile(t, filepath.Join(dir, generation, "a.yaml"), service("web", port))
		must(t, os.Symlink(generation, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		w.await(map[string]uint16{"web": uint16(port)})
		file.await(map[string]uint16{"web": uint16(port)})
	}
	must(t, os.RemoveAll(filepath.Join(dir, "..2026_1")))
}

func TestWatchFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "weir.manifests")
	writeFile(t, path, service("web", 80))
	w := run(t, path)
	w.await(map[string]uint16{"web": 80})

	writeFile(t, path+"~", service("web", 81))
	must(t, os.Rename(path+"~", path))
	w.await(map[string]uint16{"web": 81})

	// While the file is away everything stays.
	must(t, os.Remove(path))
	w.src.Reload()
	writeFile(t, path, service("web", 82))
	w.await(map[string]uint16{"web": 82})
}

func TestWatchPathThatAppearsLater(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "etc", "weir", "manifests")
	w := run(t, dir)
	writeFile(t, filepath.Join(dir, "a.yaml"), service("web", 80))
	w.await(map[string]uint16{"web": 80})

	// The directory is replaced as a whole.
	writeFile(t, filepath.Join(base, "next", "a.yaml"), service("web", 81))
	must(t, os.Rename(dir, filepath.Join(base, "old")))
	must(t, os.Rename(filepath.Join(base, "next"), dir))
	w.await(map[string]uint16{"web": 81})
	writeFile(t, filepath.Join(dir, "b.yaml"), service("api", 82))
	w.await(map[string]uint16{"web": 81, "api": 82})

	// It goes and comes back: meanwhile what was served stays.
	must(t, os.RemoveAll(filepath.Join(base, "etc")))
	writeFile(t, filepath.Join(dir, "a.yaml"), service("web", 83))
	w.await(map[string]uint16{"web": 83})
}

// Directories may be made while their watch is being set.
func TestWatchPathThatAppearsMeanwhile(t *testing.T) {
	for range 500 {
		dir := filepath.Join(t.TempDir(), "etc", "weir", "manifests")
		w := newWatcher(dir, slog.New(slog.DiscardHandler))
		done := make(chan error, 1)
		go func() { done <- os.MkdirAll(dir, 0o755) }()
		w.arm()
		must(t, <-done)
		if w.dirs[dir] == nil {
			select {
			case <-w.events():
			case <-time.After(patience.For(5 * time.Second)):
				t.Fatalf("%s is not watched, and there was no event", dir)
			}
		}
		w.close()
	}
}

func TestWatchLinkedDirectory(t *testing.T) {
	base := t.TempDir()
	writeFile(t, filepath.Join(base, "v1", "a.yaml"), service("web", 80))
	writeFile(t, filepath.Join(base, "v2", "a.yaml"), service("web", 81))
	writeFile(t, filepath.Join(base, "elsewhere", "b.yaml"), service("api", 90))
	must(t, os.Symlink("v1", filepath.Join(base, "current")))
	must(t, os.Symlink("../elsewhere/b.yaml", filepath.Join(base, "v2", "b.yaml")))
	w := run(t, filepath.Join(base, "current"))
	w.await(map[string]uint16{"web": 80})

	must(t, os.Symlink("v2", filepath.Join(base, "next")))
	must(t, os.Rename(filepath.Join(base, "next"), filepath.Join(base, "current")))
	w.await(map[string]uint16{"web": 81, "api": 90})

	// A linked file is written where it really is.
	writeFile(t, filepath.Join(base, "elsewhere", "b.yaml"), service("api", 91))
	w.await(map[string]uint16{"web": 81, "api": 91})
}

func TestReloadReadsWithoutNotification(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	writeFile(t, path, service("web", 80))
	w := run(t, dir)
	w.await(map[string]uint16{"web": 80})
	w.src.Reload()
	w.src.Reload() // never blocks
}

func TestBurstIsCoalesced(t *testing.T) {
	dir := t.TempDir()
	w := run(t, dir)
	w.await(nil)
	want := map[string]uint16{}
	for i := range 200 {
		name := "s" + strings.Repeat("x", i%7) + string(rune('a'+i%26))
		want[name] = uint16(1000 + i)
		writeFile(t, filepath.Join(dir, name+".yaml"), service(name, 1000+i))
	}
	w.await(want)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.updates > 50 {
		t.Errorf("%d updates for one burst", w.updates)
	}
}

func TestTraceNamesDirectoriesOfInterest(t *testing.T) {
	base := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(base, "a", "b"), 0o755))
	must(t, os.Symlink("a/b", filepath.Join(base, "link")))
	must(t, os.Symlink("loop", filepath.Join(base, "loop")))
	for path, want := range map[string][]string{
		"a/b":        {"a:b"},
		"a/x/y":      {"a:x"},
		"link":       {".:link", "a:b"},
		"link/file":  {".:link", "a/b:file"},
		"loop":       {".:loop"},
		"missing/it": {".:missing"},
	} {
		got := map[string]map[string]bool{}
		watchTargets(filepath.Join(base, path), got, 0)
		var list []string
		for dir, names := range got {
			rel, err := filepath.Rel(base, dir)
			if err != nil {
				t.Fatal(err)
			}
			for name := range names {
				list = append(list, rel+":"+name)
			}
		}
		slices.Sort(list)
		slices.Sort(want)
		if !slices.Equal(list, want) {
			t.Errorf("%s: %q, want %q", path, list, want)
		}
	}
}

// Who follows an update knows of it before the objects are merged, until it is delivered.
func TestTheMergeIsPartOfAnUpdate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "service.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: v1\nkind: Service\nmetadata: {namespace: default, name: web}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var steps []string
	src := New(Config{Path: path, Store: discovery.Options{NodeName: "edge-1"}, Log: slog.New(slog.DiscardHandler)})
	src.cfg.Working = func() func() {
		steps = append(steps, "begin")
		return func() { steps = append(steps, "end") }
	}
	if _, err := src.Load(); err != nil {
		t.Fatal(err)
	}
	src.flush(func(up *discovery.Update) { steps = append(steps, up.Put[0].Name.Name) })
	if want := []string{"begin", "web", "end"}; !slices.Equal(steps, want) {
		t.Errorf("%v, want %v", steps, want)
	}
}
