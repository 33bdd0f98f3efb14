package controlplane

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/weirlb/weir/discovery/probe"
	"github.com/weirlb/weir/discovery/prober"
)

// mostProbed is as many as a node probes every two seconds.
const mostProbed = 2 * prober.PerSecond

// probeMany probes endpoints on the loopback, which this process serves, until stop is called.
func probeMany(ctx context.Context, endpoints int) (stop func(), err error) {
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		return nil, fmt.Errorf("serve the endpoints of probes: %w", err)
	}
	check, faults, _ := probe.Parse("probes", "{tcpSocket: {}, periodSeconds: 2}")
	if check == nil {
		return nil, fmt.Errorf("%s", faults)
	}
	var targets []prober.Target
	for i := range endpoints {
		a := netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)})
		targets = append(targets, prober.Target{At: netip.AddrPortFrom(a, uint16(l.Addr().(*net.TCPAddr).Port)), Check: check})
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	})
	s := prober.Dialer(prober.Straight).Scheduler(func(prober.Target, prober.State, []string) {})
	s.Set("stall", "stall", targets)
	running.Go(func() { s.Run(ctx) })
	stop = func() {
		cancel()
		l.Close()
		running.Wait()
	}
	if err := pause(ctx, 4*time.Second); err != nil { // the first probes come faster
		stop()
		return nil, err
	}
	if n, stretched, fault := s.Load(); n != endpoints || stretched > 1 || fault != nil {
		stop()
		return nil, fmt.Errorf("%d endpoints are probed, periods are longer by %.1f, %v", n, stretched, fault)
	}
	return stop, nil
}
