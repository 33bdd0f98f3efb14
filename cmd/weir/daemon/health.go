package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/weirlb/weir/cmd/weir/healthcheck"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/sdnotify"
)

// Health implements healthz.Source.
func (d *Daemon) Health() healthz.Health {
	h := d.healthNow()
	h.Draining = d.isDraining()
	if reason := d.updating.Reason(time.Now()); reason != "" {
		h.Healthy, h.Reason = false, reason
	}
	if stuck := d.lb.StuckWorker(); stuck >= 0 {
		h.Healthy, h.Reason = false, fmt.Sprintf("worker %d is stuck", stuck)
	}
	if absent := d.lb.Absent(); absent != nil {
		h.Absent = absent.Reason
		if absent.Final {
			h.Healthy, h.Reason = false, absent.Reason
		}
	}
	return h
}

// healthNow is the health without waiting: while an update is being published it is the
// health before, since a probe must be answered.
func (d *Daemon) healthNow() healthz.Health {
	if !d.mu.TryLock() {
		if last := d.lastHealth.Load(); last != nil {
			return *last
		}
		d.mu.Lock()
	}
	h := healthz.Health{Healthy: true, LastUpdated: d.updated, Synced: d.synced}
	d.mu.Unlock()
	// Not under the lock: the source may be delivering, and wait for it.
	h.NodeReason = d.notEligible()
	h.NodeEligible = h.NodeReason == ""
	d.lastHealth.Store(&h)
	return h
}

// notEligible is why load balancers in front should not send traffic to this
// node, "" when they should, or the source does not know.
func (d *Daemon) notEligible() string {
	if s, ok := d.source.(interface{ NodeEligible() (bool, string) }); ok {
		_, reason := s.NodeEligible()
		return reason
	}
	return ""
}

// newChecks makes the servers of healthCheckNodePorts.
func (d *Daemon) newChecks() *healthcheck.Checks {
	c := healthcheck.New(healthcheck.Config{
		NodeName: d.cfg.NodeName,
		Healthy: func() bool {
			return !d.isDraining() && d.lb.StuckWorker() < 0 && d.lb.Absent() == nil
		},
		Log: d.log,
	})
	c.SetAddresses(d.checkAddresses())
	return c
}

// checkAddresses are those on which healthCheckNodePorts are served, nil for
// all of the node.
func (d *Daemon) checkAddresses() []netip.Addr {
	if len(d.cfg.NodePortAddresses) == 0 {
		return nil
	}
	return append([]netip.Addr{}, d.nodeAddresses()...)
}

// followChecks runs the health checks.
func (d *Daemon) followChecks(ctx context.Context) error { return d.checks.Run(ctx) }

// serviceHealth is the health in a service manager's words.
func (d *Daemon) serviceHealth() sdnotify.Health {
	h := d.Health()
	text := "serving " + d.source.String()
	switch {
	case !h.Healthy:
		text = h.Reason
	case h.Draining:
		if s := d.drainNow(time.Now()); s != nil {
			text = s.String()
		}
	case !h.Synced:
		text = "waiting for the first full view of Services: " + d.source.String()
	case h.Absent != "":
		text = h.Absent
	}
	return sdnotify.Health{Healthy: h.Healthy, Text: text}
}
