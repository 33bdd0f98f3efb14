package e2e

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Numbers of TestWireConnectionsSurviveKills, and the environment variables that replace
// them.
var (
	killedConnections = fromEnv("WEIR_KILL_CONNECTIONS", 200)
	newPerSecond      = fromEnv("WEIR_KILL_NEW", 50)
	kills             = fromEnv("WEIR_KILLS", 3)
)

// exchangesPerSecond is the number of exchanges of all connections together. With more of
// them a small machine has no CPU left, and the pauses are those of its queues. Where these
// overflow, an endpoint's kernel forgets half-open connections, and resets them.
const exchangesPerSecond = 2000

// pace is the time between two events of which there are n a second, or fewer on a slow machine.
func pace(n int) time.Duration {
	return time.Duration(patience.Factor() * float64(time.Second) / float64(n))
}

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
	inEveryCache(t, func(t *testing.T, f *fixture) {
		connectionsSurvive(t, f, func(f *fixture) error {
			if err := f.weir.Kill(); err != nil {
				return err
			}
			return f.start()
		})
	})
}

// inEveryCache runs a test without the flow cache, and with that of each hook.
func inEveryCache(t *testing.T, test func(*testing.T, *fixture)) {
	o := options{services: kinds, extra: "death: {holdSeconds: 600}\n"}
	t.Run("no cache", func(t *testing.T) { test(t, ownFixture(t, o)) })
	for _, hook := range hooks {
		t.Run(hook, func(t *testing.T) { test(t, cachedFixture(t, hook, o)) })
	}
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
			f := ownFixture(t, options{services: kinds, extra: "death: {holdSeconds: 600}\n" + tt.config})
			connectionsSurvive(t, f, func(f *fixture) error {
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
	before, err := netlab.StateOf(f.Edge.Edge)
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
	<-stop.Done()
	if err := stop.Err(); err != nil || stop.LogTail(1) != "stopped" {
		t.Errorf("weir stop: %v, its last words %q", err, stop.LogTail(1))
	}
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", f.weir.Cmd.Process.Pid)); err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Errorf("weir stop has ended before Weir: %s", stat)
	}
	f.ended(t)
	after, err := netlab.StateOf(f.Edge.Edge)
	if err != nil {
		t.Fatal(err)
	}
	if left := before.Diff(after); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// connectionsSurvive runs connections while restart ends and starts Weir again and again.
func connectionsSurvive(t *testing.T, f *fixture, restart func(*fixture) error) {
	t.Helper()
	var talks []*talk
	for i := range killedConnections {
		s, six := kinds[i%len(kinds)], i/len(kinds)%2 == 1
		c, err := f.Client.DialContext(inTime(t, within), "tcp", s.at(echoPort, six).String())
		if err != nil {
			t.Fatalf("%s/%s: %v", s.name, family(six), err)
		}
		defer c.Close()
		talks = append(talks, &talk{
			conn: c, name: s.name + "/" + family(six),
			every: time.Duration(killedConnections) * pace(exchangesPerSecond),
		})
	}
	control := f.controlGroup(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, k := range slices.Concat(talks, control) {
		running.Go(func() { k.run(ctx) })
	}
	fresh := &newcomers{}
	running.Go(func() { fresh.run(ctx, f) })

	saidBy(t, talks, 5)
	calm := longestPauses(talks) // that of the machine, to compare with
	var ends []time.Time
	for n := range kills {
		saidBy(t, talks, 3)
		ends = append(ends, time.Now())
		if err := restart(f); err != nil {
			t.Fatalf("restart %d: %v", n+1, err)
		}
		t.Logf("restart %d after %v", n+1, time.Since(ends[n]).Round(time.Millisecond))
		f.logStart(t)
	}
	saidBy(t, talks, 3)
	stop()
	running.Wait()

	for _, k := range talks {
		if k.err != nil {
			t.Errorf("%s: after %d exchanges: %v", k.name, k.said.Load(), k.err)
		}
	}
	for _, err := range fresh.failed {
		t.Errorf("new connection: %v", err)
	}
	longest := longestPauses(talks)
	t.Logf("longest pauses by kind of endpoint: %v", longest)
	t.Logf("%d connections over %d restarts: longest pause %v (%v without a restart); %d new connections, longest %v",
		len(talks), kills, longest.max(), calm.max(), fresh.made, fresh.longest)
	for _, k := range control {
		if k.err != nil {
			t.Errorf("control group: %v", k.err)
		}
	}
	past := longestPauses(control).max()
	t.Logf("longest pause beyond the control group: %v (%d connections past Weir in the same run: %v)",
		max(0, longest.max()-past), len(control), past)
	logLongest(t, talks, ends)
}

// pauses are the longest pauses by kind of endpoint and family.
type pauses map[string]time.Duration

func longestPauses(talks []*talk) pauses {
	p := pauses{}
	for _, k := range talks {
		p[k.name] = max(p[k.name], time.Duration(k.longest.Load()).Round(time.Millisecond))
	}
	return p
}

func (p pauses) max() (longest time.Duration) {
	for _, d := range p {
		longest = max(longest, d)
	}
	return longest
}

// logLongest logs when the longest pauses began, by the last end of Weir before.
func logLongest(t *testing.T, talks []*talk, ends []time.Time) {
	slices.SortFunc(talks, func(a, b *talk) int { return cmp.Compare(b.longest.Load(), a.longest.Load()) })
	for _, k := range talks[:min(5, len(talks))] {
		n, _ := slices.BinarySearchFunc(ends, k.paused.Add(500*time.Millisecond), time.Time.Compare)
		if n == 0 {
			continue
		}
		t.Logf("%s: %v, begun %v after end %d", k.name, time.Duration(k.longest.Load()).Round(time.Millisecond),
			k.paused.Sub(ends[n-1]).Round(time.Millisecond), n)
	}
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
	longest atomic.Int64  // the longest exchange, in nanoseconds
	paused  time.Time     // when that began
	failed  atomic.Bool   // err is set
	err     error
}

func (k *talk) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil && k.err == nil; n++ {
		begun := time.Now()
		message := strings.Repeat(fmt.Sprintf("%s %d;", k.name, n), 1+n%100)
		k.err = workload.PingPong(k.conn, message, within)
		if took := int64(time.Since(begun)); took > k.longest.Load() {
			k.longest.Store(took)
			k.paused = begun
		}
		k.said.Add(1)
		k.failed.Store(k.err != nil)
		pauseFor(ctx, cmp.Or(k.every, 50*time.Millisecond))
	}
}

// longestOf returns the longest exchange since the last call.
func longestOf(talks []*talk) (longest time.Duration) {
	for _, k := range talks {
		longest = max(longest, time.Duration(k.longest.Swap(0)))
	}
	return longest
}

// saidBy waits until every connection has had n more exchanges, or has failed.
func saidBy(t *testing.T, talks []*talk, n int64) {
	t.Helper()
	before := make([]int64, len(talks))
	for i, k := range talks {
		before[i] = k.said.Load()
	}
	for i, k := range talks {
		for deadline := time.Now().Add(2 * within); k.said.Load() < before[i]+n && !k.failed.Load() && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// newcomers are connections that begin all the time, whether or not those before have ended.
type newcomers struct {
	mu      sync.Mutex
	made    int
	longest time.Duration
	failed  []error
}

func (c *newcomers) run(ctx context.Context, f *fixture) {
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(pace(newPerSecond))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			running.Go(func() { c.one(f, kinds[n%len(kinds)], n/len(kinds)%2 == 1) })
		}
	}
}

func (c *newcomers) one(f *fixture, s service, six bool) {
	begun := time.Now()
	err := f.exchangeOnce(s, six)
	took := time.Since(begun)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	c.longest = max(c.longest, took)
	if err != nil {
		c.failed = append(c.failed, fmt.Errorf("%s/%s: %w", s.name, family(six), err))
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
