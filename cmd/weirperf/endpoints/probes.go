package endpoints

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weirperf/forward/peer"
	"github.com/weirlb/weir/perf/cpu"
	"github.com/weirlb/weir/perf/testbed"
)

// Load is the CPU time of a program for probes.
type Load struct {
	Peer   string
	Checks string // "" none
	// Percent of a core: the program's threads, with the work of the kernel in their name.
	Percent float64
	// PerSecond is the number of connections that endpoints accepted. HAProxy sends a RST in place of the last
	// segment of a handshake, unless it has a request.
	PerSecond float64
}

// checkEvery is the time between two probes of an endpoint.
const checkEvery = 2 * time.Second

// probes measures a peer without checks, and with each kind.
func (b *bench) probes(ctx context.Context, bed *testbed.Bed, p peer.Peer) error {
	l, err := bed.Backend.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", endpointPort))
	if err != nil {
		return err
	}
	var came atomic.Int64
	server := &http.Server{
		ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				came.Add(1)
			}
		},
	}
	bed.OnClose(server.Close)
	go func() { _ = server.Serve(l) }()
	for _, kind := range []string{"", peer.CheckConnect, peer.CheckHTTP} {
		load := Load{Peer: p.Name(), Checks: kind}
		if err := b.probe(ctx, bed, p, &load, &came); err != nil {
			return err
		}
		b.loads = append(b.loads, load)
		b.progress("  %-8s %.2f %% of a core, %.0f accepted/s", kind, load.Percent, load.PerSecond)
	}
	return nil
}

// probe measures a peer with a kind of check.
func (b *bench) probe(ctx context.Context, bed *testbed.Bed, p peer.Peer, load *Load, came *atomic.Int64) (err error) {
	s := peer.Service{Protocol: peer.TCP, Frontend: netip.AddrPortFrom(testbed.Frontend, frontendPort), Endpoints: endpointsOf(b.o.checked)}
	if load.Checks != "" {
		s.Check = peer.Check{Kind: load.Checks, Every: checkEvery, Fails: 3}
	}
	running, err := p.Start(ctx, bed, peer.Config{Services: []peer.Service{s}, MaxFlows: 1 << 16, Weir: b.o.weir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, running.Stop()) }()
	if err := pause(ctx, 10*time.Second); err != nil { // it has settled
		return err
	}
	was, err := cpu.ReadThreads(running.Processes()...)
	if err != nil {
		return err
	}
	began, before := time.Now(), came.Load()
	if err := pause(ctx, time.Duration(b.o.seconds*float64(time.Second))); err != nil {
		return err
	}
	now, err := cpu.ReadThreads(running.Processes()...)
	took := time.Since(began).Seconds()
	load.Percent, load.PerSecond = 100*now.Since(was).Seconds()/took, float64(came.Load()-before)/took
	return err
}
