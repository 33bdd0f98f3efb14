package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// A worker whose thread stands still is named with the stack of the goroutine, in status and
// log. Then Weir starts again: connections go on. It does so once. A watchdog that was not fed since
// the stall gives that start its time.
func TestWireStalledWorkerIsNamedAndWeirStartsAgain(t *testing.T) {
	t.Parallel()
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true, extra: "workers: {count: 1, stallSeconds: 8}"})
	said := f.serviceManager(t)
	must(t, f.start())
	c := f.echo(t, toAttached)
	first, err := f.admin.Status(inTime(t, within))
	must(t, err)

	// The process that starts again has the configuration that it had: the file is for a restart.
	replace(t, f.path("config.yaml"), []byte("noSuchField: 1\n"))
	release := f.freezeWorker(t)
	must(t, f.poll(f.namesTheWorker))
	must(t, f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err == nil && !s.StartTime.After(first.StartTime) {
			err = errors.New("it is the first start")
		}
		return err
	}))
	release()
	must(t, f.served(1))
	must(t, workload.PingPong(c, "again", within))
	if s := said(); !regexp.MustCompile(`STATUS=worker 0 is stuck\n(STATUS=.*\n)*WATCHDOG=1\nSTATUS=starting\n`).MatchString(s) {
		t.Errorf("before the start the watchdog was not fed: %s", s)
	}
	if log, err := os.ReadFile(f.weir.LogFile()); err != nil || !strings.Contains(string(log), "worker.(*Worker).run") {
		t.Errorf("the log has no stack: %v", err)
	}

	second, err := f.admin.Status(inTime(t, within))
	must(t, err)
	release = f.freezeWorker(t)
	must(t, f.poll(func(context.Context) error {
		if log, err := os.ReadFile(f.weir.LogFile()); err != nil || !strings.Contains(string(log), "it did so ") {
			return fmt.Errorf("the log has no refusal, %v", err)
		}
		return nil
	}))
	release()
	must(t, f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err == nil && (s.ProblemCounts[problem.WorkerStalled] > 0 || !s.Healthy) {
			err = fmt.Errorf("still stalled: %v", s.Problems)
		}
		return err
	}))
	third, err := f.admin.Status(inTime(t, within))
	must(t, err)
	if !third.StartTime.Equal(second.StartTime) {
		t.Error("it has started again within 10 minutes")
	}
	must(t, workload.PingPong(c, "on", within))
}

// serviceManager plays a service manager with a watchdog. said returns what it was told.
func (f *fixture) serviceManager(t *testing.T) (said func() string) {
	t.Helper()
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: f.path("notify"), Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { manager.Close() })
	f.opts.env = append(f.opts.env, "NOTIFY_SOCKET="+f.path("notify"), "WATCHDOG_USEC=3000000")
	var mu sync.Mutex
	var text strings.Builder
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := manager.Read(buf)
			if err != nil {
				return
			}
			mu.Lock()
			fmt.Fprintf(&text, "%s\n", buf[:n])
			mu.Unlock()
		}
	}()
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return text.String()
	}
}

func (f *fixture) namesTheWorker(ctx context.Context) error {
	s, err := f.admin.Status(ctx)
	if err != nil {
		return err
	}
	for _, p := range s.Problems {
		if p.Kind == problem.WorkerStalled && p.Object == "Worker 0" && strings.Contains(p.Reason, "lb/worker.(*sleeper)") {
			return nil
		}
	}
	return fmt.Errorf("no problem names the worker: %v", s.Problems)
}

