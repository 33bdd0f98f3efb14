package lastknown

//lint:file-ignore SA1019 Endpoints are deprecated, and watched where that is asked for.

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery/kube/cluster"
	"github.com/weirlb/weir/perf/netlab/patience"
)

var at = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func objects() *cluster.Objects {
	node, ready := "n", true
	return &cluster.Objects{
		Services: []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Annotations: map[string]string{"weir.dev/a": "b"}},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080}}}}},
		Slices: []*discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1"}, AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}}},
		Nodes:     []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "z"}}}},
		Endpoints: []*corev1.Endpoints{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "old"}}},
		Valid:     []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u", Annotations: map[string]string{"weir.dev/a": "c"}}}},
	}
}

func saved(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dir", File)
	if err := Save(path, "cluster", at, objects()); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadGivesBackWhatWasSaved(t *testing.T) {
	path := saved(t)
	got, when, err := Load(path, "cluster")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(objects(), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if !when.Equal(at) {
		t.Errorf("saved at %v, want %v", when, at)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	files, _ := os.ReadDir(filepath.Dir(path))
	if len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
}

func TestLoadOfNothingIsNotAnErrorOfItsOwn(t *testing.T) {
	if _, _, err := Load(filepath.Join(t.TempDir(), File), "cluster"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// Every byte counts: wherever one is wrong or missing, nothing is used of the
// file, and it is out of the way.
func TestLoadSetsACorruptFileAside(t *testing.T) {
	good, err := os.ReadFile(saved(t))
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, at int, data []byte) {
		path := filepath.Join(t.TempDir(), File)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		o, _, err := Load(path, "cluster")
		if !errors.Is(err, ErrCorrupt) || o != nil || !strings.Contains(err.Error(), "set aside as "+path+".corrupt") {
			t.Fatalf("%s at %d: %v, %v", what, at, o, err)
		}
		if aside, err := os.ReadFile(path + ".corrupt"); err != nil || string(aside) != string(data) {
			t.Fatalf("%s at %d: not set aside: %v", what, at, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s at %d: still there", what, at)
		}
	}
	for i := range good {
		bad := append([]byte{}, good...)
		bad[i] ^= 0x40
		try("another byte", i, bad)
		try("cut", i, good[:i])
	}
}

// What is complete and does not fit stays where it is: the first full view
// replaces it.
func TestLoadRefusesAnotherClustersState(t *testing.T) {
	path := saved(t)
	if _, _, err := Load(path, "another"); !errors.Is(err, ErrOther) || !strings.Contains(err.Error(), "it is of cluster, this is another") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	data, _ := os.ReadFile(path)
	newer := resum([]byte(strings.Replace(string(data), `"version":1`, `"version":2`, 1)))
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(path, "cluster"); !errors.Is(err, ErrOther) || !strings.Contains(err.Error(), "format 2, this is 1") {
		t.Errorf("got %v", err)
	}
}

// resum puts the right checksum under changed content.
func resum(data []byte) []byte {
	body := data[:len(data)-sha256.Size]
	sum := sha256.Sum256(body)
	return append(append([]byte{}, body...), sum[:]...)
}

func TestSaveLeavesTheOldFileWhenItFails(t *testing.T) {
	path := saved(t)
	if err := os.Mkdir(path+".d", 0o700); err != nil {
		t.Fatal(err)
	}
	// A file where the directory should be.
	if err := Save(filepath.Join(path, File), "cluster", at, objects()); err == nil {
		t.Error("saved below a file")
	}
	if _, _, err := Load(path, "cluster"); err != nil {
		t.Error(err)
	}
}

// keeper is a Keeper whose state a test sets.
type keeper struct {
	*Keeper
	mu    sync.Mutex
	state *cluster.Objects
}

func (k *keeper) set(o *cluster.Objects) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state = o
}

func newKeeper(t *testing.T, delay time.Duration) *keeper {
	k := &keeper{}
	k.Keeper = NewKeeper(filepath.Join(t.TempDir(), File), "cluster", func() *cluster.Objects {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.state
	}, slog.New(slog.DiscardHandler))
	k.Delay = delay
	return k
}

// run runs k; the returned function ends it.
func (k *keeper) run(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan bool)
	go func() { k.Run(ctx); close(done) }()
	return func() {
		cancel()
		<-done
	}
}

func TestKeeperSavesAfterAChange(t *testing.T) {
	k := newKeeper(t, time.Millisecond)
	defer k.run(t)()
	k.Changed() // nothing is known yet: nothing is saved
	k.set(objects())
	k.Changed()
	for deadline := time.Now().Add(patience.For(20 * time.Second)); k.Saved().IsZero(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not saved")
		}
	}
	if got, _, err := Load(k.Path, "cluster"); err != nil || got.Len() != objects().Len() {
		t.Errorf("%v, %v", got, err)
	}
}

func TestKeeperSavesAtTheEnd(t *testing.T) {
	k := newKeeper(t, time.Hour)
	stop := k.run(t)
	k.set(objects())
	k.Changed()
	stop()
	if got, _, err := Load(k.Path, "cluster"); err != nil || got.Len() != objects().Len() {
		t.Errorf("%v, %v", got, err)
	}
}

// A cluster that changes every second costs a file now and then, not one every
// few seconds, and what changed last is saved at the end.
func TestKeeperSavesSeldomWhileTheStateChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), File)
	synctest.Test(t, func(t *testing.T) {
		var saves atomic.Int64
		var latest atomic.Pointer[cluster.Objects]
		latest.Store(objects())
		k := NewKeeper(path, "cluster", func() *cluster.Objects { saves.Add(1); return latest.Load() }, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() { k.Run(ctx); close(done) }()
		for range 3600 {
			k.Changed()
			time.Sleep(time.Second)
		}
		if n := saves.Load(); n < 6 || n > 10 {
			t.Errorf("%d saves in an hour of changes", n)
		}
		time.Sleep(time.Hour)
		before := saves.Load()
		k.Changed() // after a quiet hour
		time.Sleep(6 * time.Second)
		if n := saves.Load() - before; n != 1 {
			t.Errorf("a single change was saved %d times within 6 s", n)
		}
		latest.Store(&cluster.Objects{Services: latest.Load().Services})
		k.Changed()
		cancel()
		<-done
	})
	if got, _, err := Load(path, "cluster"); err != nil || len(got.Slices) != 0 || len(got.Services) == 0 {
		t.Errorf("the last change is not saved: %+v, %v", got, err)
	}
}

