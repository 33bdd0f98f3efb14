package e2e

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/workload"
)

// Numbers of TestWireConnectionsSurviveKills, and the environment variables that replace
// them.
var (
	killedConnections = fromEnv("WEIR_KILL_CONNECTIONS", 200)
	kills             = fromEnv("WEIR_KILLS", 3)
)

func fromEnv(name string, usual int) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		return usual
	}
	return n
}

// Connections with data outlive one kill -9 after another, to endpoints of every kind, and
// each byte is right. Connections that begin while no Weir runs succeed when the client
// sends its SYN again.
func TestWireConnectionsSurviveKills(t *testing.T) {
	connectionsSurvive(t, "", func(f *fixture) error {
		if err := f.weir.Kill(); err != nil {
			return err
		}
		return f.start()
	})
}

// The same for restarts, by the signal for them and by SIGTERM if that means a restart.
func TestWireConnectionsSurviveRestarts(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		signal       syscall.Signal
	}{
		{"SIGUSR2", "", syscall.SIGUSR2},
		{"SIGTERM", "onStop: leave\n", syscall.SIGTERM},
	} {
		t.Run(tt.name, func(t *testing.T) {
			connectionsSurvive(t, tt.config, func(f *fixture) error {
				if err := f.weir.Signal(tt.signal); err != nil {
					return err
				}
				f.ended(t)
				return f.start()
			})
		})
	}
}

// weir stop removes everything, also where SIGTERM is a restart.
func TestWireStopLeavesNothingBehind(t *testing.T) {
	f := ownFixture(t, options{services: kinds, stopped: true, extra: "onStop: leave\n", drain: "{notReadySeconds: 1, timeoutSeconds: 600}"})
	before, err := f.Edge.Edge.State()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	conn := f.dialed(t, toPod.at(echoPort, false))
	stop, err := f.Edge.Edge.StartDaemon(f.command("stop", "--admin-socket", f.path("weir.sock")), f.path("stop.log"))
	if err != nil {
		t.Fatal(err)
	}
	if err := stop.Until(inTime(t, within), func(context.Context) error {
		if said := stop.LogTail(1); said != "draining: 1 connections left" {
			return fmt.Errorf("weir stop says %q", said)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := workload.PingPong(conn, "still here", within); err != nil {
		t.Errorf("during the drain: %v", err)
	}
	conn.Close()
	f.ended(t)
	if err := stop.Err(); err != nil || stop.LogTail(1) != "stopped" {
		t.Errorf("weir stop: %v, its last words %q", err, stop.LogTail(1))
	}
	after, err := f.Edge.Edge.State()
	if err != nil {
		t.Fatal(err)
	}
	if left := before.Diff(after); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// connectionsSurvive runs connections while restart ends and starts Weir again and again.
func connectionsSurvive(t *testing.T, extra string, restart func(*fixture) error) {
	t.Helper()
	f := ownFixture(t, options{services: kinds, extra: "death: {holdSeconds: 600}\n" + extra})
	var talks []*talk
	for i := range killedConnections {
		s, six := kinds[i%len(kinds)], i/len(kinds)%2 == 1
		c, err := f.Client.DialContext(inTime(t, within), "tcp", s.at(echoPort, six).String())
		if err != nil {
			t.Fatalf("%s/%s: %v", s.name, family(six), err)
		}
		defer c.Close()
		talks = append(talks, &talk{conn: c, name: s.name + "/" + family(six)})
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, k := range talks {
		running.Go(func() { k.run(ctx) })
	}
	fresh := make([]newcomers, 8)
	for i := range fresh {
		running.Go(func() { fresh[i].run(ctx, f) })
	}

	for n := range kills {
		saidBy(t, talks, 5)
		if err := restart(f); err != nil {
			t.Fatalf("restart %d: %v", n+1, err)
		}
		f.logStart(t)
	}
	saidBy(t, talks, 5)
	stop()
	running.Wait()

	var longest time.Duration
	for _, k := range talks {
		longest = max(longest, k.longest)
		if k.err != nil {
			t.Errorf("%s: after %d exchanges: %v", k.name, k.said.Load(), k.err)
		}
	}
	made, slowest := 0, time.Duration(0)
	for i := range fresh {
		made, slowest = made+fresh[i].made, max(slowest, fresh[i].longest)
		for _, err := range fresh[i].failed {
			t.Errorf("new connection: %v", err)
		}
	}
	t.Logf("%d connections over %d restarts: longest pause %v; %d new connections, longest %v",
		len(talks), kills, longest, made, slowest)
}

// logStart logs the phases of the last start.
func (f *fixture) logStart(t *testing.T) {
	t.Helper()
	s, err := f.admin.Status(inTime(t, within))
	if err != nil {
		t.Error(err)
		return
	}
	var total float64
	var list []string
	for _, p := range s.Start {
		total += p.Seconds
		list = append(list, fmt.Sprintf("%s %.0f", p.Name, 1000*p.Seconds))
	}
	t.Logf("start in %.0f ms: %s", 1000*total, strings.Join(list, ", "))
}

// talk is an established connection over which messages go back and forth.
type talk struct {
	conn    net.Conn
	name    string
	said    atomic.Int64
	every   time.Duration // the pause between two exchanges, 0: 50 ms
	longest time.Duration // the longest exchange
	err     error
}

func (k *talk) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil && k.err == nil; n++ {
		begun := time.Now()
		message := strings.Repeat(fmt.Sprintf("%s %d;", k.name, n), 1+n%100)
		k.err = workload.PingPong(k.conn, message, within)
		k.longest = max(k.longest, time.Since(begun))
		k.said.Add(1)
		pauseFor(ctx, cmp.Or(k.every, 50*time.Millisecond))
	}
}

// saidBy waits until every connection has had n more exchanges, or has failed.
func saidBy(t *testing.T, talks []*talk, n int64) {
	t.Helper()
	before := make([]int64, len(talks))
	for i, k := range talks {
		before[i] = k.said.Load()
	}
	for i, k := range talks {
		// A connection that fails says no more; run's own deadline ends the wait.
		for deadline := time.Now().Add(2 * within); k.said.Load() < before[i]+n && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// newcomers are connections that begin all the time.
type newcomers struct {
	made    int
	longest time.Duration
	failed  []error
}

func (c *newcomers) run(ctx context.Context, f *fixture) {
	for n := 0; ctx.Err() == nil; n++ {
		s, six := kinds[n%len(kinds)], n/len(kinds)%2 == 1
		begun := time.Now()
		if err := f.exchangeOnce(s, six); err != nil {
			c.failed = append(c.failed, fmt.Errorf("%s/%s: %w", s.name, family(six), err))
		}
		c.made++
		c.longest = max(c.longest, time.Since(begun))
		pauseFor(ctx, 20*time.Millisecond)
	}
}

// exchangeOnce opens a connection, exchanges a message and closes.
func (f *fixture) exchangeOnce(s service, six bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	conn, err := f.Client.DialContext(ctx, "tcp", s.at(echoPort, six).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	return workload.PingPong(conn, "hello", within)
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
