package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// badAddress is an address that the host has not: it shows when the last process has left.
const badAddress = "metricsBindAddress: 192.0.2.77:9999\n"

// The last process starts again with the configuration that it had: the file is the next
// process's, which has failed by it. A reload reads the file. The CPUs of the workers, which the
// last process kept its other threads off, are its again.
func TestWireFailedHandoverDoesWithoutTheFile(t *testing.T) {
	var cpus unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &cpus))
	cpu := 0
	for !cpus.IsSet(cpu) {
		cpu++
	}
	f := ownFixture(t, options{services: kinds, extra: fmt.Sprintf("death: {holdSeconds: 600}\nworkers: {count: 1, cpus: [%d]}\n", cpu)})
	conn := f.dialed(t, toAttached.at(echoPort, false))
	last, good := f.weir, f.config()
	replace(t, f.path("config.yaml"), []byte(good+badAddress))
	must(t, f.launch("config.yaml", "--handover"))
	next := f.weir
	f.weir = last
	f.endedProcess(t, next)
	if !strings.Contains(next.LogTail(20), "taking over") {
		t.Error("it failed before the last process had left")
	}
	if err := workload.PingPong(conn, "still here", within); err != nil {
		t.Fatalf("established connection: %v\n%s", err, f.logTail())
	}
	must(t, f.served(len(f.services)))
	replace(t, f.path("config.yaml"), []byte(good+"protectedPorts: [22]\n"))
	must(t, last.Signal(syscall.SIGHUP))
	must(t, last.Until(inTime(t, within), func(context.Context) error {
		if said := last.LogTail(20); !strings.Contains(said, "msg=reloaded") {
			return fmt.Errorf("it says %s", said)
		}
		return nil
	}))
}

func (f *fixture) endedProcess(t *testing.T, p *netlab.Daemon) {
	t.Helper()
	select {
	case <-p.Done():
	case <-inTime(t, within).Done():
		t.Fatalf("it goes on:\n%s", p.LogTail(10))
	}
}

// A last process that is killed while it hands over leaves a next process that serves.
func TestWireNextProcessGoesOnWithoutTheLast(t *testing.T) {
	for _, tt := range []struct {
		name  string
		takes bool // the next process may say take
	}{{"before it takes", false}, {"as it takes", true}} {
		t.Run(tt.name, func(t *testing.T) {
			f := ownFixture(t, options{services: kinds, stopped: true})
			last := f.playLast(t)
			must(t, f.launch("config.yaml", "--handover"))
			p := last.greet(t)
			if tt.takes {
				p.hear(t)
			}
			must(t, last.Close())
			p.end(t)
			must(t, f.served(len(f.services)))
		})
	}
}

// SIGTERM ends a process that waits for one which does not answer.
func TestWireHandoverToNobodyEnds(t *testing.T) {
	for _, greets := range []bool{false, true} {
		t.Run(fmt.Sprint(greets), func(t *testing.T) {
			f := ownFixture(t, options{services: kinds, stopped: true})
			last := f.playLast(t)
			must(t, f.launch("config.yaml", "--handover"))
			if greets {
				last.greet(t).hear(t)
			} else {
				c, err := last.Accept()
				must(t, err)
				defer c.Close()
				_, err = bufio.NewReader(c).ReadString('\n')
				must(t, err)
			}
			must(t, f.weir.Signal(syscall.SIGTERM))
			f.endedProcess(t, f.weir)
		})
	}
}

// SIGTERM as the last process waits for the next, which then fails, is obeyed by the program that
// starts again: it is a stop.
func TestWireStopDuringAHandoverThatFails(t *testing.T) {
	f := ownFixture(t, options{services: kinds, stopped: true})
	before, err := f.Edge.Edge.State()
	must(t, err)
	must(t, f.start())
	p := f.meet(t, conntrack.LayoutVersion())
	p.hear(t)
	p.say(t, "take")
	p.hear(t)
	must(t, f.weir.Signal(syscall.SIGTERM))
	p.end(t)
	f.ended(t)
	after, err := f.Edge.Edge.State()
	must(t, err)
	if left := before.Diff(after); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// A client that says nothing does not keep others from a handover.
func TestWireASilentClientBlocksNoHandover(t *testing.T) {
	f := ownFixture(t, options{services: kinds})
	c, err := net.Dial("unix", f.path("weir.sock-handover"))
	must(t, err)
	defer c.Close()
	last := f.weir
	must(t, f.launch("config.yaml", "--handover"))
	f.endedProcess(t, last)
	must(t, f.served(len(f.services)))
}

// The service manager is not told that the service stops, but its new main process, which
// feeds the watchdog from then on, whatever it has inherited.
func TestWireTheServiceManagerFollowsAHandover(t *testing.T) {
	f := ownFixture(t, options{services: kinds, stopped: true})
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: f.path("notify"), Net: "unixgram"})
	must(t, err)
	defer manager.Close()
	var fed, stopping atomic.Int64
	var main atomic.Value
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := manager.Read(buf)
			if err != nil {
				return
			}
			for line := range strings.Lines(string(buf[:n]) + "\n") {
				switch name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name {
				case "WATCHDOG":
					fed.Add(1)
				case "STOPPING":
					stopping.Add(1)
				case "MAINPID":
					main.Store(value)
				}
			}
		}
	}()
	f.opts.env = append(f.opts.env, "NOTIFY_SOCKET="+f.path("notify"), "WATCHDOG_USEC=1000000")
	must(t, f.start())
	f.feeds(t, &fed)
	last := f.weir
	f.opts.env = append(f.opts.env, fmt.Sprintf("WATCHDOG_PID=%d", last.Cmd.Process.Pid))
	must(t, f.launch("config.yaml", "--handover"))
	f.endedProcess(t, last)
	must(t, f.served(len(f.services)))
	if want := fmt.Sprint(f.weir.Cmd.Process.Pid); main.Load() != want {
		t.Errorf("the main process is %v, want %s", main.Load(), want)
	}
	f.feeds(t, &fed)

	// And back again.
	p := f.meet(t, conntrack.LayoutVersion())
	p.hear(t)
	p.say(t, "take")
	p.hear(t)
	f.feeds(t, &fed) // while it waits
	p.end(t)
	f.feeds(t, &fed)
	if n := stopping.Load(); n > 0 {
		t.Errorf("the service manager was told %d times that the service stops", n)
	}
	must(t, f.served(len(f.services)))
}

// feeds waits until the watchdog is fed several times more.
func (f *fixture) feeds(t *testing.T, fed *atomic.Int64) {
	t.Helper()
	before := fed.Load()
	must(t, f.poll(func(context.Context) error {
		if n := fed.Load() - before; n < 4 {
			return fmt.Errorf("the watchdog was fed %d times:\n%s", n, f.logTail())
		}
		return nil
	}))
}

// lastProcess plays the last process of a handover.
type lastProcess struct{ net.Listener }

func (f *fixture) playLast(t *testing.T) lastProcess {
	t.Helper()
	must(t, os.RemoveAll(f.path("weir.sock-handover")))
	l, err := net.Listen("unix", f.path("weir.sock-handover"))
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return lastProcess{l}
}

// greet answers the hello of the next process.
func (l lastProcess) greet(t *testing.T) *nextProcess {
	t.Helper()
	c, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { c.Close() })
	p := &nextProcess{c, bufio.NewReader(c)}
	p.hear(t)
	p.say(t, "hello")
	return p
}
