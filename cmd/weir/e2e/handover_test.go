package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/conntracktest"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Connections with data outlive one handover after another, to endpoints of every kind.
func TestWireConnectionsSurviveHandovers(t *testing.T) {
	inEveryCache(t, func(t *testing.T, f *fixture) {
		connectionsSurvive(t, f, func(f *fixture) error { return f.handOver(t) })
	})
}

// handOver starts a process that takes over from the one that runs, and waits for the end of
// that.
func (f *fixture) handOver(t *testing.T) error {
	last := f.weir
	if err := f.launch("config.yaml", "--handover"); err != nil {
		return err
	}
	if err := f.weir.Until(inTime(t, within), func(context.Context) error {
		select {
		case <-last.Done():
			return nil
		default:
			return fmt.Errorf("the last process goes on: %s", last.LogTail(2))
		}
	}); err != nil {
		return fmt.Errorf("%w\n%s", err, f.logTail())
	}
	if last.ExitCode() != 0 {
		return fmt.Errorf("the last process ended with status %d:\n%s", last.ExitCode(), last.LogTail(20))
	}
	return f.served(len(f.services))
}

// A process that cannot start leaves the running one alone, or is followed by it.
func TestWireFailedHandoverLeavesTheLastProcessServing(t *testing.T) {
	f := ownFixture(t, options{services: kinds, extra: "death: {holdSeconds: 600}\n"})
	conn := f.dialed(t, toAttached.at(echoPort, false))
	last := f.weir
	fails := func(t *testing.T, config, want string) {
		t.Helper()
		if err := os.WriteFile(f.path("next.yaml"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := f.launch("next.yaml", "--handover"); err != nil {
			t.Fatal(err)
		}
		next := f.weir
		f.weir = last
		select {
		case <-next.Done():
		case <-inTime(t, within).Done():
			t.Fatal("it goes on")
		}
		if next.ExitCode() == 0 || !strings.Contains(next.LogTail(5), want) {
			t.Errorf("status %d, it says %q", next.ExitCode(), next.LogTail(5))
		}
	}
	for _, tt := range []struct {
		name string
		fail func(*testing.T)
	}{
		{"unknown field", func(t *testing.T) { fails(t, f.config()+"noSuchField: 1\n", "noSuchField") }},
		{"no such interface", func(t *testing.T) {
			fails(t, strings.Replace(f.config(), "{name: eth1}", "{name: eth9}", 1), "eth9")
		}},
		{"no such address", func(t *testing.T) { fails(t, f.config()+badAddress, "192.0.2.77") }}, // found when the last process has left
		{"no such CPU", func(t *testing.T) {
			cpu := strings.Replace(f.config(), "admin:", "workers: {count: 1, cpus: [4095]}\nadmin:", 1)
			fails(t, cpu, "4095")
		}},
		{"other layout", func(t *testing.T) {
			p := f.meet(t, conntrack.LayoutVersion()+1)
			if m := p.hear(t); !strings.Contains(m, "layout") || !strings.Contains(m, "error") {
				t.Errorf("answer %q", m)
			}
		}},
		{"other layout, killed when it has taken", func(t *testing.T) {
			p := f.meet(t, conntrack.LayoutVersion()+1, `"copies":true`)
			p.hear(t)
			p.say(t, "take")
			if m := p.hear(t); !strings.Contains(m, "left") {
				t.Errorf("answer %q", m)
			}
			must(t, f.rewriteFlowTable(conntrack.LayoutVersion()+1))
			p.end(t)
		}},
		{"killed before the greeting", func(t *testing.T) { f.meet(t, conntrack.LayoutVersion()).end(t) }},
		{"killed before it takes", func(t *testing.T) {
			p := f.meet(t, conntrack.LayoutVersion())
			p.hear(t)
			p.end(t)
		}},
		{"killed as it takes", func(t *testing.T) {
			p := f.meet(t, conntrack.LayoutVersion())
			p.hear(t)
			p.say(t, "take")
			p.end(t)
		}},
		{"killed when it has taken", func(t *testing.T) {
			p := f.meet(t, conntrack.LayoutVersion())
			p.hear(t)
			p.say(t, "take")
			p.hear(t)
			p.end(t)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.fail(t)
			if err := workload.PingPong(conn, "still here", within); err != nil {
				t.Fatalf("established connection: %v\n%s", err, f.logTail())
			}
			if err := f.served(len(f.services)); err != nil {
				t.Fatalf("%v\n%s", err, f.logTail())
			}
			if err := f.exchangeOnce(toPod, true); err != nil {
				t.Errorf("new connection: %v", err)
			}
		})
	}
}

// rewriteFlowTable puts a table of another layout in the place of the file, as a next process
// does that has it.
func (f *fixture) rewriteFlowTable(version int) error {
	was, err := os.ReadFile(f.path("conntrack"))
	if err != nil {
		return err
	}
	table, err := conntracktest.Rewrite(was, conntracktest.Layout{Version: uint32(version), Seed: uint64(version)})
	if err != nil {
		return err
	}
	name := f.path("conntrack.new")
	return errors.Join(os.WriteFile(name, table, 0o600), os.Rename(name, f.path("conntrack")))
}

// nextProcess plays the next process of a handover.
type nextProcess struct {
	net.Conn
	in *bufio.Reader
}

// meet greets the running Weir as a process with a layout of the flow table, and more fields. A
// process that has just started again may not listen yet.
func (f *fixture) meet(t *testing.T, layout int, more ...string) *nextProcess {
	t.Helper()
	var c net.Conn
	err := f.poll(func(ctx context.Context) (err error) {
		c, err = new(net.Dialer).DialContext(ctx, "unix", f.path("weir.sock-handover"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "{%s}\n", strings.Join(append(more, `"say":"hello","version":"test"`, fmt.Sprintf(`"layout":%d`, layout)), ","))
	return &nextProcess{c, bufio.NewReader(c)}
}

func (p *nextProcess) hear(t *testing.T) string {
	t.Helper()
	line, err := p.in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func (p *nextProcess) say(t *testing.T, what string) {
	t.Helper()
	if _, err := fmt.Fprintf(p, `{"say":%q}`+"\n", what); err != nil {
		t.Fatal(err)
	}
}

func (p *nextProcess) end(t *testing.T) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}
