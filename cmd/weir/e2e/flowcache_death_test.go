package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/conntracktest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// death is how a process ends, and what follows.
type death struct {
	name, config string
	// end ends the process.
	end func(*testing.T, *fixture) error
	// closing: a client closes connections while no process lives.
	closing bool
	// other: the process has left a flow table of another layout than that of the next.
	other bool
	// shortAt is the hook of a run with a single death of each, if other is set.
	shortAt string
	// least is how often the process dies at least: the second time with an adopted table.
	least int
}

var deaths = []death{
	{name: "kill", end: killed, least: 2},
	{name: "SIGUSR2", end: func(t *testing.T, f *fixture) error { return endedBy(t, f, syscall.SIGUSR2) }},
	{name: "SIGTERM", config: "onStop: leave\n", end: func(t *testing.T, f *fixture) error { return endedBy(t, f, syscall.SIGTERM) }},
	{name: "kill and close", end: killed, closing: true},
	{name: "kill and other layout", end: killed, other: true, shortAt: "tcx"},
	{name: "SIGUSR2 and other layout", end: func(t *testing.T, f *fixture) error { return endedBy(t, f, syscall.SIGUSR2) }, other: true, shortAt: "xdp"},
}

func killed(_ *testing.T, f *fixture) error { return f.weir.Kill() }

func endedBy(t *testing.T, f *fixture, signal syscall.Signal) error {
	if err := f.weir.Signal(signal); err != nil {
		return err
	}
	f.ended(t)
	return nil
}

// deathsEach is how often each process of a case dies, and the environment variable that
// replaces it.
var deathsEach = fromEnv("WEIR_DEATHS", 1)

// Established connections to an attached interface do not notice that Weir is gone for a
// second: the kernel forwards their packets meanwhile, and no packet of theirs is lost. New
// connections in this second succeed when the client sends the SYN again.
func TestWireCachedConnectionsOutliveTheProcess(t *testing.T) {
	for _, hook := range hooks {
		for _, d := range deaths {
			if d.other && deathsEach == 1 && d.shortAt != hook {
				continue // the hooks differ by the program alone, the layouts by the table alone
			}
			t.Run(hook+"/"+d.name, func(t *testing.T) {
				f := cachedFixture(t, hook, options{services: []service{toAttached}, extra: "death: {holdSeconds: 600}\n" + d.config})
				l := f.startTalks(t)
				l.startControl(t, hook)
				for n := range max(deathsEach, d.least) {
					l.outlives(t, n+1, &d)
				}
				l.finish(t)
			})
		}
	}
}

// talks are connections that are in use.
type talks struct {
	*fixture
	list    []*talk
	control []*talk // through no interface of Weir's
	running sync.WaitGroup
	ctx     context.Context
	stop    context.CancelFunc
}

// startTalks opens connections of both families to an attached interface, with ten
// exchanges in a tenth of a second on each.
func (f *fixture) startTalks(t *testing.T) *talks {
	t.Helper()
	const connections = 50
	l := &talks{fixture: f}
	for i := range connections {
		c := f.dialed(t, toAttached.at(echoPort, i%2 == 1))
		l.list = append(l.list, &talk{conn: c, name: fmt.Sprint("connection ", i), every: 10 * time.Millisecond})
	}
	l.ctx, l.stop = context.WithCancel(t.Context())
	for _, k := range l.list {
		l.running.Go(func() { k.run(l.ctx) })
	}
	t.Cleanup(func() {
		if t.Failed() {
			l.finish(t)
		}
		l.stop()
		l.running.Wait()
	})
	return l
}

// startControl opens connections that pass a veth alone, with as many exchanges on each: what
// delays these is the machine.
func (l *talks) startControl(t *testing.T, hook string) {
	t.Helper()
	const connections = 10
	if hook == "xdp" { // receiving interfaces poll there, too
		must(t, l.Fabric.SetOffloads("eth1", asFromWire))
		must(t, l.ZoneB.SetOffloads("eth0", asFromWire))
	}
	at := netip.AddrPortFrom(routed.addr(false), echoTarget)
	for i := range connections {
		c, err := l.Fabric.DialContext(inTime(t, within), "tcp", at.String())
		must(t, err)
		t.Cleanup(func() { c.Close() })
		k := &talk{conn: c, name: fmt.Sprint("control ", i), every: l.list[0].every}
		l.control = append(l.control, k)
		l.running.Go(func() { k.run(l.ctx) })
	}
}

// gaps are the longest exchanges of a span of time, in milliseconds: over the connections, and
// over those that do not pass Weir.
type gaps struct{ connections, control float64 }

func (g gaps) String() string {
	return fmt.Sprintf("%.1f ms (beside Weir %.1f ms)", g.connections, g.control)
}

// longest returns the gaps since the last call.
func (l *talks) longest() gaps {
	return gaps{ms(longestOf(l.list)), ms(longestOf(l.control))}
}

// calm returns the gaps of a span without a death.
func (l *talks) calm(span time.Duration) gaps {
	l.longest()
	pauseFor(l.ctx, span)
	return l.longest()
}

