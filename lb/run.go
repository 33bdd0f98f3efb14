package lb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/weirlb/weir/lb/ports"
)

// Run runs the workers and the chores beside them until ctx ends.
func (l *LB) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, w := range l.workers {
		l.running.Add(1)
		if err := w.Start(l.queuesOf(w.ID()), l.log, l.running.Done); err != nil {
			l.running.Done()
			return err
		}
	}
	changed := l.router.OnChange() // before anything can change
	failed := make(chan error, 2)
	go func() { failed <- l.router.Run(ctx) }()
	go func() { l.flows.Run(ctx); failed <- nil }()
	var again <-chan time.Time
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	moving := false
	follow := func() {
		if l.followPorts() != moving {
			moving = !moving
			tick.Reset(pace[moving])
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("routes: %w", err)
			}
		case <-changed:
			again = l.replanOrAgain()
			follow() // an interface that goes or comes takes its routes along
		case <-again:
			again = l.replanOrAgain()
		case <-tick.C:
			l.reportExhaustion()
			follow()
		}
	}
}

// followPorts keeps to the configured interfaces, and passes changed ports on to the
// workers and the routes. It reports whether a port is between two states, so that the
// next call should come soon.
func (l *LB) followPorts() (moving bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.ports.Follow(l.quiesced())
	if len(u.Ports) > 0 {
		l.updateWorkers(&u)
	}
	if u.Routes {
		if err := l.router.SetInterfaces(l.ports.Routed(), l.routedHost()); err != nil {
			l.log.Error("routes", "err", err)
		}
	}
	return l.ports.Moving()
}

// Absent returns why traffic is not taken on a configured interface, nil when it is
// taken on all of them, and before traffic is taken at all. It never waits.
func (l *LB) Absent() *ports.Absence { return l.ports.Absent() }

// pace is how often interfaces are looked at: sooner while a port is between two
// stages.
var pace = map[bool]time.Duration{false: time.Second, true: 100 * time.Millisecond}

// replanEvery is how often a plan that could not be carried out is tried again.
const replanEvery = 10 * time.Second

// replanOrAgain follows the host's addresses; when that failed in part it gives
// when to try again.
func (l *LB) replanOrAgain() <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.replan(); err != nil {
		l.log.Warn("addresses of the host", "err", err, "retryIn", replanEvery)
		return time.After(replanEvery)
	}
	return nil
}

// StuckWorker is a worker that has not gone round for some seconds, -1 when
// all do.
func (l *LB) StuckWorker() int {
	now := l.flows.Tick()
	for _, w := range l.workers {
		if w.Stuck(now) {
			return w.ID()
		}
	}
	return -1
}

// reportExhaustion names the endpoints that ran out of SNAT ports or cannot be
// reached in their mode, each at most once in ten seconds.
func (l *LB) reportExhaustion() {
	now := time.Now()
	for _, w := range l.workers {
		w.ExhaustedEndpoints(func(endpoint netip.AddrPort, source netip.Addr) {
			if !l.dueToSay(endpoint, now) {
				return
			}
			l.log.Warn("SNAT ports exhausted: new flows to the endpoint are dropped; add snat.addresses",
				"endpoint", endpoint, "source", source)
		})
		w.UnreachableEndpoints(func(endpoint netip.AddrPort, nextHop netip.Addr) {
			if l.dueToSay(endpoint, now) {
				l.log.Warn("endpoint cannot be reached in the Service's forwarding mode, its packets are dropped: l2dsr needs it on an attached interface's own network; use ipip or gue",
					"endpoint", endpoint, "nextHop", nextHop)
			}
		})
	}
}

// dueToSay says whether nothing was said of the endpoint in the last ten seconds.
func (l *LB) dueToSay(endpoint netip.AddrPort, now time.Time) bool {
	if now.Sub(l.exhausted[endpoint]) < 10*time.Second {
		return false
	}
	if len(l.exhausted) > 1024 {
		clear(l.exhausted)
	}
	l.exhausted[endpoint] = now
	return true
}

// Close stops the workers and takes everything off the host that New and
// Apply put there: the steering program, the host veth with its routes and
// rules, and changed settings. Flows stay in the flow table's file.
func (l *LB) Close() error {
	var errs []error
	// First off the interfaces: from here on the kernel gets every packet.
	if l.steer != nil {
		errs = append(errs, l.steer.Close(true))
	}
	for _, w := range l.workers {
		w.Stop()
	}
	l.running.Wait()
	for _, w := range l.workers {
		errs = append(errs, w.Close())
	}
	if l.ports != nil {
		errs = append(errs, l.ports.Close())
	}
	if l.memory != nil {
		errs = append(errs, l.memory.Close())
	}
	if l.router != nil {
		errs = append(errs, l.router.Close())
	}
	if l.host != nil {
		errs = append(errs, l.host.Close())
	}
	if l.flows != nil {
		errs = append(errs, l.flows.Close())
	}
	return errors.Join(errs...)
}
