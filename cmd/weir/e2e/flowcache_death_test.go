package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// death is how a process ends, and what follows.
type death struct {
	name, config, takeover string
	// end ends the process; replaced: the next one serves when end returns.
	end      func(*testing.T, *fixture) error
	replaced bool
	// closing: a client closes connections while no process lives.
	closing bool
	// other: the next process has another layout of the flow table.
	other bool
}

var deaths = []death{
	{name: "kill", end: killed},
	{name: "SIGUSR2", end: func(t *testing.T, f *fixture) error { return endedBy(t, f, syscall.SIGUSR2) }},
	{name: "SIGTERM", config: "onStop: leave\n", end: func(t *testing.T, f *fixture) error { return endedBy(t, f, syscall.SIGTERM) }},
	{name: "handover", end: func(t *testing.T, f *fixture) error { return f.handOver(t) }, replaced: true},
	{name: "kill and close", end: killed, closing: true},
	{name: "kill and other layout", end: killed, takeover: "takeoverSeconds: 0", other: true},
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
var deathsEach = fromEnv("WEIR_DEATHS", 2)

// Established connections to an attached interface do not notice that Weir is gone for a
// second: the kernel forwards their packets meanwhile, and no packet of theirs is lost. New
// connections in this second succeed when the client sends the SYN again.
func TestWireCachedConnectionsOutliveTheProcess(t *testing.T) {
	for _, hook := range hooks {
		for _, d := range deaths {
			t.Run(hook+"/"+d.name, func(t *testing.T) {
				f := cachedFixture(t, hook, options{services: []service{toAttached}, extra: "death: {holdSeconds: 600}\n" + d.config, takeover: d.takeover})
				l := f.startTalks(t)
				if d.other {
					l.endsWithTheLayout(t)
					return
				}
				for n := range deathsEach {
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
	running sync.WaitGroup
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
	var ctx context.Context
	ctx, l.stop = context.WithCancel(t.Context())
	for _, k := range l.list {
		l.running.Go(func() { k.run(ctx) })
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
	longestOf(l.list)
	saidBy(t, l.list, 50) // half a second
	calm := longestOf(l.list)
	lost := l.lost(t)
	fresh := make(chan error, 1)
	if d.replaced {
		go func() {
			var errs []error
			for range 10 {
				errs = append(errs, l.exchangeOnce(toAttached, false))
			}
			fresh <- errors.Join(errs...)
		}()
	}
	must(t, d.end(t, l.fixture))
	if !d.replaced {
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
	}
	saidBy(t, l.list, 50)
	if err := <-fresh; err != nil {
		t.Errorf("new connection: %v", err)
	}
	t.Logf("%s %d: longest gap %.1f ms, of as long a time before %.1f ms", t.Name(), n, ms(longestOf(l.list)), ms(calm))
	switch {
	case d.closing:
		l.endIn(t, len(ending))
	case d.replaced: // segments of new connections were lost
		if now := l.lost(t); now.resets != lost.resets {
			t.Errorf("%d connections were reset", now.resets-lost.resets)
		}
	default:
		l.losesNothing(t, lost, "with the next Weir")
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

// endsWithTheLayout kills the process, and starts one that cannot read its flow table. No
// translated connection goes on: both ends learn it at once, and the log says why. New
// connections succeed, also those that began while no process lived.
func (l *talks) endsWithTheLayout(t *testing.T) {
	t.Helper()
	l.repeatsAll(t, l.list)
	must(t, l.weir.Kill())
	must(t, l.Edge.Edge.Inside(otherLayout))
	saidBy(t, l.list, 50) // the program that is attached does not care
	fresh := make(chan error, 1)
	go func() { fresh <- l.exchangeOnce(toAttached, false) }()
	saidBy(t, l.list, 50)
	must(t, l.start())
	if err := <-fresh; err != nil {
		t.Errorf("new connection: %v", err)
	}
	saidBy(t, l.list, 50)
	l.stop()
	l.running.Wait()
	reset := 0
	for _, k := range l.list {
		if errors.Is(k.err, syscall.ECONNRESET) {
			reset++
		} else {
			t.Errorf("%s: after %d exchanges: %v", k.name, k.said.Load(), k.err)
		}
	}
	t.Logf("%s: %d of %d connections were reset", t.Name(), reset, len(l.list))
	if s, err := l.admin.Status(inTime(t, within)); err != nil || !strings.Contains(strings.Join(s.Warnings, "\n"), "layout version") {
		t.Errorf("warnings %q, %v", s.Warnings, err)
	}
	must(t, l.exchangeOnce(toAttached, true))
}

// otherLayout gives the pinned flow table of a network namespace the header of another
// layout.
func otherLayout() error {
	pins, err := filepath.Glob("/sys/fs/bpf/weir/flowtable-*")
	if err != nil || len(pins) != 1 {
		return fmt.Errorf("pinned flow tables %q, %v", pins, err)
	}
	m, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		return err
	}
	defer m.Close()
	// The shape of 88 bytes begins with 8 bytes of magic and the version; its sum follows.
	const cell, shape, version = 64, 88, 8
	header := make([]byte, 2*cell)
	for i := range uint32(2) {
		b, err := m.LookupBytes(i)
		if err != nil {
			return err
		}
		copy(header[i*cell:], b)
	}
	if binary.NativeEndian.Uint32(header[version:]) != uint32(conntrack.LayoutVersion()) ||
		binary.NativeEndian.Uint32(header[shape:]) != crc32.ChecksumIEEE(header[:shape]) {
		return fmt.Errorf("%s has another header: %x", pins[0], header)
	}
	binary.NativeEndian.PutUint32(header[version:], uint32(conntrack.LayoutVersion()+1))
	binary.NativeEndian.PutUint32(header[shape:], crc32.ChecksumIEEE(header[:shape]))
	for i := range uint32(2) {
		if err := m.Put(i, header[i*cell:][:cell]); err != nil {
			return err
		}
	}
	return nil
}

// losses are the segments that client and endpoint have sent again, because they were lost, and
// those that reset connections. SYNs are left out.
type losses struct{ segments, resets int64 }

func (f *fixture) lost(t *testing.T) (n losses) {
	t.Helper()
	for _, at := range f.Namespaces() {
		if at != f.Client && at != f.ZoneA {
			continue
		}
		c, err := at.Counters()
		must(t, err)
		n.resets += int64(c["TcpOutRsts"] + c["TcpEstabResets"])
		n.segments += int64(c["TcpRetransSegs"] - c["TcpExtTCPSynRetrans"])
		n.segments -= int64(c["TcpExtTCPDSACKRecv"]) // the receiver had them: only the machine was slow
	}
	return n
}

// losesNothing checks that nothing was lost since. Whether the receiver had a segment that was
// sent again is known a little later.
func (l *talks) losesNothing(t *testing.T, since losses, when string) {
	t.Helper()
	for range 20 {
		if l.lost(t) == since {
			return
		}
		pauseFor(t.Context(), 50*time.Millisecond)
	}
	now := l.lost(t)
	t.Errorf("%s: %d segments were sent again, %d reset a connection", when, now.segments-since.segments, now.resets-since.resets)
}
