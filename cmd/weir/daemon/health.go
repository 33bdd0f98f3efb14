package daemon

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/cmd/weir/health"
	"github.com/weirlb/weir/cmd/weir/metrics"
	"github.com/weirlb/weir/cmd/weir/notify"
	"github.com/weirlb/weir/discovery"
)

// Health implements metrics.HealthSource.
func (d *Daemon) Health() metrics.Health {
	d.mu.Lock()
	h := metrics.Health{Healthy: true, LastUpdated: d.updated, Synced: d.synced, Draining: d.draining}
	d.mu.Unlock()
	h.NodeReason = d.notEligible()
	h.NodeEligible = h.NodeReason == ""
	if stuck := d.lb.StuckWorker(); stuck >= 0 {
		h.Healthy, h.Reason = false, fmt.Sprintf("worker %d does not go round", stuck)
	}
	return h
}

// notEligible is why load balancers in front should not send traffic to this
// node, "" when they should.
func (d *Daemon) notEligible() string {
	if s, ok := d.source.(interface{ NodeEligible() (bool, string) }); ok {
		_, reason := s.NodeEligible()
		return reason
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.node.Labels[corev1.LabelNodeExcludeBalancers]; ok {
		return fmt.Sprintf("node %s has the label %s", d.node.Name, corev1.LabelNodeExcludeBalancers)
	}
	return ""
}

// newChecks makes the servers of healthCheckNodePorts.
func (d *Daemon) newChecks() *health.Checks {
	c := health.New(health.Config{
		NodeName: d.cfg.NodeName,
		Healthy:  func() bool { return d.lb.StuckWorker() < 0 },
		Failed: func(name discovery.ServiceName, err error) {
			if s, ok := d.source.(interface {
				Warn(name discovery.ServiceName, reason, text string)
			}); ok {
				s.Warn(name, "FailedToStartServiceHealthcheck", fmt.Sprintf("node %s: %v", d.cfg.NodeName, err))
			}
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
func (d *Daemon) serviceHealth() notify.Health {
	h := d.Health()
	text := "serving " + d.source.String()
	switch {
	case !h.Healthy:
		text = h.Reason
	case !h.Synced:
		text = "waiting for the first full view of Services: " + d.source.String()
	}
	return notify.Health{Healthy: h.Healthy, Text: text}
}
