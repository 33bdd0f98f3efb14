package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// SIGTERM leaves nothing: no program, link, address, route, rule, table, pin
// or changed setting, in any namespace. The flow table is in its file, for the next start.
func TestWireSIGTERMLeavesNothingBehind(t *testing.T) {
	for _, hook := range append([]string{"off"}, hooks...) {
		t.Run(hook, func(t *testing.T) { testSIGTERM(t, hook) })
	}
}

func testSIGTERM(t *testing.T, hook string) {
	o := options{services: kinds, stopped: true, extra: "flowCache: {mode: auto}"}
	switch hook {
	case "off":
		o.extra = `flowCache: {mode: "off"}`
	default:
		o.interfaces = fmt.Sprintf("[{name: eth0, hook: %s}, {name: eth1, hook: %s}]", hook, hook)
	}
	f := ownFixture(t, o)
	before, err := netlab.StateOf(f.Edge.Edge)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	during, err := netlab.StateOf(f.Edge.Edge)
	if err != nil {
		t.Fatal(err)
	}
	if len(before.Diff(during)) == 0 {
		t.Error("a running Weir shows nowhere: the comparison proves nothing")
	}
	for _, s := range kinds {
		f.checkLoad(t, f.Client, s.at(httpPort, false), 5)
		f.checkLoad(t, f.Client, s.at(httpPort, true), 5)
	}
	if err := f.weir.Stop(within); err != nil {
		t.Fatal(err)
	}
	if code := f.weir.ExitCode(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	after, err := netlab.StateOf(f.Edge.Edge)
	if err != nil {
		t.Fatal(err)
	}
	if left := before.Diff(after); len(left) > 0 {
		t.Errorf("SIGTERM left behind:\n%s", strings.Join(left, "\n"))
	}
	if table, err := os.Stat(f.path("conntrack")); err != nil || table.Size() == 0 {
		t.Errorf("the flow table is not in its file: %v", err)
	}
	must(t, f.start())
	if log := f.logTail(); !strings.Contains(log, "carrying on with the flows of the last process") {
		t.Errorf("the next process has no connection of the last:\n%s", log)
	}
}

// After kill -9 the kernel has the interface: the node is reachable. A second
// start takes over what the first left, and connections go on.
func TestWireKilledWeir(t *testing.T) {
	f := ownFixture(t, options{services: kinds, stopped: true})
	before, err := netlab.StateOf(f.Edge.Edge)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	ssh, err := workload.ServeEcho(f.Edge.Edge, "ssh", "[::]:22")
	if err != nil {
		t.Fatal(err)
	}
	defer ssh.Close()
	login := f.dialNode(t)
	conns := f.openAll(t)
	f.quiet(t)

	if err := f.weir.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := workload.PingPong(login, "still there", within); err != nil {
		t.Errorf("the node's own connection after kill -9: %v", err)
	}
	if err := workload.PingPong(f.dialNode(t), "anybody", within); err != nil {
		t.Errorf("a new connection to the node after kill -9: %v", err)
	}
	if err := f.start(); err != nil {
		t.Fatalf("second start: %v", err)
	}
	f.checkAlive(t, conns, "after kill -9 and a second start")
	for _, s := range kinds {
		f.checkLoad(t, f.Client, s.at(httpPort, false), 5)
		f.checkLoad(t, f.Client, s.at(httpPort, true), 5)
	}
	if err := f.weir.Stop(within); err != nil {
		t.Fatal(err)
	}
	after, err := netlab.StateOf(f.Edge.Edge)
	if err != nil {
		t.Fatal(err)
	}
	if left := before.Diff(after); len(left) > 0 {
		t.Errorf("left behind in the end:\n%s", strings.Join(left, "\n"))
	}
}

// Downloads that are under way when Weir is killed end well once it is back. In the
// meantime their packets are dropped: the kernel, which knows none of these connections,
// would answer with RST, also for ports of the node's own address.
func TestWireDownloadsSurviveAKill(t *testing.T) {
	f := ownFixture(t, options{services: kinds, extra: "death: {holdSeconds: 600}\n"})
	ctx := inTime(t, patience.For(time.Minute))
	const rate, seconds = 4 << 20, 4
	downloads, done := []*workload.Transfer{}, make(chan error, 2*len(kinds))
	for _, s := range kinds {
		for _, six := range []bool{false, true} {
			d := &workload.Transfer{Namespace: f.Client, Target: s.at(httpPort, six), Bytes: rate * seconds, Seed: 5, Rate: rate}
			downloads = append(downloads, d)
			go func() {
				err := d.Download(ctx)
				if err != nil {
					err = fmt.Errorf("%s/%s: %w", s.name, family(six), err)
				}
				done <- err
			}()
		}
	}
	waitMoved(t, ctx, downloads, rate/2)
	if err := f.weir.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	for range downloads {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func waitMoved(t *testing.T, ctx context.Context, downloads []*workload.Transfer, bytes int64) {
	t.Helper()
	for _, d := range downloads {
		for d.Moved() < bytes {
			if ctx.Err() != nil {
				t.Fatalf("%s moved %d bytes only", d.Target, d.Moved())
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// dialNode connects to the node's own listener.
func (f *fixture) dialNode(t *testing.T) net.Conn {
	t.Helper()
	to := netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), 22)
	c, err := f.Client.DialContext(inTime(t, within), "tcp", to.String())
	if err != nil {
		t.Fatalf("the node's own listener: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// openAll opens a connection to every kind of endpoint, in both families.
func (f *fixture) openAll(t *testing.T) map[string]net.Conn {
	t.Helper()
	conns := map[string]net.Conn{}
	for _, s := range kinds {
		for _, six := range []bool{false, true} {
			c, err := f.Client.DialContext(inTime(t, within), "tcp", s.at(echoPort, six).String())
			if err != nil {
				t.Fatalf("%s/%s: %v", s.name, family(six), err)
			}
			t.Cleanup(func() { c.Close() })
			conns[s.name+"/"+family(six)] = c
		}
	}
	f.checkAlive(t, conns, "at first")
	return conns
}

// quiet waits until nothing is on its way: a segment that is repeated while
// no Weir runs would be the kernel's to answer.
func (f *fixture) quiet(t *testing.T) {
	t.Helper()
	if err := f.poll(func(context.Context) error {
		for _, n := range f.Namespaces() {
			if bytes, err := n.UnacknowledgedTCP(); err != nil || bytes > 0 {
				return fmt.Errorf("%d bytes are unacknowledged in namespace %s: %w", bytes, n.Name(), err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) checkAlive(t *testing.T, conns map[string]net.Conn, when string) {
	t.Helper()
	for name, c := range conns {
		if err := workload.PingPong(c, "are you there?", within); err != nil {
			t.Errorf("%s %s: %v", name, when, err)
		}
	}
}

// Endpoints that are taken out of the slices keep the connections they have
// and get no new ones.
func TestWireLostEndpointKeepsItsConnections(t *testing.T) {
	s := service{name: "moving", index: 20, endpoints: []endpoint{attached, pod}}
	f := ownFixture(t, options{services: []service{s}})
	conns := []net.Conn{}
	for range 16 {
		c, err := f.Client.DialContext(inTime(t, within), "tcp", s.at(echoPort, false).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	s.endpoints = []endpoint{routed}
	replace(t, f.manifest(), render(t, []service{s}))
	if err := f.poll(func(ctx context.Context) error {
		list, err := f.admin.Frontends(ctx)
		if err != nil {
			return err
		}
		for _, fe := range list.Frontends {
			if len(fe.Endpoints) != 1 {
				return fmt.Errorf("%s has %d endpoints", fe.Address, len(fe.Endpoints))
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i, c := range conns {
		if err := workload.PingPong(c, "as before", within); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	r, err := (&workload.Load{Namespace: f.Client, Targets: []netip.AddrPort{s.at(httpPort, false)}, Requests: 50}).Run(inTime(t, within))
	if err != nil || r.Err() != nil || r.Servers()["routed"] != 50 {
		t.Errorf("%v, %v, %v", r.Servers(), r.Err(), err)
	}
}

// Two Weirs on one node: the second says that there is one, and the first
// goes on.
func TestWireSecondWeirIsRefused(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	out, code := f.run(t, nil, "run", "--config", f.path("config.yaml"))
	if code != 1 || !strings.Contains(out, "running") {
		t.Errorf("exit status %d, %q", code, out)
	}
	f.checkLoad(t, f.Client, toAttached.at(httpPort, false), 5)
	if err := f.weir.Signal(syscall.Signal(0)); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
}

// A second Weir with files and ports of its own is refused, too, before it changes anything.
func TestWireSecondWeirWithOtherFilesIsRefused(t *testing.T) {
	o := options{services: kinds}
	for name, fixed := range map[string]func(*testing.T) *fixture{
		"off": func(t *testing.T) *fixture { return ownFixture(t, o) },
		"tcx": func(t *testing.T) *fixture { return cachedFixture(t, "tcx", o) },
	} {
		t.Run(name, func(t *testing.T) {
			f := fixed(t)
			conn := f.dialed(t, toPod.at(echoPort, false))
			before := stateOf(t, f)
			must(t, os.Mkdir(f.path("second"), 0o700))
			config := strings.NewReplacer(f.path("weir.sock"), f.path("second/weir.sock"), f.path("conntrack"), f.path("second/conntrack")).Replace(f.config())
			must(t, os.WriteFile(f.path("second.yaml"), []byte(config+"metricsBindAddress: \"\"\nhealthzBindAddress: \"\"\n"), 0o644))
			out, code := f.run(t, nil, "run", "--config", f.path("second.yaml"))
			if code == 0 || !strings.Contains(out, "another Weir is running") {
				t.Errorf("exit status %d, %q", code, out)
			}
			if changes := before.Diff(stateOf(t, f)); len(changes) > 0 {
				t.Errorf("changed:\n%s", strings.Join(changes, "\n"))
			}
			must(t, workload.PingPong(conn, "still here", within))
			must(t, f.exchangeOnce(toPod, true))
		})
	}
}

// endedProcess waits for the end of a process.
func (f *fixture) endedProcess(t *testing.T, p *netlab.Daemon) {
	t.Helper()
	select {
	case <-p.Done():
	case <-inTime(t, within).Done():
		t.Fatalf("it goes on:\n%s", p.LogTail(10))
	}
}
