package e2e

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// An endpoint that is removed while no process lives gets no packet by the kernel once the
// next process serves.
func TestWireCachedEndpointIsRemovedWhileNoProcessLives(t *testing.T) {
	for _, hook := range hooks {
		t.Run(hook, func(t *testing.T) {
			s := toAttached
			s.annotations = map[string]string{"weir.dev/on-endpoint-removal": "reset"}
			f := cachedFixture(t, hook, options{services: []service{s}, takeover: "takeoverSeconds: 0, endpointRemovalGraceSeconds: 0", extra: "death: {holdSeconds: 600}\n"})
			l := f.startTalks(t)
			l.repeatsAll(t, l.list)
			must(t, f.weir.Kill())
			s.endpoints = []endpoint{routed}
			replace(t, f.manifest(), render(t, []service{s}))
			saidBy(t, l.list, 20) // nobody knows yet
			must(t, f.start())
			must(t, f.poll(func(context.Context) error {
				for _, k := range l.list {
					if !k.failed.Load() {
						return fmt.Errorf("%s goes on", k.name)
					}
				}
				return nil
			}))
			l.running.Wait()
			for _, k := range l.list {
				if !errors.Is(k.err, syscall.ECONNRESET) {
					t.Errorf("%s: %v, want a reset", k.name, k.err)
				}
			}
			status, err := f.admin.Status(inTime(t, within))
			must(t, err)
			for _, name := range []string{"eth0", "eth1"} {
				if r := interfaceOf(status, name).Repeated; r == nil || r.Packets != 0 {
					t.Errorf("%s: the kernel has forwarded %+v", name, r)
				}
			}
			must(t, f.exchangeOnce(s, false))
		})
	}
}

// Connections go on when the interface to their endpoint is made anew, and are the kernel's
// again. XDP cannot redirect to an interface whose peer stops polling: then they are the packet
// loop's.
func TestWireCachedConnectionsFollowTheirInterface(t *testing.T) {
	for _, hook := range hooks {
		t.Run(hook, func(t *testing.T) {
			f := cachedFixture(t, hook, options{edge: netlab.EdgeConfig{Queues: 2}, services: []service{toAttached}, extra: "death: {holdSeconds: 300}\n"})
			l := f.startTalks(t)
			for range 2 {
				l.repeatsAll(t, l.list)
				link, err := f.Edge.Edge.Interface("eth1")
				must(t, err)
				must(t, f.Edge.Edge.Delete("eth1"))
				f.absent(t, "eth1")
				f.connectFabric(t, link.Attrs().HardwareAddr)
				if hook == "xdp" {
					must(t, f.Fabric.SetOffloads("edge", map[string]bool{"rx-gro": true}))
				}
				f.attachedTo(t, "eth1", f.indexOf(t, "eth1"))
				saidBy(t, l.list, 20)
			}
			l.repeatsAll(t, l.list)
			if hook == "xdp" {
				must(t, f.Fabric.SetOffloads("edge", map[string]bool{"rx-gro": false}))
				saidBy(t, l.list, 100)
				f.doesNotRepeat(t, "eth0")
			}
			l.finish(t)
		})
	}
}

// doesNotRepeat checks that packets from an interface reach the packet loop.
func (f *fixture) doesNotRepeat(t *testing.T, name string) {
	t.Helper()
	repeated := func(ctx context.Context) uint64 {
		s, err := f.admin.Status(ctx)
		must(t, err)
		return interfaceOf(s, name).Repeated.Packets
	}
	must(t, f.poll(func(ctx context.Context) error {
		before := repeated(ctx)
		pauseFor(ctx, 200*time.Millisecond)
		if n := repeated(ctx) - before; n > 0 {
			return fmt.Errorf("%s: the kernel forwards %d packets", name, n)
		}
		return nil
	}))
}
