package e2e

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// The next process goes on with the sockets of the last: packets wait in them, and no datagram
// is lost, of new flows as well.
func TestWireHandoverLosesNoDatagram(t *testing.T) {
	if p := xsk.ProbeBoundRings(); !p.OK() {
		t.Skip("skipped: ", p)
	}
	inEveryCache(t, func(t *testing.T, f *fixture) {
		lost := make(chan error, 1)
		load, ctx := f.datagrams(t)
		go func() {
			r, err := load.Run(ctx)
			if err == nil {
				err = r.Err()
			}
			lost <- err
		}()
		for range 2 {
			must(t, f.handOver(t))
			if said := f.weir.LogTail(100); !strings.Contains(said, carryingOn) {
				t.Errorf("it says %s", said)
			}
		}
		load.stop()
		if err := <-lost; err != nil {
			t.Error(err)
		}
	})
}

const carryingOn = "carrying on with the sockets of the last process"

// endless is a load until stop.
type endless struct {
	workload.UDPLoad
	stop context.CancelFunc
}

// datagrams is a load of datagrams to endpoints of every kind, each of a new flow.
func (f *fixture) datagrams(t *testing.T) (*endless, context.Context) {
	t.Helper()
	var to []netip.AddrPort
	for _, s := range kinds {
		to = append(to, s.at(echoPort, false))
	}
	ctx, stop := context.WithCancel(t.Context())
	return &endless{workload.UDPLoad{
		Namespace: f.Client, Targets: to, Concurrency: 20, Pause: 20 * time.Millisecond,
		Timeout: patience.For(10 * time.Second),
	}, stop}, ctx
}

// A next process that needs other packet memory opens sockets of its own.
func TestWireHandoverToOtherFrames(t *testing.T) {
	f := ownFixture(t, options{services: kinds, extra: "death: {holdSeconds: 600}\n"})
	conn := f.dialed(t, toAttached.at(echoPort, false))
	must(t, os.WriteFile(f.path("config.yaml"), []byte(f.config()+"packetMemory: {frameSize: 4096}\n"), 0o644))
	must(t, f.handOver(t))
	if said := f.weir.LogTail(100); strings.Contains(said, carryingOn) {
		t.Errorf("it says %s", said)
	}
	must(t, workload.PingPong(conn, "still here", within))
}

// A next process with another hook opens those sockets anew that receive no more, and has all
// frames.
func TestWireHandoverToAnotherHook(t *testing.T) {
	f := cachedFixture(t, "xdp", options{services: kinds, extra: "death: {holdSeconds: 600}\n"})
	conn := f.dialed(t, toAttached.at(echoPort, false))
	for _, hook := range []string{"hook: tcx", "hook: xdp"} {
		config := strings.ReplaceAll(f.config(), "hook: xdp", hook)
		must(t, os.WriteFile(f.path("config.yaml"), []byte(config), 0o644))
		must(t, f.handOver(t))
		if said := f.weir.LogTail(100); !strings.Contains(said, carryingOn) {
			t.Errorf("%s: it says %s", hook, said)
		}
		must(t, workload.PingPong(conn, hook, within))
		must(t, f.exchangeOnce(toPod, true))
	}
}

// A next process copies the connections of a last process whose flow table has another layout.
// Established connections lose no packet meanwhile.
func TestWireHandoverFromAnotherLayout(t *testing.T) {
	f := cachedFixture(t, "tcx", options{services: []service{toAttached}, extra: "death: {holdSeconds: 600}\n"})
	l := f.startTalks(t)
	l.repeatsAll(t, l.list)
	lost := l.lost(t)
	must(t, endedBy(t, f, syscall.SIGUSR2)) // the test is the last process from here on
	must(t, f.Edge.Edge.Inside(func() error { return otherLayout(conntrack.LayoutVersion() - 1) }))
	last := f.playLast(t)
	must(t, f.launch("config.yaml", "--handover"))
	p := last.greet(t)
	for _, m := range []struct{ hear, say string }{{"take", "left"}, {"serving", ""}} {
		if said := p.hear(t); !strings.Contains(said, m.hear) {
			t.Errorf("it says %q, want %s", said, m.hear)
		}
		p.say(t, m.say)
	}
	must(t, last.Close())
	must(t, f.served(len(f.services)))
	saidBy(t, l.list, 50)
	l.losesNothing(t, lost, "in the handover")
	if said := f.weir.LogTail(100); !strings.Contains(said, "connections are from a table of another layout") {
		t.Errorf("it says %s", said)
	}
	l.finish(t)
}
