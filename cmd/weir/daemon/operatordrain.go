package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/changes"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/process"
	"github.com/weirlb/weir/cmd/weir/translate"
)

// Drains that an operator asks for, and may undo: of endpoints, and of the node. The next process
// has them too, unless this one is stopped: see keptDrains.

// drainedEndpoint is an endpoint that gets no new connections.
type drainedEndpoint struct {
	translate.Drained
	since time.Time
}

// maxDrained bounds the list: each endpoint is compared with all of it.
const maxDrained = 1000

func drainedOf(list []drainedEndpoint) (out []translate.Drained) {
	for _, e := range list {
		out = append(out, e.Drained)
	}
	return out
}

// DrainEndpoints implements api.Source.
func (d *Daemon) DrainEndpoints(ctx context.Context, names []string, undo bool) (*api.Drains, error) {
	if err := d.drainEndpoints(names, undo); err != nil {
		return nil, err
	}
	return d.Drains(ctx)
}

func (d *Daemon) drainEndpoints(names []string, undo bool) error {
	if len(names) > maxDrained {
		return fmt.Errorf("%w: at most %d endpoints may be drained", api.ErrInvalid, maxDrained)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	list := slices.Clone(d.drained)
	asked := make([]translate.Drained, len(names))
	for i, name := range names {
		var ok bool
		if asked[i], ok = translate.ParseDrained(name); !ok {
			return fmt.Errorf("%w: endpoint %q: must be ADDRESS or ADDRESS:PORT", api.ErrInvalid, name)
		}
	}
	listed := d.translate.Listed(translate.NewDrainedSet(asked))
	for _, e := range asked {
		_, known := listed[e]
		at := slices.IndexFunc(list, func(x drainedEndpoint) bool { return x.Drained == e })
		switch {
		case undo && at < 0:
			return fmt.Errorf("endpoint %s is not drained: %w", e, api.ErrNotFound)
		case undo:
			list = slices.Delete(list, at, at+1)
		case at >= 0:
		case !known:
			return fmt.Errorf("endpoint %s, of a Service with a frontend on this node: %w", e, api.ErrNotFound)
		case len(list) == maxDrained:
			return fmt.Errorf("%w: %d endpoints are drained, as many as there may be", api.ErrTooMany, maxDrained)
		default:
			list = append(list, drainedEndpoint{e, time.Now()})
		}
	}
	what := "drains endpoints"
	if undo {
		what = "ends the drain of endpoints"
	}
	d.log.Info("the operator "+what, "endpoints", strings.Join(names, " "))
	d.setDrained(list, "the operator "+what)
	d.keepDrains()
	return nil
}

// setDrained publishes another list of drained endpoints. Preconditions: d.mu is held.
func (d *Daemon) setDrained(list []drainedEndpoint, why string) {
	d.drained = list
	d.checks.SetReadiness(readinessOf(d))
	if b := d.translate.SetDrained(drainedOf(list)); !b.Empty() {
		d.publish(b, changes.NewCause(why))
	}
}

// forgetDrained ends the drain of endpoints that no Service lists any more: the address may
// become another's. Preconditions: d.mu is held.
func (d *Daemon) forgetDrained() {
	listed := d.translate.Listed(translate.NewDrainedSet(drainedOf(d.drained)))
	left := slices.DeleteFunc(slices.Clone(d.drained), func(e drainedEndpoint) bool {
		_, there := listed[e.Drained]
		if !there {
			d.log.Info("a drained endpoint is gone: its drain has ended", "endpoint", e.String())
		}
		return !there
	})
	if len(left) != len(d.drained) {
		d.setDrained(left, "a drained endpoint is gone")
		d.keepDrains()
	}
}

// DrainSelf implements api.Source.
func (d *Daemon) DrainSelf(ctx context.Context, undo bool) (*api.Drains, error) {
	now := time.Now()
	switch {
	case undo && d.selfDrained.Swap(nil) != nil:
		d.log.Info("the operator ends the drain of the node: health checks succeed again")
		d.announcer.Reclaim()
	case !undo && d.selfDrained.CompareAndSwap(nil, &now):
		d.log.Info("the operator drains the node: health checks fail from now on, new connections are still taken")
	}
	d.mu.Lock()
	d.keepDrains()
	d.mu.Unlock()
	d.announcer.Look()
	return d.Drains(ctx)
}

// lastCount is the last count of the connections that a drain waits for. A count looks at the
// whole flow table, and any number of clients may ask for it, also by the status.
type lastCount struct {
	mu   sync.Mutex
	n    int
	next time.Time // when the count is too old
}

// of is the last count. Counting takes a twentieth of the time at most.
func (c *lastCount) of(count func() int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	if !began.Before(c.next) {
		c.n = count()
		now := time.Now()
		c.next = now.Add(max(process.LeastPause, 20*now.Sub(began)))
	}
	return c.n
}

// drainProblems show drains that may have been forgotten: they have no end. Preconditions: d.mu
// is held.
func (d *Daemon) drainProblems() (out []problem.Problem) {
	if d.selfDrained.Load() != nil {
		out = append(out, problem.Problem{
			Kind: problem.Drained, Object: "Node " + d.cfg.NodeName,
			Reason: "weir drain self lets the health checks fail and withdraws announced addresses, until weir drain self --undo",
		})
	}
	var names []string
	for _, e := range d.drained {
		names = append(names, e.String())
	}
	if len(names) > 0 {
		out = append(out, problem.Problem{
			Kind: problem.Drained, Object: problem.Weir,
			Reason: "weir drain endpoint gives no new connections to " + event.Some(names),
		})
	}
	return out
}

// Drains implements api.Source.
func (d *Daemon) Drains(context.Context) (*api.Drains, error) {
	out := &api.Drains{Connections: d.counted.of(d.lb.Connections), Endpoints: []api.DrainedEndpoint{}}
	if since := d.selfDrained.Load(); since != nil {
		out.Self, out.SelfSince = true, since
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if out.Self {
		out.LingerSeconds = max(0, (d.cfg.Announce.Linger() - time.Since(*out.SelfSince)).Seconds())
	}
	for _, e := range d.drained {
		out.Endpoints = append(out.Endpoints, api.DrainedEndpoint{Endpoint: e.String(), Since: e.since})
	}
	return out, nil
}

// drainNow is the drain in progress: that of SIGTERM, or else the operator's.
func (d *Daemon) drainNow(now time.Time) *api.Drain {
	if s := d.ending.Progress(now); s != nil || d.selfDrained.Load() == nil {
		return s
	}
	return &api.Drain{Accepting: true, Operator: true, Connections: d.counted.of(d.lb.Connections)}
}

// isDraining reports whether the node is not to be sent to.
func (d *Daemon) isDraining() bool { return d.ending.Draining() || d.selfDrained.Load() != nil }
