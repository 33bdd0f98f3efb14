package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// Guard keeps endpoints from leading to programs of the node itself. Packets to them enter the
// kernel by the host veth, past rules of the firewall that name an interface or a source, and
// every author of an EndpointSlice names the endpoints of a Service.
type Guard struct {
	// Own reports whether an address is the node's own; nil: no address is.
	Own func(netip.Addr) bool
	// Ports are the ports of the node's own addresses that no endpoint may have.
	Ports []uint16
	// Prefixes are those of the host veth, where no endpoint is.
	Prefixes []netip.Prefix
	// ClusterIPs, ExternalIPs and LoadBalancerClass are as in Options.
	ClusterIPs, ExternalIPs bool
	LoadBalancerClass       string
	// Mode is that of Services without one of their own.
	Mode conntrack.Mode
}

// GuardOf is the guard of a configuration that is valid.
func GuardOf(cfg *config.Configuration, own func(netip.Addr) bool) Guard {
	g := Guard{
		Own: own, Ports: cfg.ProtectedEndpointPorts,
		ClusterIPs: cfg.ClusterIPs, ExternalIPs: cfg.ExternalIPs, LoadBalancerClass: cfg.LoadBalancerClass,
		Mode: Mode(cfg.Forwarding.Mode),
	}
	v4, v6 := cfg.HostVethPrefixes()
	for _, p := range []netip.Prefix{v4, v6} {
		if p.IsValid() {
			g.Prefixes = append(g.Prefixes, p)
		}
	}
	return g
}

// Refuses says why the node uses an endpoint in no state, "" if it may use it.
func (g *Guard) Refuses(a netip.AddrPort) string {
	addr := a.Addr().Unmap()
	if slices.ContainsFunc(g.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return "the address is of the veth pair between Weir and the kernel (hostVeth.prefixes)"
	}
	if slices.Contains(g.Ports, a.Port()) && g.Own != nil && g.Own(addr) {
		return fmt.Sprintf("port %d of the node's own addresses is protected (protectedEndpointPorts)", a.Port())
	}
	return ""
}

// RefusesEndpoint is Refuses for an endpoint of a Service, which may have a range of ports.
func (g *Guard) RefusesEndpoint(svc *discovery.Service, a netip.AddrPort) string {
	why := g.Refuses(a)
	if r := svc.Options.PortRange; why == "" && r.Last != 0 {
		if at := slices.IndexFunc(g.Ports, r.Contains); at >= 0 {
			why = g.Refuses(netip.AddrPortFrom(a.Addr(), g.Ports[at]))
		}
	}
	return why
}

// RefusesProbe says why no probe goes to an address and port of an endpoint of a Service, "" if it may: at
// is where the endpoint is, to is where the connection goes, which is a frontend in the modes without
// translation. A probe may go to another port than packets do, and every author of a Service names port and
// frontend: it goes to no protected port of any node.
func (g *Guard) RefusesProbe(svc *discovery.Service, e *topology.Endpoint, at, to netip.AddrPort) string {
	if (e.OfNode || slices.Contains(svc.OfNodes, to.Addr())) && slices.Contains(g.Ports, at.Port()) {
		return fmt.Sprintf("port %d of the address of a node is protected (protectedEndpointPorts)", at.Port())
	}
	return cmp.Or(g.Refuses(at), g.Refuses(to))
}

// ready returns the endpoints of a port of a family as the node uses them, and notes the problem of those
// that it refuses. Without an address it is the same on all nodes, and so a single Event of the Service.
func (f *familyPort) ready(eps []topology.Endpoint) []topology.Endpoint {
	g := &f.t.opts.Guard
	for i := range eps {
		if slices.Contains(g.Ports, eps[i].AddrPort.Port()) || slices.ContainsFunc(g.Ports, f.svc.Options.PortRange.Contains) {
			f.t.askedOwn = true // and again when the node's addresses change
			break
		}
	}
	if f.svc.Options.PortRange.Contains(f.port.Port) && slices.ContainsFunc(eps, func(e topology.Endpoint) bool { return e.AddrPort.Port() != f.port.Port }) {
		f.complain(problem.ServiceWarning, "endpoints", "an endpoint is listed with another port than %d of the Service: with %s packets go to the port that they came to", f.port.Port, discovery.AnnotationPortRange)
	}
	if f.own == nil {
		f.own = g.Frontends(f.svc)
	}
	r := Readiness{Guard: g, Drained: f.t.drained, Health: f.t.opts.Health}
	out, refused, loop := r.endpoints(f.svc, f.port, eps, f.own)
	f.t.askedOwn = f.t.askedOwn || f.own.asked
	if refused != "" {
		f.complain(problem.ProtectedPort, "endpoints", "an endpoint gets no packets from the node that has its address: %s", refused)
	}
	if loop != "" {
		f.complain(problem.InvalidObject, "endpoints", "an endpoint gets no packets: %s", loop)
	}
	return out
}
