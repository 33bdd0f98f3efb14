package sdnotify

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/perf/netlab/patience"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manager is the service manager's end.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

// listen makes a service manager whose watchdog waits for w (0: none).
func listen(t *testing.T, watchdog string) *manager {
	t.Helper()
	name := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", watchdog)
	t.Setenv("WATCHDOG_PID", "")
	return &manager{t, conn}
}

// until reads datagrams until one has the assignment, and returns those
// before it, too.
func (m *manager) until(assignment string) (all []string) {
	m.t.Helper()
	_ = m.conn.SetReadDeadline(time.Now().Add(patience.For(10 * time.Second)))
	buf := make([]byte, 4096)
	for {
		n, err := m.conn.Read(buf)
		if err != nil {
			m.t.Fatalf("waiting for %s, after %q: %v", assignment, all, err)
		}
		all = append(all, string(buf[:n]))
		if slices.ContainsFunc(strings.Split(string(buf[:n]), "\n"), func(line string) bool {
			return strings.HasPrefix(line, assignment)
		}) {
			return all
		}
	}
}

func start(t *testing.T, health func() Health) (*Notifier, func()) {
	t.Helper()
	n, err := New(health, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	return n, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func well(text string) func() Health {
	return func() Health { return Health{Healthy: true, Text: text} }
}

func TestLifeOfAService(t *testing.T) {
	m := listen(t, "")
	n, stop := start(t, well("waiting for Services"))
	defer stop()
	if all := m.until("EXTEND_TIMEOUT_USEC=30000000"); !strings.Contains(strings.Join(all, "\n"), "STATUS=waiting for Services") {
		t.Errorf("the status is not told: %q", all)
	}
	// A reload is not for a service that has not started.
	n.Reloading()()
	n.Ready()
	n.Ready()
	before := m.until("READY=1")
	if s := strings.Join(before, "\n"); strings.Contains(s, "RELOADING") {
		t.Errorf("a reload was told before the start was complete: %q", before)
	}
	done := n.Reloading()
	again := m.until("RELOADING=1")
	if s := strings.Join(again, "\n"); !strings.Contains(s, "MONOTONIC_USEC=") || strings.Contains(s, "READY=1") {
		t.Errorf("at reload: %q", again)
	}
	done()
	m.until("READY=1")
	n.Stopping()
	m.until("STOPPING=1")
}

func TestWatchdogIsFedWhileHealthy(t *testing.T) {
	m := listen(t, "60000") // 60 ms
	var sick atomic.Bool
	n, stop := start(t, func() Health {
		return Health{Healthy: !sick.Load(), Text: map[bool]string{true: "worker 0 is stuck", false: "serving"}[sick.Load()]}
	})
	defer stop()
	n.Ready()
	m.until("WATCHDOG=1")
	m.until("WATCHDOG=1")
	sick.Store(true)
	m.until("STATUS=worker 0 is stuck")
	// One that was on its way may still come; from then on none does until
	// Weir is well again.
	sick.Store(false)
	between := m.until("STATUS=serving")
	for _, d := range between[:len(between)-1] {
		if strings.Contains(d, "WATCHDOG=1") {
			t.Errorf("the watchdog was fed while sick: %q", between)
		}
	}
	m.until("WATCHDOG=1")
}

func TestStatusIsOneLineAndToldOnce(t *testing.T) {
	m := listen(t, "30000")
	n, stop := start(t, well("first\nsecond"))
	defer stop()
	n.Ready()
	var all []string
	for range 5 {
		all = append(all, m.until("WATCHDOG=1")...)
	}
	s := strings.Join(all, "\n")
	if strings.Count(s, "STATUS=first") != 1 || strings.Contains(s, "second") {
		t.Errorf("got %q", all)
	}
}

func TestNobodyListens(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	n, stop := start(t, well("x"))
	n.Ready()
	n.Reloading()()
	n.Stopping()
	stop()
}

func TestBadWatchdogIsAnError(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "soon")
	if _, err := New(well(""), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "watchdog") {
		t.Errorf("got %v", err)
	}
}

// A drain takes time of which the service manager knows nothing: the watchdog is fed
// and more time is asked for until the end. A reload is not told then: it would say
// that the service is ready.
func TestADrainGoesOn(t *testing.T) {
	m := listen(t, "60000")
	n, stop := start(t, well("draining: 3 connections left, 9 s to go"))
	defer stop()
	n.Ready()
	m.until("READY=1")
	n.Stopping()
	m.until("STOPPING=1")
	n.Stopping()
	n.Reloading()()
	var all []string
	for range 3 {
		all = append(all, m.until("EXTEND_TIMEOUT_USEC=30000000")...)
	}
	said := strings.Join(all, "\n")
	if strings.Count(said, "WATCHDOG=1") < 3 {
		t.Errorf("the watchdog is not fed: %q", all)
	}
	for _, not := range []string{"STOPPING", "RELOADING", "READY"} {
		if strings.Contains(said, not) {
			t.Errorf("%s is said during the drain: %q", not, all)
		}
	}
}
