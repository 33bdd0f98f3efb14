package lb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/aligned"
	"github.com/weirlb/weir/lb/ports/absence"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/worker"
)

// Run runs the housekeeping beside the workers, which Apply starts, until ctx ends.
func (l *LB) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait() // the program may be closed after Run
	defer cancel()
	changed, links := l.router.OnChange(), l.router.OnLinkChange() // before anything can change
	failed := make(chan error, 2)
	go func() { failed <- wrap("routes", l.router.Run(ctx)) }()
	sweep := aligned.NewTicker(conntrack.RunEvery)
	defer sweep.Stop()
	go func() { l.flows.Run(ctx, sweep.C); failed <- nil }()
	beside.Go(func() { l.hold(ctx) })
	beside.Go(func() { l.denials.run(ctx, l.flows, func() bool { return l.StuckWorker() >= 0 }) })
	beside.Go(func() { l.sources.ports.follow(ctx, &l.mu, l.refreshAddresses, l.log) })
	beside.Go(func() { l.frontends.Run(ctx, &l.mu, func() bool { return l.StuckWorker() >= 0 }) })

	var again <-chan time.Time
	pace := changingPace
	tick := aligned.NewTicker(pace)
	defer tick.Stop()
	follow := func() {
		if next := l.followPorts(); next != pace {
			pace = next
			tick.Reset(pace)
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
			l.workers.reportExhaustion()
			follow()
		}
	}
}

// hold moves the end of the hold on while the process lives, and that of the forwarding by the
// kernel, apart from all that may wait for the kernel. A worker that is stuck ends neither: routes
// and neighbors are followed, and what the kernel forwards does not need the worker. A process that
// drains is followed by none: it ends the hold.
func (l *LB) hold(ctx context.Context) {
	tick := aligned.NewTicker(holdEvery)
	defer tick.Stop()
	for failing := false; ; {
		l.cache.renew()
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
const holdEvery = 250 * time.Millisecond

// followPorts keeps to the configured interfaces, and passes changed ports on to the
// workers and the routes. It returns when the next call should come at the latest.
func (l *LB) followPorts() (pace time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.ports.Follow(l.workers.quiesced())
	if len(u.Ports) > 0 {
		l.workers.update(&u)
	}
	if u.Routes {
		if err := l.router.SetInterfaces(l.ports.Routed(), l.routedHost()); err != nil {
			l.log.Error("routes", "err", err)
		}
	}
	if err := l.cache.publish(l.ports); err != nil {
		l.log.Error("flow cache", "err", err)
	}
	switch {
	case l.ports.Moving():
		return movingPace
	case u.Differs:
		return changingPace
	}
	return steadyPace
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

// Times between two looks at the interfaces without a notification of the kernel's: while a port is
// between two states, while an interface is not as it is to be, and else.
const (
	movingPace   = 100 * time.Millisecond
	changingPace = time.Second
	steadyPace   = 5 * time.Second
)

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
	if len(l.sources.gone) > 0 {
		return time.After(sourceStays)
	}
	return nil
}

// refreshAddresses brings the steering program, the host veth and the workers in line
// with the node's addresses and routes. A step that fails does not keep the others from
// running, and is done again by the next call. Preconditions: mu is held, or l is not yet
// in use.
func (l *LB) refreshAddresses() error {
	frontends := slices.Collect(l.tables.Load().All())
	cfg, err := l.sources.refresh()
	err = errors.Join(err, l.clientRoutes.refreshAll(), l.vips.refreshAll(), l.hostPaths.prepare(frontends))
	l.hostPaths.prune(frontends)
	l.node.Store(&worker.Node{
		Addresses:  snat.New(cfg),
		ReturnPath: l.host != nil && l.host.ReturnPathErr() == nil,
		Draining:   l.draining,
	})
	return err
}

// StuckWorker is the ID of a worker that has not finished a round for some seconds, -1
// without such a worker.
func (l *LB) StuckWorker() int {
	if stalled := l.workers.stalled(); len(stalled) > 0 {
		return stalled[0].ID
	}
	return -1
}

// StalledWorkers are all workers that are stuck.
func (l *LB) StalledWorkers() []StalledWorker { return l.workers.stalled() }
