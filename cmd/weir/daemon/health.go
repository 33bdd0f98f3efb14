package daemon

import (
	"net/netip"
	"time"

	"github.com/weirlb/weir/cmd/weir/endpointhealth"
	"github.com/weirlb/weir/cmd/weir/healthcheck"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/sdnotify"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/probepath"
)

// Health implements healthz.Source. It waits for no lock that is held while an update is merged or
// published: a probe must be answered.
func (d *Daemon) Health() healthz.Health {
	h := healthz.Of(d.lb, &d.updating, time.Now())
	h.Synced, h.Draining = d.publisher.HasPublished(), d.isDraining()
	h.NodeReason = d.notEligible()
	h.NodeEligible = h.NodeReason == ""
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

// nodeState implements announcer.Node.
type nodeState struct{ d *Daemon }

// State is the state of the node for the announcement.
func (s nodeState) State() announce.Node {
	d := s.d
	return announce.Node{
		Stopping: d.ending.Draining(), Draining: d.drains.Self() != nil, NotEligible: d.notEligible(),
		NotSynced: !d.publisher.HasPublished(), Unhealthy: healthz.PathFault(d.lb),
	}
}

// Cordoned reports whether the source says that the node is unschedulable.
func (s nodeState) Cordoned() bool {
	src, ok := s.d.source.(interface{ NodeCordoned() bool })
	return ok && src.NodeCordoned()
}

// newChecks makes the servers of healthCheckNodePorts.
func (d *Daemon) newChecks() *healthcheck.Checks {
	return healthcheck.New(healthcheck.Config{
		NodeName: d.cfg.NodeName,
		Healthy: func() bool {
			return !d.isDraining() && healthz.PathFault(d.lb) == ""
		},
		Own: d.cfg.Listener,
		Log: d.log,
	})
}

// newHealth makes the Monitor of endpoints. Preconditions: d.lb is open.
func (d *Daemon) newHealth() *endpointhealth.Monitor {
	d.probes = endpointhealth.Path(d.cfg, false, d.log)
	return endpointhealth.New(endpointhealth.Config{
		Changed:   d.publisher.HealthChanged,
		Readiness: d.publisher.Readiness,
		Dial:      endpointhealth.Dialer(d.probes),
		Attempts:  d.attempts.Table,
		Number: func(service string, port uint16, proto uint8, at netip.AddrPort) (uint32, bool) {
			return d.lb.Tables().EndpointID(service, port, proto, at)
		},
		Passive:  d.publisher.Passive,
		NodeName: d.cfg.NodeName, Log: d.log,
	})
}

// removeProbePath removes the path for probes of a process that was killed: no Service of this process
// may need it. Its routes go with it, also those of former builds in the table of the host veth.
func (d *Daemon) removeProbePath() {
	if err := probepath.Cleanup(); err != nil {
		d.log.Warn("the path for probes of the last process is left", "err", err)
	}
}

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
