package process

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb"
)

func stalledWorkers(t *testing.T, seconds int) *Workers {
	t.Helper()
	cfg := config.Default()
	cfg.Workers.StallSeconds = seconds
	cfg.Admin.Socket = filepath.Join(t.TempDir(), "weir.sock")
	log := slog.New(slog.DiscardHandler)
	return &Workers{Configuration: cfg, Ending: &Ending{}, Log: log, Problems: problem.NewRegistry(log)}
}

// A stall is a problem for as long as it lasts, and once a reason to start again.
func TestAStallIsFollowed(t *testing.T) {
	v, s := stalledWorkers(t, 8), stalls{map[int]int{}, map[int]string{}, map[int]thread{}}
	stalled := []lb.StalledWorker{{ID: 1, CPU: 3, Thread: unix.Gettid()}}
	var over []int
	for look := range 6 {
		if v.lookAtWorkers(&s, stalled) {
			over = append(over, look)
		}
	}
	if len(over) != 1 || over[0] != 2 { // and again after a minute
		t.Errorf("time to start again at looks %v, want the third", over)
	}
	list, _ := v.Problems.List(10)
	if len(list) != 1 || list[0].Kind != problem.WorkerStalled || list[0].Object != "Worker 1" || !strings.Contains(list[0].Reason, "CPU 3") {
		t.Errorf("problems %+v", list)
	}
	if v.lookAtWorkers(&s, nil) || v.Problems.Counts()[problem.WorkerStalled] != 0 {
		t.Errorf("the stall is not over: %v", v.Problems.Counts())
	}
	off, s := stalledWorkers(t, 0), stalls{map[int]int{}, map[int]string{}, map[int]thread{}}
	for range 100 {
		if off.lookAtWorkers(&s, stalled) {
			t.Fatal("0 is not off")
		}
	}
}

// A thread that gets no CPU cannot end either, and execve would wait for that; a thread that
// used CPU since can. The runtime is not asked for the stack of a thread that runs: it would
// stop all workers until that thread obeys.
func TestAThreadThatCannotEndKeepsWeirFromStartingAgain(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w := lb.StalledWorker{Thread: unix.Gettid()}
	now := threadOf(w)
	if now.state != "R" || now.user == "" {
		t.Fatalf("this thread is %+v", now)
	}
	s := stalls{first: map[int]thread{0: {user: "before"}}}
	if err := s.endless([]lb.StalledWorker{w}); err != nil {
		t.Errorf("a thread with CPU time: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; { // until no tick of the clock comes between
		s.first[0] = threadOf(w)
		if err := s.endless([]lb.StalledWorker{w}); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a thread without CPU time can end")
		}
	}
	waits := thread{state: "S", call: unix.SYS_PPOLL}
	for name, other := range map[string]thread{"runs": {state: "R", call: -1}, "sends": {state: "S", call: unix.SYS_SENDTO}} {
		if _, stack := whereIs(w, map[int]thread{0: waits, 1: other}); !strings.Contains(stack, "halt") {
			t.Errorf("another thread %s: stack %q", name, stack)
		}
	}
}

// Without a hold, in a shutdown and soon after the last time Weir does not start again.
func TestWeirDoesNotStartAgainOverAndOver(t *testing.T) {
	for want, change := range map[string]func(v *Workers) error{
		"death.holdSeconds is 0": func(v *Workers) error { v.Configuration.Death.HoldSeconds = 0; return nil },
		"it ends":                func(v *Workers) error { v.Ending.leaving.Store(true); return nil },
		"it did so 1m": func(v *Workers) error {
			at := time.Now().Add(-time.Minute).Format(time.RFC3339)
			return os.WriteFile(filepath.Join(filepath.Dir(v.Configuration.Admin.Socket), "stalled"), []byte(at), 0o600)
		},
		"note the time": func(v *Workers) error { return os.Remove(filepath.Dir(v.Configuration.Admin.Socket)) },
	} {
		v := stalledWorkers(t, 8)
		if err := change(v); err != nil {
			t.Fatal(err)
		}
		if err := v.startAgain(nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
