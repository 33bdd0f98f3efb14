package endpointhealth

import (
	"net/netip"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// mayVerify reports whether there is room for another connection of the node's own to an endpoint of a
// namespace.
func (e *ejections) mayVerify(namespace string) bool {
	free := maxVerifying - e.verifying
	return free > 0 && e.byOwner[namespace] < max(1, (free+2)/3)
}

// outBeside reports whether an endpoint takes of the room of another: it is ejected, or, where that one
// is not ejected yet, may be in a moment.
func (m *Monitor) outBeside(p, other place) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, x := m.suspects[p], m.suspects[other]
	return s != nil && (s.ejected || s.verifying && !s.keeping && (x == nil || !x.ejected))
}

// room reports whether an endpoint may be ejected, or stay so, beside those that are.
func (m *Monitor) room(svc *discovery.Service, p place) bool {
	r := m.cfg.Readiness()
	r.Health = func(svc *discovery.Service, q *discovery.Port, at netip.AddrPort) topology.Health {
		return topology.Health{Failing: m.fails(svc, q, at)}
	}
	port := endpointAt(r.Of(svc), p)
	if port == nil {
		return false
	}
	here := func(e *topology.Endpoint) bool { return m.cfg.NodeName != "" && e.NodeName == m.cfg.NodeName }
	var ready, ejected, readyHere, ejectedHere int
	onNode := false
	for i := range port.Endpoints {
		e := &port.Endpoints[i]
		if !e.Ready || e.AddrPort.Addr().Is4() != p.at.Addr().Is4() {
			continue
		}
		out := e.AddrPort == p.at || m.outBeside(place{p.service, p.port, p.protocol, e.AddrPort}, p)
		ready++
		if out {
			ejected++
		}
		if here(e) {
			readyHere++
			if out {
				ejectedHere++
			}
			onNode = onNode || e.AddrPort == p.at
		}
	}
	if onNode && svc.Policy.UsesLocal() && 100*ejectedHere > maxEjectionPercent*readyHere {
		return false
	}
	return 100*ejected <= maxEjectionPercent*ready
}
