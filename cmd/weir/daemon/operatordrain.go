package daemon

import (
	"context"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/changes"
)

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
	if err := d.drains.DrainEndpoints(names, undo, d.translate.Listed); err != nil {
		return err
	}
	what := "the operator drains endpoints"
	if undo {
		what = "the operator ends the drain of endpoints"
	}
	d.log.Info(what, "endpoints", strings.Join(names, " "))
	d.publishDrained(what)
	d.drains.Keep()
	return nil
}

// publishDrained publishes the drained endpoints. Preconditions: d.mu is held.
func (d *Daemon) publishDrained(why string) {
	d.checks.SetReadiness(readinessOf(d))
	if b := d.translate.SetDrained(d.drains.Endpoints()); !b.Empty() {
		d.publish(b, changes.NewCause(why))
	}
}

// forgetDrained ends the drain of endpoints that are gone. Preconditions: d.mu is held.
func (d *Daemon) forgetDrained() {
	if d.drains.Forget(d.translate.Listed) {
		d.publishDrained("a drained endpoint is gone")
		d.drains.Keep()
	}
}

// DrainSelf implements api.Source.
func (d *Daemon) DrainSelf(ctx context.Context, undo bool) (*api.Drains, error) {
	d.drains.DrainSelf(undo)
	d.mu.Lock()
	d.drains.Keep()
	d.mu.Unlock()
	d.announcer.Look()
	return d.Drains(ctx)
}

// Drains implements api.Source.
func (d *Daemon) Drains(context.Context) (*api.Drains, error) {
	connections := d.drains.Connections(d.lb.Connections)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.drains.Answer(connections, d.cfg.Announce.Linger()), nil
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
