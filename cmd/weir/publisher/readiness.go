package publisher

import (
	"github.com/weirlb/weir/cmd/weir/changes"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/endpointhealth"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
)

// readiness is what the node combines with the conditions of endpoints, as the translator does.
// Preconditions: p.mu is held.
func (p *Publisher) readiness() *translate.Readiness {
	guard := translate.GuardOf(p.cfg, p.addresses.Local)
	return &translate.Readiness{Guard: &guard, Drained: p.drains.Set(), Health: p.health.Health}
}

// readinessChanged has everything follow a change of drains, or of what the node refuses, that asks for
// itself. Preconditions: p.mu is held.
func (p *Publisher) readinessChanged() {
	r := p.readiness()
	p.health.SetGuard(r.Guard)
	p.checks.SetReadiness(r)
}

// Passive reports whether endpoints of a Service may be ejected: see endpointhealth.Config.
func (p *Publisher) Passive(svc *discovery.Service) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg.HealthChecks.Passive != config.PassiveOff && !svc.Options.NoPassiveCheck && !p.translate.Direct(svc)
}

// HealthChanged publishes another health of endpoints.
func (p *Publisher) HealthChanged(list []endpointhealth.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []discovery.ServiceName
	for i := range list {
		if n := list[i].Service; len(names) == 0 || names[len(names)-1] != n {
			names = append(names, n)
		}
		p.log.Info("the health of an endpoint has changed", "service", list[i].Service, "endpoint", list[i].At, "health", list[i].Text)
	}
	p.checks.Recount(names)
	p.publish(p.translate.Refresh(names), changes.HealthCause(list))
}
