package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
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
}

// GuardOf is the guard of a configuration that is valid.
func GuardOf(cfg *config.Configuration, own func(netip.Addr) bool) Guard {
	g := Guard{
		Own: own, Ports: cfg.ProtectedEndpointPorts,
		ClusterIPs: cfg.ClusterIPs, ExternalIPs: cfg.ExternalIPs, LoadBalancerClass: cfg.LoadBalancerClass,
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

// keep returns the endpoints of a port, of which those that the node refuses are not ready, and
// the reasons for the first of these.
func (g *Guard) keep(eps []topology.Endpoint, protocol string, own *Frontends) (kept []topology.Endpoint, refused, loop string) {
	kept = eps
	for i := range eps {
		why := g.Refuses(eps[i].AddrPort)
		comesBack := ""
		if why == "" {
			comesBack = own.Refuses(&eps[i], protocol)
		}
		if why == "" && comesBack == "" {
			continue
		}
		if refused == "" && loop == "" {
			kept = slices.Clone(eps)
		}
		refused, loop = cmp.Or(refused, why), cmp.Or(loop, comesBack)
		kept[i].Ready, kept[i].Serving, kept[i].Terminating = false, false, false
	}
	return kept, refused, loop
}

// Apply is a Service as a node with the guard sees it.
func (g *Guard) Apply(svc *discovery.Service) *discovery.Service {
	out, own := svc, g.Frontends(svc)
	for i := range svc.Ports {
		kept, refused, loop := g.keep(svc.Ports[i].Endpoints, svc.Ports[i].Protocol, own)
		if refused == "" && loop == "" {
			continue
		}
		if out == svc {
			copied := *svc
			out, copied.Ports = &copied, slices.Clone(svc.Ports)
		}
		out.Ports[i].Endpoints = kept
	}
	return out
}

// guarded returns the endpoints of a port of a family, of which those that the node refuses are
// not ready, and notes the problem. Without an address it is the same on all nodes, and so a single
// Event of the Service.
func (f *familyPort) guarded(eps []topology.Endpoint) []topology.Endpoint {
	g := &f.t.opts.Guard
	for i := range eps {
		if slices.Contains(g.Ports, eps[i].AddrPort.Port()) {
			f.t.askedOwn = true // and again when the node's addresses change
			break
		}
	}
	if f.own == nil {
		f.own = g.Frontends(f.svc)
	}
	kept, refused, loop := g.keep(eps, f.port.Protocol, f.own)
	f.t.askedOwn = f.t.askedOwn || f.own.asked
	if refused != "" {
		f.complain(problem.ProtectedPort, "endpoints", "an endpoint gets no packets from the node that has its address: %s", refused)
	}
	if loop != "" {
		f.complain(problem.InvalidObject, "endpoints", "an endpoint gets no packets: %s", loop)
	}
	return kept
}
