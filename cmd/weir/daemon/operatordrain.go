package daemon

import (
	"context"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

// DrainEndpoints implements api.Source.
func (d *Daemon) DrainEndpoints(ctx context.Context, names []string, undo bool) (*api.Drains, error) {
	if err := d.publisher.DrainEndpoints(names, undo); err != nil {
		return nil, err
	}
	return d.Drains(ctx)
}

// DrainSelf implements api.Source.
func (d *Daemon) DrainSelf(ctx context.Context, undo bool) (*api.Drains, error) {
	d.drains.DrainSelf(undo)
	d.publisher.KeepDrains()
	d.announcer.Look()
	if undo { // also of a node that is not drained: it may have returned
		d.announcer.Reclaim()
	}
	return d.Drains(ctx)
}

// Drains implements api.Source.
func (d *Daemon) Drains(context.Context) (*api.Drains, error) {
	return d.publisher.Drains(d.drains.Connections(d.lb.Connections)), nil
}

// drainNow is the drain in progress: that of SIGTERM, or else the operator's.
func (d *Daemon) drainNow(now time.Time) *api.Drain {
	if s := d.ending.Progress(now); s != nil || d.drains.Self() == nil {
		return s
	}
	return &api.Drain{Accepting: true, Operator: true, Connections: d.drains.Connections(d.lb.Connections)}
}

// isDraining reports whether the node is not to be sent to.
func (d *Daemon) isDraining() bool { return d.ending.Draining() || d.drains.Self() != nil }
