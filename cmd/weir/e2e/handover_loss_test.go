package e2e

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// The next process goes on with the sockets of the last: packets wait in them, and no datagram
// is lost, of new flows as well.
func TestWireHandoverLosesNoDatagram(t *testing.T) {
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