// finish ends the exchanges, none of which may have failed.
func (l *talks) finish(t *testing.T) {
	t.Helper()
	l.stop()
	l.running.Wait()
	for _, k := range l.list {
		if k.err != nil {
			t.Errorf("%s: after %d exchanges: %v", k.name, k.said.Load(), k.err)
		}
	}
}

// outlives ends the process and starts the next one a second later.
func (l *talks) outlives(t *testing.T, n int, d *death) {
	t.Helper()
	l.repeatsAll(t, l.list)
	var ending []*net.TCPConn
	if d.closing {
		ending = l.openEnding(t)
	}
	lost := l.lost(t)
	l.longest()
	begun := time.Now()
	fresh := make(chan error, 1)
	must(t, d.end(t, l.fixture))
	if d.other {
		must(t, l.Edge.Edge.Inside(func() error { return otherLayout(conntrack.LayoutVersion() + 1 - 2*(n%2)) }))
	}
	for i, c := range ending {
		closeOne(t, c, i%2 == 1)
	}
	saidBy(t, l.list, 50)
	if !d.closing {
		l.losesNothing(t, lost, "without Weir")
	}
	go func() { fresh <- l.exchangeOnce(toAttached, false) }()
	saidBy(t, l.list, 50)
	must(t, l.start())
	l.serves(t, !d.other)
	saidBy(t, l.list, 50)
	if err := <-fresh; err != nil {
		t.Errorf("new connection: %v", err)
	}
	died := l.longest()
	calm := l.calm(time.Since(begun))
	t.Logf("%s %d: longest gap %v, of as long a time after it %v", t.Name(), n, died, calm)
	switch {
	case d.closing:
		l.endIn(t, len(ending))
	default:
		l.losesNothing(t, lost, "with the next Weir")
	}
}

// serves checks whether the workers began before the kernel had verified the next program: early,
// unless the last program forwards by a table that is not theirs.
func (l *talks) serves(t *testing.T, early bool) {
	t.Helper()
	s, err := l.admin.Status(inTime(t, within))
	must(t, err)
	at := func(phase string) int {
		return slices.IndexFunc(s.Start, func(p api.Phase) bool { return p.Name == phase })
	}
	if workers, program := at("workers run"), at("program"); workers < 0 || program < 0 || workers < program != early {
		t.Errorf("the workers did not begin in the right phase: %+v", s.Start)
	}
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// openEnding opens connections that the client will close.
func (l *talks) openEnding(t *testing.T) (list []*net.TCPConn) {
	t.Helper()
	for i := range 10 {
		c := l.dialed(t, toAttached.at(echoPort, i%4 >= 2))
		list = append(list, c.(*net.TCPConn))
		must(t, workload.PingPong(c, "before the end", within))
	}
	return list
}

// closeOne closes a connection by a FIN, or by a RST.
func closeOne(t *testing.T, c *net.TCPConn, reset bool) {
	t.Helper()
	if reset {
		must(t, c.SetLinger(0))
	}
	must(t, c.Close())
}

// endIn waits until no connection is left but those in use: a FIN is sent again to the next
// process; a RST is lost, and the server's keepalive finds out that the client is gone.
func (l *talks) endIn(t *testing.T, closed int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(2*time.Minute))
	defer cancel()
	must(t, l.weir.Until(ctx, func(ctx context.Context) error {
		count, err := l.admin.CountConnections(ctx, &api.FlowFilter{Protocol: "TCP"}, "state", 20)
		if err != nil {
			return err
		}
		open := uint64(0)
		for _, g := range count.Groups {
			if g.Key != "close" && g.Key != "time-wait" {
				open += g.Count
			}
		}
		if open != uint64(len(l.list)) {
			return fmt.Errorf("%d connections are open, want %d of %d: %+v", open, len(l.list), len(l.list)+closed, count.Groups)
		}
		return nil
	}))
}

// otherLayout replaces the pinned flow table of a network namespace by that of a release with
// another layout. The program that is attached goes on with the table that it has.
func otherLayout(version int) error {
	pins, err := filepath.Glob("/sys/fs/bpf/weir/flowtable-*")
	if err != nil || len(pins) != 1 {
		return fmt.Errorf("pinned flow tables %q, %v", pins, err)
	}
	m, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		return err
	}
	defer m.Close()
	const cell, page = 64, 4096
	was, err := unix.Mmap(m.FD(), 0, int(m.MaxEntries())*cell, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(was) }()
	table, err := conntracktest.Rewrite(was, conntracktest.Layout{Version: uint32(version), Seed: uint64(version)})
	if err != nil {
		return err
	}
	other, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "flow_table", Type: ebpf.Array, Flags: unix.BPF_F_MMAPABLE,
		KeySize: 4, ValueSize: cell, MaxEntries: uint32(len(table) / cell),
	})
	if err != nil {
		return err
	}
	defer other.Close()
	is, err := unix.Mmap(other.FD(), 0, (len(table)+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(is, table)
	return errors.Join(unix.Munmap(is), os.Remove(pins[0]), other.Pin(pins[0]))
}
