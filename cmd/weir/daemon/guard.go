package daemon

import (
	"net/netip"

	"github.com/weirlb/weir/cmd/weir/changes"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/endpointhealth"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
)

// readinessOf is what the node combines with the conditions of endpoints, as the translator does.
// Preconditions: d.mu is held.
func readinessOf(d *Daemon) *translate.Readiness {
	guard := translate.GuardOf(d.cfg, d.lb.Router().Local)
	return &translate.Readiness{Guard: &guard, Drained: d.drains.Set(), Health: d.health.Health}
}

// readinessChanged has everything follow a change of drains, or of what the node refuses, that asks for
// itself. Preconditions: d.mu is held.
func readinessChanged(d *Daemon) {
	r := readinessOf(d)
	d.health.SetGuard(r.Guard)
	d.checks.SetReadiness(r)
}

// newHealth makes the Monitor of endpoints. Preconditions: d.lb is open.
func newHealth(d *Daemon) *endpointhealth.Monitor {
	d.probes = endpointhealth.Path(d.cfg, false)
	return endpointhealth.New(endpointhealth.Config{
		Changed:   func(list []endpointhealth.Change) { healthChanged(d, list) },
		Readiness: published{d}.Readiness,
		Dial:      endpointhealth.Dialer(d.probes),
		Attempts:  d.attempts.Table,
		Number: func(service string, port uint16, proto uint8, at netip.AddrPort) (uint32, bool) {
			return d.lb.Tables().EndpointID(service, port, proto, at)
		},
		Passive: func(svc *discovery.Service) bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.cfg.HealthChecks.Passive != config.PassiveOff && !svc.Options.NoPassiveCheck && !d.translate.Direct(svc)
		},
		NodeName: d.cfg.NodeName, Log: d.log,
	})
}

// healthChanged publishes another health of endpoints. Preconditions: d.mu is not held.
func healthChanged(d *Daemon, list []endpointhealth.Change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []discovery.ServiceName
	for i := range list {
		if n := list[i].Service; len(names) == 0 || names[len(names)-1] != n {
			names = append(names, n)
		}
		d.log.Info("the health of an endpoint has changed", "service", list[i].Service, "endpoint", list[i].At, "health", list[i].Text)
	}
	d.checks.Recount(names)
	d.publish(d.translate.Refresh(names), changes.HealthCause(list))
}
