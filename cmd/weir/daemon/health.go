package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/weirlb/weir/cmd/weir/complaints"
	"github.com/weirlb/weir/cmd/weir/endpointhealth"
	"github.com/weirlb/weir/cmd/weir/healthcheck"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/sdnotify"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/ports/absence"
	"github.com/weirlb/weir/lb/probepath"
)

// packetPathState is the state of the packet path. Methods do not wait.
type packetPathState interface {
	StuckWorker() int
	Absent() *absence.Absence
}

// pathFault is why packets are not forwarded on some interface or by some worker, "" if they
// are. That alone withdraws addresses for want of health.
func pathFault(path packetPathState) string {
	if absent := path.Absent(); absent != nil {
		return absent.Reason
	}
	if stuck := path.StuckWorker(); stuck >= 0 {
		return fmt.Sprintf("worker %d is stuck", stuck)
	}
	return ""
}

// healthOf is the health of the packet path and of publications.
func healthOf(path packetPathState, p *healthz.Pending, now time.Time) healthz.Health {
	h := healthz.Health{Healthy: true, LastUpdated: p.Last(), Pending: p.Age(now)}
	if reason := p.Stuck(now); reason != "" {
		h.Healthy, h.Reason = false, reason
	}
	if stuck := path.StuckWorker(); stuck >= 0 {
		h.Healthy, h.Reason = false, fmt.Sprintf("worker %d is stuck", stuck)
	}
	if absent := path.Absent(); absent != nil {
		h.Absent = absent.Reason
		if absent.Final {
			h.Healthy, h.Reason = false, absent.Reason
		}
	}
	return h
}

// Health implements healthz.Source. It waits for no lock that is held while an update is merged or
// published: a probe must be answered.
func (d *Daemon) Health() healthz.Health {
	h := healthOf(d.lb, &d.updating, time.Now())
	h.Synced, h.Draining = d.publisher.HasPublished(), d.isDraining()
	h.NodeReason = d.notEligible()
	h.NodeEligible = h.NodeReason == ""
	return h
}

// working notes that the source works on an update, until done is called.
func working(p *healthz.Pending) func() (done func()) {
	return func() func() {
		p.Begin(time.Now())
		return p.End
	}
}

// lookForLate is how often a late update is looked for.
const lookForLate = time.Second

// followLate has a late update listed as a problem. It is apart from the other problems: their
// questions may wait for the publication.
func followLate(ctx context.Context, p *healthz.Pending, problems *problem.Registry) error {
	tick := time.NewTicker(lookForLate)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var late []problem.Problem
		if reason := p.Late(time.Now()); reason != "" {
			late = append(late, problem.New(problem.LateUpdate, "", "%s", reason))
		}
		problems.Set(complaints.Update, problem.Weir, late...)
	}
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
		NotSynced: !d.publisher.HasPublished(), Unhealthy: pathFault(d.lb),
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
			return !d.isDraining() && pathFault(d.lb) == ""
		},
		Own: d.cfg.Listener,
		Log: d.log,
	})
}

// newHealth makes the Monitor of endpoints. Preconditions: d.lb is open.
func (d *Daemon) newHealth() *endpointhealth.Monitor {
	if err := probepath.Cleanup(); err != nil { // no Service of this process may need the path
		d.log.Warn("the path for probes of the last process is left", "err", err)
	}
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