// The time of a state is when it was last known to be the cluster's, not when it
// last changed.
func TestKeeperNotesThatTheStateIsStillGood(t *testing.T) {
	path := filepath.Join(t.TempDir(), File)
	var good time.Time
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(path, "cluster", objects, slog.New(slog.DiscardHandler))
		var away atomic.Pointer[time.Time]
		k.GoodAt = func() time.Time {
			if at := away.Load(); at != nil {
				return *at
			}
			return time.Now()
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() { k.Run(ctx); close(done) }()
		k.Changed()
		time.Sleep(24 * time.Hour)
		good = time.Now() // the API server goes away
		away.Store(&good)
		time.Sleep(24 * time.Hour)
		cancel()
		<-done
	})
	if _, at, err := Load(path, "cluster"); err != nil || !at.Equal(good) {
		t.Errorf("the state is of %v, %v; it was last known to be good at %v", at, err, good)
	}
	// Of another state it says nothing.
	old := good.Add(-100 * time.Hour)
	if err := Save(path, "cluster", old, &cluster.Objects{Nodes: objects().Nodes}); err != nil {
		t.Fatal(err)
	}
	if _, at, err := Load(path, "cluster"); err != nil || !at.Equal(old) {
		t.Errorf("another state is of %v, %v; want %v", at, err, old)
	}
}

// A state that has changed and cannot be saved is not confirmed: the next start would
// take an old one for a fresh one, whatever its age. Nor does the smaller file, that can
// be written, hide the fault.
func TestKeeperConfirmsNoStateThatHasChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), File)
	var changed time.Time
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(path, "cluster", objects, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() { k.Run(ctx); close(done) }()
		k.Changed()
		time.Sleep(time.Hour)
		if err := errors.Join(os.Rename(path, path+".kept"), os.MkdirAll(filepath.Join(path, "no room"), 0o700)); err != nil {
			t.Fatal(err)
		}
		changed = time.Now()
		k.Changed()
		time.Sleep(3*time.Hour + time.Second)
		if k.Err() == nil {
			t.Error("no fault, although the state cannot be saved")
		}
		cancel()
		<-done
		if k.Err() == nil {
			t.Error("no fault at the end")
		}
	})
	if err := errors.Join(os.RemoveAll(path), os.Rename(path+".kept", path)); err != nil {
		t.Fatal(err)
	}
	if _, at, err := Load(path, "cluster"); err != nil || at.After(changed) {
		t.Errorf("the state is of %v, %v; it was last known to be good at %v", at, err, changed)
	}
}

// A process that is killed while it saves leaves a file that no process needs.
func TestLoadRemovesTemporaryFiles(t *testing.T) {
	path := saved(t)
	left := []string{path + ".new-123", path + SeenSuffix + ".new-4"}
	for _, name := range append(left, path+".news", path+".corrupt") {
		if err := os.WriteFile(name, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := Load(path, "cluster"); err != nil {
		t.Fatal(err)
	}
	for _, name := range left {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range []string{path + ".news", path + ".corrupt"} {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
}

func TestKeeperSaysThatItCannotSave(t *testing.T) {
	k := newKeeper(t, time.Millisecond)
	k.Path = filepath.Join(k.Path, "below/a/file")
	if err := os.WriteFile(filepath.Dir(filepath.Dir(filepath.Dir(k.Path))), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k.set(objects())
	k.save()
	if k.Err() == nil || !strings.Contains(k.Err().Error(), "last known state") {
		t.Errorf("got %v", k.Err())
	}
}

// Whatever stands in a file whose checksum is right, reading it ends, and what
// it gives can be written and read again.
func FuzzDecode(f *testing.F) {
	good, err := encode("cluster", at, objects())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[:len(good)-sha256.Size])
	f.Add([]byte("{}\n"))
	f.Add([]byte("{\"kind\":\"WeirState\",\"version\":1,\"objects\":1}\nS\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, body []byte) {
		sum := sha256.Sum256(body)
		o, h, err := decode(append(append([]byte{}, body...), sum[:]...))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrOther) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		again, err := encode(h.Cluster, h.Time, o)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := decode(again); err != nil {
			t.Fatal(err)
		}
	})
}
