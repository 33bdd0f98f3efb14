package endpointhealth

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/prober"
	"github.com/weirlb/weir/topology"
)

// State is the health of an endpoint of a Service port, without its failed connections.
func (m *Monitor) State(svc *discovery.Service, p *discovery.Port, at netip.AddrPort) (h api.EndpointHealth) {
	h.State = prober.Unchecked.String()
	m.mu.Lock()
	s := m.suspects[place{svc.Name, p.Port, p.Protocol, at}]
	if s != nil && s.ejected {
		h.State, h.Since, h.Reason = api.HealthEjected, new(s.since), s.why()
	} else if s != nil && s.kept {
		h.State, h.Since, h.Reason, h.Kept = api.HealthFailing, new(s.keptSince), s.why(), true
	}
	m.mu.Unlock()
	c := checkingOf(svc, m.guard.Load())
	t, ok := c.target(p, at)
	if !ok {
		if c.check != nil && h.Reason == "" {
			h.Reason = fmt.Sprintf("Service port %s has no endpoint at the address", c.check.PortName)
		}
		return h
	}
	state := m.probes.State(svc.Name.Namespace, t)
	switch {
	case h.State == api.HealthEjected, h.Kept && state.Value != prober.Failing:
		return h
	case state.Since.IsZero():
		if why := m.refusal(svc, p, at, &t); why != "" {
			h.Reason = "not probed: " + why
		}
		return h
	}
	h.State, h.Since, h.Kept = state.Value.String(), &state.Since, false
	if state.Value == prober.Failing {
		h.Reason = reasonAt(at, t.At, state.Reason)
	}
	if state.Latency > 0 {
		h.LatencySeconds = state.Latency.Seconds()
	}
	return h
}

// refusal says why the target of an endpoint is not probed.
func (m *Monitor) refusal(svc *discovery.Service, p *discovery.Port, at netip.AddrPort, t *prober.Target) string {
	guard := m.guard.Load()
	for _, e := range atAddress(p, at.Addr()) {
		if e.AddrPort == at {
			return refusal(svc, guard, guard.Frontends(svc), &e, t)
		}
	}
	return ""
}

// Counts are the endpoints of a Service by health: those that have another than unchecked.
func (m *Monitor) Counts(svc *discovery.Service) map[string]int {
	out := map[string]int{}
	if svc.Options.HealthCheck == nil && !m.anyTold() {
		return out
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for j := range p.Endpoints {
			if h := m.State(svc, p, p.Endpoints[j].AddrPort); h.State != prober.Unchecked.String() {
				out[h.State]++
			}
		}
	}
	return out
}

func (m *Monitor) anyTold() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count > 0
}

// Problems are those of Services whose endpoints fail or are ejected, and of the node's probes.
func (m *Monitor) Problems() (out []problem.Problem) {
	m.mu.Lock()
	services := make([]*discovery.Service, 0, len(m.services))
	for _, svc := range m.services {
		if svc.Options.HealthCheck != nil || m.count > 0 {
			services = append(services, svc)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(services, func(a, b *discovery.Service) int { return cmp.Compare(a.Name.String(), b.Name.String()) })
	for _, svc := range services {
		if reason := m.failing(svc); reason != "" {
			out = append(out, problem.Problem{Kind: problem.EndpointHealth, Object: problem.Service(svc.Name.Namespace, svc.Name.Name), Reason: reason})
		}
	}
	n, stretched, fault := m.probes.Load()
	if fault != nil {
		out = append(out, problem.Problem{Kind: problem.HealthChecks, Object: problem.Weir, Reason: fault.Error()})
	}
	if stretched > 1 {
		out = append(out, problem.Problem{Kind: problem.HealthChecks, Object: problem.Weir, Reason: fmt.Sprintf(
			"%d endpoints are to be probed: more than %d in a second. Periods of the Services that ask for most are longer, by a factor of up to %.1f", n, prober.PerSecond, stretched)})
	}
	return out
}

// failing says which endpoints of a Service fail or are ejected, "" for none.
func (m *Monitor) failing(svc *discovery.Service) string {
	var names []string
	total, are := 0, "accept no connection"
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for j := range p.Endpoints {
			e := &p.Endpoints[j]
			if !e.Ready {
				continue
			}
			total++
			switch h := m.State(svc, p, e.AddrPort); h.State {
			case api.HealthEjected:
				names = append(names, fmt.Sprintf("%s is ejected (%s)", e.AddrPort, h.Reason))
			case prober.Failing.String():
				names = append(names, fmt.Sprintf("%s fails (%s)", e.AddrPort, h.Reason))
				if !h.Kept {
					are = "do not work"
				}
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of %d ready endpoints %s: %s", len(names), total, are, event.Some(names))
	r := m.cfg.Readiness()
	r.Health = m.Health
	now := r.Of(svc)
	switch used := m.usedAllTheSame(svc, now); used {
	case 0:
	case total:
		text += "; since all fail, all are used"
	default:
		text += fmt.Sprintf("; %d of these are used all the same, since too few others work", used)
	}
	if refused := refusing(svc, now); len(refused) > 0 {
		text += fmt.Sprintf("; since all fail and %s is closed, connections are refused to %s", discovery.AnnotationHealthCheckFail, event.Some(refused))
	}
	return text
}

// refusing are the ports and families of a Service with ready endpoints none of which is used now, since
// a Service that is closed asks for that.
func refusing(svc, now *discovery.Service) (out []string) {
	if !svc.Options.HealthCheckClosed {
		return nil
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for _, family := range []string{"IPv4", "IPv6"} {
			of := func(e topology.Endpoint) bool { return e.AddrPort.Addr().Is6() == (family == "IPv6") }
			listed := func(e topology.Endpoint) bool { return of(e) && e.Ready }
			used := func(e topology.Endpoint) bool { return of(e) && (e.Ready || e.Serving && e.Terminating) }
			if slices.ContainsFunc(p.Endpoints, listed) && !slices.ContainsFunc(now.Ports[i].Endpoints, used) {
				out = append(out, fmt.Sprintf("port %d/%s %s", p.Port, p.Protocol, family))
			}
		}
	}
	return out
}

// usedAllTheSame is how many endpoints that fail or are ejected count as ready now, with those that are kept.
func (m *Monitor) usedAllTheSame(svc, now *discovery.Service) (n int) {
	for i := range now.Ports {
		for j := range now.Ports[i].Endpoints {
			e := &now.Ports[i].Endpoints[j]
			p := &svc.Ports[i]
			if e.Ready && (m.Health(svc, p, e.AddrPort) != (topology.Health{}) || m.isKept(place{svc.Name, p.Port, p.Protocol, e.AddrPort})) {
				n++
			}
		}
	}
	return n
}

// Age is how long a health has lasted, for sentences; "" if it is not known.
func Age(h *api.EndpointHealth, now time.Time) string {
	if h.Since == nil {
		return ""
	}
	return " for " + max(0, now.Sub(*h.Since)).Round(time.Second).String()
}

// Reason is the health of an endpoint that fails or is ejected, in a sentence; "" for another.
func Reason(h *api.EndpointHealth, now time.Time) string {
	switch {
	case h.Kept:
		return "accepts no connection" + Age(h, now) + ", and is used all the same: " + h.Reason
	case h.State == api.HealthEjected:
		return "ejected" + Age(h, now) + ": " + strings.TrimSpace(h.Reason)
	case h.State == prober.Failing.String():
		return "fails the health check" + Age(h, now) + ": " + strings.TrimSpace(h.Reason)
	}
	return ""
}
