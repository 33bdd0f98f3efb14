// Package chaos runs Weir under faults, in namespaces of its own, and tells which failures
// the faults do not explain.
//
//	chaos.go    Config, Run
//	node.go     the lab: servers, network, source, the process
//	admin.go    questions to the process
//	traffic.go  long-lived connections with checked bytes, and new ones
//	retransmit.go  how long TCP may wait, and in which state a connection failed
//	hook.go     who forwards packets of established flows
//	stall.go    connections that wait, and the workers meanwhile
//	churn.go    endpoints that come and go
//	endpoint.go the servers at endpoints, with the faults of them
//	source.go   where Weir learns them, with the faults of that
//	apiserver.go, gate.go  an API server, and the path to it
//	plan.go     the faults of a seed, in order
//	fault.go    the faults, and which failures each explains
//	network.go  the network, with the faults of it
//	process.go  the process, with the faults of it
//	watch.go    invariants and memory of the process, while it runs and in the end
//	report.go   the result
//
// The seed decides the kind, the time and the length of every fault, and every change of
// endpoints. A fault explains the failures that it may cause, for the Services that it
// concerns, while it is active and for a time afterwards. Every other failure is
// unexplained.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// Config is a run.
type Config struct {
	Binary string // the weir to run
	Seed   uint64
	// Duration is that of traffic and faults. In the last third of it the process is not
	// ended, so that the growth of its memory can be measured.
	Duration time.Duration
	// Connections are those that live for the whole run; NewPerSecond begin and end.
	Connections, NewPerSecond int
	// Changes are the changes of endpoints per second.
	Changes int
	// Only are the names of the faults to be used; none: all.
	Only []string
	// Hook is one of Arrangements, "" for the first.
	Hook string
	// Source is one of Sources, "" for the first.
	Source string
	// Extra are more lines of Weir's configuration.
	Extra string
	Log   func(format string, args ...any)
}

// Run makes the network, runs Weir, traffic and faults, and reports. The error is about the
// run itself: what Weir did wrong is in the report.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	r := &Report{Seed: cfg.Seed, hook: cfg.Hook, source: cfg.source(), Duration: cfg.Duration, faults: &faultLog{}}
	n, err := newNode(cfg, r)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	before, err := netlab.StateOf(n.Edge.Edge)
	if err != nil {
		return nil, err
	}
	if err := n.weir.start(ctx); err != nil {
		return nil, err
	}
	if err := n.run(ctx, r); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, n.weir.logTail())
	}
	if err := n.weir.daemon.Stop(patience.For(30 * time.Second)); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, n.weir.logTail())
	}
	after, err := netlab.StateOf(n.Edge.Edge)
	if err != nil {
		return nil, err
	}
	for _, line := range before.Diff(after) {
		if !n.network.madeAnew(line) && !n.stays(line) {
			r.leaked = append(r.leaked, "left behind: "+line)
		}
	}
	return r, nil
}

// run is the part of a run during which there is traffic.
func (n *node) run(ctx context.Context, r *Report) error {
	kinds, err := n.cfg.chosen()
	if err != nil {
		return err
	}
	traffic, err := n.newTraffic(ctx, r)
	if err != nil {
		return err
	}
	defer traffic.close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	traffic.start(ctx, &running)
	w := &watch{node: n, report: r}
	running.Go(func() { w.run(ctx) })
	s := &stalls{node: n, traffic: traffic, report: r, begun: time.Now()}
	running.Go(func() { s.run(ctx) })
	running.Go(func() {
		if err := n.source.churn(ctx, &n.cfg); err != nil {
			stop(err)
		}
	})
	if err := n.execute(ctx, plan(n.cfg.Seed, n.cfg.Duration, kinds), r.faults); err != nil {
		return err
	}
	// Every connection is to go on once more when no fault is active.
	if err := traffic.goOn(ctx, 2); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	stop(nil)
	running.Wait()
	traffic.finish()
	if err := n.source.follows(context.WithoutCancel(ctx), n.admin); err != nil {
		r.leak("endpoints differ from those of the source in the end: %v", err)
	}
	return w.finish()
}
