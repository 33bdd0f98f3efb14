package lb

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/weirlb/weir/lb/ports/absence"
)

// Run runs the housekeeping beside the workers, which Apply starts, until ctx ends.
func (l *LB) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait() // the program may be closed after Run
	defer cancel()
	changed, links := l.router.OnChange(), l.router.OnLinkChange() // before anything can change
	failed := make(chan error, 3)
	go func() { failed <- wrap("routes", l.router.Run(ctx)) }()
	go func() { l.flows.Run(ctx); failed <- nil }()
	beside.Go(func() { l.hold(ctx) })
	go func() { failed <- l.runCache(ctx) }()

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
				return err
			}
		case <-changed:
			again = l.followAddresses()
			follow() // an interface that goes or comes takes its routes along
		case <-links:
			follow() // a new interface is guarded before it has its address
		case <-again:
			again = l.followAddresses()
		case <-tick.C:
			l.reportExhaustion()
			l.settleWithdrawals()
			settleFormer(l)
			follow()
		}
	}
}

// hold moves the end of the hold on while the process lives, apart from all that may wait
// for the kernel. A process that drains is followed by none: it ends the hold.
func (l *LB) hold(ctx context.Context) {
	tick := time.NewTicker(holdEvery)
	defer tick.Stop()
	for failing := false; ; {
		var err error
		if l.serves.Load() {
			err = l.steer.Hold(l.holdTime())
		} else {
			err = l.yield()
		}
		if err != nil && !failing {
			l.log.Warn("established connections may not survive a crash", "err", err)
		}
		failing = err != nil

		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// holdTime is how long packets of Weir's are held from now on if the process dies.
func (l *LB) holdTime() time.Duration {
	if l.node.Load().Draining {
		return 0
	}
	return l.cfg.Hold
}

// yield gives packets to the kernel that wait in the rings for the first view of Services, when
// the hold of the last process has ended.
func (l *LB) yield() error {
	if !l.steer.Adopted() || !l.steer.HoldEnded() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attached || l.yielded {
		return nil
	}
	l.yielded = true
	l.log.Warn("no Services are known, and the time for connections of the last process to wait has ended: the kernel has all packets")
	return l.ports.Unsteer()
}

// holdEvery is the time between two calls of Hold, which a hold is too long or too short by.
const holdEvery = 200 * time.Millisecond

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
	if err := l.publishDevices(); err != nil {
		l.log.Error("flow cache", "err", err)
	}
	return l.ports.Moving()
}

// wrap is an error with its subject, nil for nil.
func wrap(subject string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", subject, err)
}

// Absent returns why the node should get no traffic: a configured interface has no port, or none
// has a carrier. It is nil otherwise, and before traffic is taken at all. It never waits.
func (l *LB) Absent() *absence.Absence { return l.ports.Absent() }

// pace is the time between two looks at the interfaces: shorter while a port is between
// two states.
var pace = map[bool]time.Duration{false: time.Second, true: 100 * time.Millisecond}

// retryEvery is the time after which a refresh of the addresses that failed is repeated.
const retryEvery = 10 * time.Second

// followAddresses follows the node's addresses. When that failed in part it returns a
// timer for the next attempt, and while sources wait to be removed, else nil.
func (l *LB) followAddresses() <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refreshAddresses(); err != nil {
		l.log.Warn("addresses of the host", "err", err, "retryIn", retryEvery)
		return time.After(retryEvery)
	}
	if len(l.sourcesGone) > 0 {
		return time.After(sourceStays)
	}
	return nil
}

// StuckWorker is the ID of a worker that has not finished a round for some seconds, -1
// without such a worker.
func (l *LB) StuckWorker() int {
	if !l.works.Load() {
		return -1
	}
	now := l.flows.Tick()
	for _, w := range l.workers {
		if w.Stuck(now) {
			return w.ID()
		}
	}
	return -1
}

// WorkerLabel is the label of profiles that has the ID of a worker.
const WorkerLabel = "worker"

// StalledWorker is a worker that has not finished a round for some seconds.
type StalledWorker struct{ ID, CPU, Thread int }

// StalledWorkers are all workers that are stuck.
func (l *LB) StalledWorkers() (list []StalledWorker) {
	if !l.works.Load() {
		return nil
	}
	now := l.flows.Tick()
	for _, w := range l.workers {
		if w.Stuck(now) {
			list = append(list, StalledWorker{w.ID(), w.CPU(), w.Thread()})
		}
	}
	return list
}

// reportExhaustion logs the endpoints that ran out of SNAT ports or cannot be reached in
// their mode, each at most once in ten seconds.
func (l *LB) reportExhaustion() {
	now := time.Now()
	for _, w := range l.workers {
		w.ExhaustedEndpoints(func(endpoint netip.AddrPort, source netip.Addr) {
			if l.mayLog(endpoint, now) {
				l.log.Warn("SNAT ports exhausted: new flows to the endpoint are dropped; add snat.addresses",
					"endpoint", endpoint, "source", source)
			}
		})
		w.UnreachableEndpoints(func(endpoint netip.AddrPort, nextHop netip.Addr) {
			if l.mayLog(endpoint, now) {
				l.log.Warn("endpoint cannot be reached in the Service's forwarding mode, "+
					"its packets are dropped: l2dsr needs it on an attached interface's own network; use ipip or gue",
					"endpoint", endpoint, "nextHop", nextHop)
			}
		})
	}
}

// mayLog reports whether no line about the endpoint was logged in the last ten seconds.
func (l *LB) mayLog(endpoint netip.AddrPort, now time.Time) bool {
	if now.Sub(l.logged[endpoint]) < 10*time.Second {
		return false
	}
	if len(l.logged) > 1024 {
		clear(l.logged)
	}
	l.logged[endpoint] = now
	return true
}
