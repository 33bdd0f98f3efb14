package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Connections go on when their frontend is gone, as with the kernel's NAT: while their Service is
// deleted, over a restart meanwhile, and when it is back. New ones are refused by the kernel.
func TestWireConnectionsOutliveTheirFrontend(t *testing.T) {
	t.Parallel()
	for _, hook := range append([]string{"off"}, hooks...) {
		t.Run(hook, func(t *testing.T) {
			o := options{services: []service{toAttached, toPod, toRouted}, extra: "death: {holdSeconds: 600}\n"}
			var f *fixture
			if hook == "off" {
				o.extra += "flowCache: {mode: \"off\"}\n"
				f = ownFixture(t, o)
			} else {
				f = cachedFixture(t, hook, o)
			}
			conns := map[string]net.Conn{}
			for _, six := range []bool{false, true} {
				for _, s := range []service{toAttached, toPod} {
					conns[s.name+" by node port, "+family(six)] = f.dialed(t, s.atNode(echoPort, six))
					conns[s.name+" by load balancer IP, "+family(six)] = f.dialed(t, s.at(echoPort, six))
				}
			}
			serve := func(services ...service) {
				t.Helper()
				f.services = services
				replace(t, f.manifest(), render(t, services))
				must(t, f.served(len(services)))
			}
			refused := func(when string) {
				t.Helper()
				c, err := f.Client.DialContext(inTime(t, within), "tcp", toAttached.atNode(echoPort, false).String())
				if err == nil {
					c.Close()
				}
				if !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("a new connection %s: %v, want it refused", when, err)
				}
			}
			f.checkAlive(t, conns, "before")
			serve(toRouted)
			f.checkAlive(t, conns, "without the Service")
			refused("without the Service")
			must(t, f.weir.Kill())
			must(t, f.start())
			f.checkAlive(t, conns, "after a restart without the Service")
			refused("after a restart")

			// Another Service gets the frontends.
			other := toAttached
			other.name, other.endpoints = "other", []endpoint{routed}
			serve(toRouted, other)
			f.checkAlive(t, conns, "with another Service at the frontend")
			if who, err := f.whoServes(toAttached.at(httpPort, false)); err != nil || who != "routed" {
				t.Errorf("a new connection reaches %q, %v", who, err)
			}
			serve(toAttached, toPod, toRouted)
			f.checkAlive(t, conns, "with the Service again")
			must(t, f.exchangeOnce(toAttached, false))
		})
	}
}

// A client that only receives is told when Weir ends its connection: of a removed endpoint, by the
// operator, and at the end of a drain.
func TestWireAnEndedDownloadIsReset(t *testing.T) {
	list := []service{toAttached, toPod}
	for i, mode := range []string{"nat", "dnat"} {
		list[i].annotations = map[string]string{"weir.dev/on-endpoint-removal": "reset", "weir.dev/forwarding-mode": mode}
	}
	f := ownFixture(t, options{services: list, drain: "{notReadySeconds: 0, timeoutSeconds: 1}",
		takeover: "takeoverSeconds: 0, endpointRemovalGraceSeconds: 0"})
	for name, end := range map[string]func(){
		"removed endpoint": func() {
			gone := []service{list[0], list[1]}
			gone[0].endpoints, gone[1].endpoints = nil, nil
			replace(t, f.manifest(), render(t, gone))
		},
		"operator": func() {
			_, err := f.admin.KillConnections(context.Background(), &api.FlowFilter{Protocol: "tcp"})
			must(t, err)
		},
	} {
		f.endsDownloads(t, name, list, end)
		replace(t, f.manifest(), render(t, list))
		for _, s := range list {
			must(t, f.poll(func(context.Context) error { return f.exchangeOnce(s, false) }))
		}
	}
	f.endsDownloads(t, "drain", list, func() { must(t, f.weir.Signal(syscall.SIGTERM)) })
	f.ended(t)
}

// endsDownloads begins downloads, of which the server sends a little at a time, and checks that end
// resets them all.
func (f *fixture) endsDownloads(t *testing.T, name string, list []service, end func()) {
	t.Helper()
	ctx := inTime(t, within)
	const rate = 1 << 20
	var downloads []*workload.Transfer
	done := make(chan error, 2*len(list))
	for _, s := range list {
		for _, six := range []bool{false, true} {
			d := &workload.Transfer{Namespace: f.Client, Target: s.at(httpPort, six), Bytes: rate << 20, Seed: 5, Rate: rate}
			downloads = append(downloads, d)
			go func() {
				err := d.Download(ctx)
				if !errors.Is(err, syscall.ECONNRESET) {
					done <- fmt.Errorf("%s: %s, %s: %w, want a reset", name, s.name, family(six), err)
					return
				}
				done <- nil
			}()
		}
	}
	waitMoved(t, ctx, downloads, rate/4)
	end()
	for range downloads {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(within):
			t.Fatalf("%s: a download waits", name)
		}
	}
}
