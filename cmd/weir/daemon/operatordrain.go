package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
)

// Drains that an operator asks for, and may undo: of endpoints, and of the node. They end with
// the process.

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
	d.mu.Lock()
	defer d.mu.Unlock()
	list := slices.Clone(d.drained)
	for _, name := range names {
		e, ok := translate.ParseDrained(name)
		if !ok {
			return fmt.Errorf("%w: endpoint %q: must be ADDRESS or ADDRESS:PORT", api.ErrInvalid, name)
		}
		at := slices.IndexFunc(list, func(x drainedEndpoint) bool { return x.Drained == e })
		switch {
		case undo && at < 0:
			return fmt.Errorf("endpoint %s is not drained: %w", e, api.ErrNotFound)
		case undo:
			list = slices.Delete(list, at, at+1)
		case at >= 0:
		case !d.translate.Lists(e):
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
	return nil
}

// setDrained publishes another list of drained endpoints. Preconditions: d.mu is held.
func (d *Daemon) setDrained(list []drainedEndpoint, why string) {
	d.drained = list
	if b := d.translate.SetDrained(drainedOf(list)); !b.Empty() {
		d.publish(b, &cause{text: why})
	}
}

// forgetDrained ends the drain of endpoints that no Service lists any more: the address may
// become another's. Preconditions: d.mu is held.
func (d *Daemon) forgetDrained() {
	left := slices.DeleteFunc(slices.Clone(d.drained), func(e drainedEndpoint) bool {
		gone := !d.translate.Lists(e.Drained)
		if gone {
			d.log.Info("a drained endpoint is gone: its drain has ended", "endpoint", e.String())
		}
		return gone
	})
	if len(left) != len(d.drained) {
		d.setDrained(left, "a drained endpoint is gone")
	}
}

// services are the Services of the source as this node sees them, with the drained endpoints.
func (d *Daemon) services() (list []*discovery.Service, drained []translate.Drained) {
	d.mu.Lock()
	drained = drainedOf(d.drained)
	d.mu.Unlock()
	list = d.source.Services() // not under the lock: the source may be delivering
	if len(drained) == 0 {
		return list, nil
	}
	list = slices.Clone(list)
	for i, svc := range list {
		list[i] = translate.WithDrained(drained, svc)
	}
	return list, drained
}

// DrainSelf implements api.Source.
func (d *Daemon) DrainSelf(ctx context.Context, undo bool) (*api.Drains, error) {
	now := time.Now()
	switch {
	case undo && d.selfDrained.Swap(nil) != nil:
		d.log.Info("the operator ends the drain of the node: health checks succeed again")
	case !undo && d.selfDrained.CompareAndSwap(nil, &now):
		d.log.Info("the operator drains the node: health checks fail from now on, new connections are still taken")
	}
	return d.Drains(ctx)
}

// Drains implements api.Source.
func (d *Daemon) Drains(context.Context) (*api.Drains, error) {
	out := &api.Drains{Connections: d.lb.Connections(), Endpoints: []api.DrainedEndpoint{}}
	if since := d.selfDrained.Load(); since != nil {
		out.Self, out.SelfSince = true, since
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.drained {
		out.Endpoints = append(out.Endpoints, api.DrainedEndpoint{Endpoint: e.String(), Since: e.since})
	}
	return out, nil
}

// drainNow is the drain in progress: that of SIGTERM, or else the operator's.
func (d *Daemon) drainNow(now time.Time) *api.Drain {
	if s := d.draining.Load().status(now); s != nil || d.selfDrained.Load() == nil {
		return s
	}
	return &api.Drain{Accepting: true, Operator: true, Connections: d.lb.Connections()}
}

// isDraining reports whether the node is not to be sent to.
func (d *Daemon) isDraining() bool { return d.draining.Load() != nil || d.selfDrained.Load() != nil }
