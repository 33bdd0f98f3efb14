package translate

import (
	"net/netip"
	"slices"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

// direct reports whether endpoints answer clients past Weir in a mode.
func direct(m conntrack.Mode) bool { return m >= conntrack.ModeL2DSR }

// Direct reports whether endpoints of a Service answer clients past Weir.
func (t *Translator) Direct(svc *discovery.Service) bool { return direct(t.mode(svc)) }

// tunnel reports whether a mode carries either address family over either.
func tunnel(m conntrack.Mode) bool { return m == conntrack.ModeIPIP || m == conntrack.ModeGUE }

// Via is how packets to a frontend of a Service port reach an endpoint that gets them as clients sent
// them: the name of the mode and the frontend's address, of the family of the endpoint where the Service
// has such an address. mode is "" for endpoints that get them translated.
func (g *Guard) Via(svc *discovery.Service, p *discovery.Port, endpoint netip.Addr) (mode string, frontend netip.Addr) {
	m, ok := modes[svc.Options.ForwardingMode]
	if !ok {
		m = g.Mode
	}
	if !direct(m) || slices.ContainsFunc(ofFamily(p.Endpoints, endpoint.Is6()), func(e topology.Endpoint) bool { return e.AddrPort.Port() != p.Port }) {
		return "", frontend
	}
	var addrs []netip.Addr
	if g.LoadBalancerClass == "" || g.LoadBalancerClass == svc.LoadBalancerClass {
		addrs = svc.LoadBalancerIPs
	}
	if g.ExternalIPs {
		addrs = slices.Concat(addrs, svc.ExternalIPs)
	}
	for _, a := range addrs {
		switch a = a.Unmap(); {
		case !a.IsValid(), g.Own != nil && g.Own(a):
		case a.Is4() == endpoint.Is4():
			return ModeName(m), a
		case tunnel(m) && !servesFamily(svc, a.Is6()) && !frontend.IsValid():
			frontend = a
		}
	}
	if frontend.IsValid() {
		mode = ModeName(m)
	}
	return mode, frontend
}

// frontendMode is the mode of new flows to a frontend. An endpoint that receives the
// client's packets unchanged must have the frontend's address and listen on the frontend's
// port. That is impossible for the node's own addresses and, inside the cluster, for a
// cluster IP, which is kube-proxy's on the endpoint's node, and where the target port
// differs. These are translated. ok is
// false when the frontend cannot be served at all.
func (f *familyPort) frontendMode(addr netip.AddrPort, kind table.Kind) (m conntrack.Mode, ok bool) {
	m = f.t.mode(f.svc)
	if !direct(m) {
		if m <= conntrack.ModeNAT && f.svc.Options.ForwardingMode == "" {
			m = f.translated(kind)
		}
		return m, true
	}
	f.resolve()
	if kind == table.NodePort || kind == table.ClusterIP || f.t.own(addr.Addr()) {
		return f.translated(kind), !f.crossed
	}
	for i := range f.eps {
		if target := f.eps[i].AddrPort; target.Port() != addr.Port() {
			what := "nat is used in place of "
			if f.crossed {
				what = "not served in "
			}
			f.complain(problem.ForwardingMode, "", "%s %s: %sforwarding mode %s, which leaves packets as they are: the target port of %s would have to be %d",
				kind, addr, what, ModeName(m), target, addr.Port())
			return f.translated(kind), !f.crossed
		}
	}
	return m, true
}

// translated is the mode with a translation that follows from the traffic
// policy. Clients from outside of a Service with externalTrafficPolicy: Local
// must be seen with their addresses: that is the purpose of the policy. The endpoints are
// on this node, so their answers return.
func (f *familyPort) translated(kind table.Kind) conntrack.Mode {
	if f.svc.Policy.ExternalLocal && kind != table.ClusterIP {
		return conntrack.ModeDNAT
	}
	return conntrack.ModeNAT
}

// ModeName is the name of a mode, as in weir.dev/forwarding-mode.
func ModeName(m conntrack.Mode) string {
	for name, mode := range modes {
		if mode == m {
			return name
		}
	}
	return ""
}
