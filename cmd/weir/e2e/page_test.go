package e2e

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/weirlb/weir/perf/browser"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// reachable is an address on this host for one on the loopback of the edge node.
func (f *fixture) reachable(t *testing.T, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var relays sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	relays.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			relays.Go(func() { f.relay(ctx, c, address) })
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		relays.Wait()
	})
	return "http://" + l.Addr().String()
}

func (f *fixture) relay(ctx context.Context, c net.Conn, address string) {
	defer c.Close()
	to, err := f.Edge.Edge.DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	stop := context.AfterFunc(ctx, func() { c.Close(); to.Close() })
	defer stop()
	go func() {
		_, _ = io.Copy(to, c)
		to.Close()
	}()
	_, _ = io.Copy(c, to)
}

// Under traffic the endpoint on the node goes: the page shows the other tier with the cause and
// rates, without a load of the document, and asks no other origin.
func TestWireStatusPageShowsAnotherTier(t *testing.T) {
	t.Parallel()
	b := browser.Open(t)
	f := ownFixture(t, options{services: []service{toNear}, extra: "statusPage: {bindAddress: 127.0.0.1:9466}"})
	address := f.reachable(t, "127.0.0.1:9466")
	ctx, cancel := context.WithCancel(inTime(t, 4*within))
	done := make(chan error, 1)
	go func() {
		_, err := (&workload.Load{Namespace: f.Client, Concurrency: 2, Targets: []netip.AddrPort{toNear.at(httpPort, false)}}).Run(ctx)
		done <- err
	}()
	defer func() { cancel(); must(t, <-done) }()

	b.Show(address + "/")
	b.Until(`document.querySelector("#list tbody").innerText.includes("same-node")`)
	b.Until(`Number(document.querySelector("#list tbody tr").cells[4].innerText.replace("k", "")) > 0`) // new connections per second
	loads := b.Loads()
	f.moveAway(t, toNear, true)
	b.Until(`document.querySelector("#list tbody").innerText.includes("was same-node")`)
	b.Until(`document.querySelector("#event-list").innerText.includes("tier all, was same-node")`)
	b.Until(`document.querySelector("#announce").innerText.includes("test/near: tier all")`)
	if n := b.Loads() - loads; n != 0 {
		t.Errorf("the document was loaded %d times", n)
	}
	b.Show(address + "/service?name=test%2Fnear")
	b.Until(`document.querySelector("#map").innerText.includes("` + attached.addr(false).String() + `")`)
	b.Screenshot("../../../bin/screenshots", "under-traffic")
	b.Clean(address)
}