// A worker that stalls outside of a system call holds up whatever waits for all threads of the
// process, as the runtime does to collect garbage. Weir starts again without that.
func TestWireWorkerThatObeysNobodyIsLeftBehind(t *testing.T) {
	t.Parallel()
	f := ownFixture(t, options{services: []service{toAttached}, // without the flow cache the worker has all packets
		extra: "flowCache: {mode: off}\nworkers: {count: 1, stallSeconds: 6}"})
	c := f.echo(t, toAttached)
	ctx, stop := context.WithCancel(t.Context())
	load := workload.UDPLoad{
		Namespace: f.Client, Targets: []netip.AddrPort{toAttached.at(echoPort, false)},
		Concurrency: 20, Timeout: patience.For(10 * time.Second),
	}
	var loading sync.WaitGroup
	loading.Go(func() { _, _ = load.Run(ctx) })
	release := f.freeze(t, "running")
	stop()
	loading.Wait()
	must(t, f.poll(func(context.Context) error { // the running process is not asked: it has to do nothing else
		if log, err := os.ReadFile(f.weir.LogFile()); err != nil || strings.Count(string(log), "msg=attached") < 2*3 {
			return fmt.Errorf("it has not started again, %v", err)
		}
		return nil
	}))
	release()
	must(t, f.served(1))
	must(t, workload.PingPong(c, "again", within))
}

// freezer stops the thread of a process that sleeps in ppoll, as a debugger does, says "frozen", and
// lets it go on at the end of its input. "running" stops it elsewhere. It is a process of its own:
// execve waits until a tracer has seen the end of the thread, and would else confuse those who wait
// for Weir.
const freezer = `
import ctypes, glob, os, platform, random, select, sys, time
libc, pid, running = ctypes.CDLL(None, use_errno=True), sys.argv[1], sys.argv[2] == "running"
SEIZE, INTERRUPT, CONT, DETACH, WALL = 0x4206, 0x4207, 7, 17, 0x40000000
CALL = {"x86_64": "271", "aarch64": "73"}[platform.machine()]
libc.ptrace.argtypes = [ctypes.c_long] * 4
def call(task):
    try:
        return open(task + "/syscall").read().split()[0]
    except OSError:
        return ""
def freeze(task):
    """Stops the thread. It is false if the worker has gone to another thread meanwhile."""
    for _ in range(50):
        libc.ptrace(INTERRUPT, tid, 0, 0)
        os.waitpid(tid, WALL)
        if call(task) == ("-1" if running else CALL):
            return True
        # A thread that is stopped again and again in a system call that begins anew gets nowhere.
        libc.ptrace(CONT, tid, 0, 0)
        time.sleep(random.random() / 1e2)
        if call(task) not in (CALL, "running", "-1"):
            return False
    return False
while True:
    task = next((t for t in glob.glob("/proc/%s/task/*" % pid) if call(t) == CALL), None)
    if task is None:
        continue
    tid = int(os.path.basename(task))
    if libc.ptrace(SEIZE, tid, 0, 0) != 0:
        sys.exit("ptrace: " + os.strerror(ctypes.get_errno()))
    if freeze(task):
        break
    libc.ptrace(INTERRUPT, tid, 0, 0)
    os.waitpid(tid, WALL)
    libc.ptrace(DETACH, tid, 0, 0)
print("frozen", flush=True)
try:
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        if os.waitpid(tid, WALL | os.WNOHANG)[0] == tid:
            sys.exit(0)
except ChildProcessError: # the thread was the first of the process, whose number execve gives to another
    sys.exit(0)
libc.ptrace(DETACH, tid, 0, 0)
`

// freezeWorker stops the thread of the worker, which alone sleeps in poll. release lets the thread go
// on if it still exists.
func (f *fixture) freezeWorker(t *testing.T) (release func()) {
	t.Helper()
	return f.freeze(t, "asleep")
}

func (f *fixture) freeze(t *testing.T, where string) (release func()) {
	t.Helper()
	// Privileges are given up in every thread, and a thread that is frozen would hold that up.
	must(t, f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err == nil && s.Privileges == nil {
			err = errors.New("the privileges are not given up yet")
		}
		return err
	}))
	cmd := exec.Command("python3", "-c", freezer, fmt.Sprint(f.weir.Cmd.Process.Pid), where)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	must(t, cmd.Start())
	release = sync.OnceFunc(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &stderr)
		}
	})
	t.Cleanup(release)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "frozen\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return release
}
