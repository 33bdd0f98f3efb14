package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb"
)

func stalledDaemon(t *testing.T, seconds int) *Daemon {
	t.Helper()
	cfg := config.Default()
	cfg.Workers.StallSeconds = seconds
	cfg.Admin.Socket = filepath.Join(t.TempDir(), "weir.sock")
	log := slog.New(slog.DiscardHandler)
	return &Daemon{cfg: cfg, log: log, problems: problem.NewRegistry(log)}
}

// A stall is a problem for as long as it lasts, and once a reason to start again.
func TestAStallIsFollowed(t *testing.T) {
	d, s := stalledDaemon(t, 8), stalls{map[int]int{}, map[int]string{}}
	stalled := []lb.StalledWorker{{ID: 1, CPU: 3, Thread: unix.Gettid()}}
	var over []int
	for look := range 6 {
		if d.lookAtWorkers(&s, stalled) {
			over = append(over, look)
		}
	}
	if len(over) != 1 || over[0] != 2 {
		t.Errorf("time to start again at looks %v, want the third", over)
	}
	list, _ := d.problems.List(10)
	if len(list) != 1 || list[0].Kind != problem.WorkerStalled || list[0].Object != "Worker 1" || !strings.Contains(list[0].Reason, "CPU 3") {
		t.Errorf("problems %+v", list)
	}
	if d.lookAtWorkers(&s, nil) || d.problems.Counts()[problem.WorkerStalled] != 0 {
		t.Errorf("the stall is not over: %v", d.problems.Counts())
	}
	off, s := stalledDaemon(t, 0), stalls{map[int]int{}, map[int]string{}}
	for range 100 {
		if off.lookAtWorkers(&s, stalled) {
			t.Fatal("0 is not off")
		}
	}
}

// Without a hold, in a shutdown and soon after the last time Weir does not start again.
func TestWeirDoesNotStartAgainOverAndOver(t *testing.T) {
	for want, change := range map[string]func(d *Daemon) error{
		"death.holdSeconds is 0": func(d *Daemon) error { d.cfg.Death.HoldSeconds = 0; return nil },
		"it ends":                func(d *Daemon) error { d.leaving.Store(true); return nil },
		"it did so 1m": func(d *Daemon) error {
			at := time.Now().Add(-time.Minute).Format(time.RFC3339)
			return os.WriteFile(filepath.Join(filepath.Dir(d.cfg.Admin.Socket), "stalled"), []byte(at), 0o600)
		},
		"note the time": func(d *Daemon) error { return os.Remove(filepath.Dir(d.cfg.Admin.Socket)) },
	} {
		d := stalledDaemon(t, 8)
		if err := change(d); err != nil {
			t.Fatal(err)
		}
		if err := d.startAgain(nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
