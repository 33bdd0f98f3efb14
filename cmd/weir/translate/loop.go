package translate

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// Frontends are the frontends of a Service at addresses that routers lead to Weir.
type Frontends struct {
	svc   *discovery.Service
	addrs []netip.Addr // sorted
	held  func(netip.Addr) bool
	asked bool // held was asked
}

// Frontends are the frontends of a Service that its endpoints cannot be.
func (g *Guard) Frontends(svc *discovery.Service) *Frontends {
	fs := &Frontends{svc: svc, held: g.Own}
	if g.LoadBalancerClass == "" || g.LoadBalancerClass == svc.LoadBalancerClass {
		fs.addrs = append(fs.addrs, svc.LoadBalancerIPs...)
	}
	if g.ExternalIPs {
		fs.addrs = append(fs.addrs, svc.ExternalIPs...)
	}
	if g.ClusterIPs {
		fs.addrs = append(fs.addrs, svc.ClusterIPs...)
	}
	fs.addrs = sorted(fs.addrs)
	return fs
}

// Refuses says why an endpoint of a port of the Service is refused, "" if it is not: packets to a
// frontend come back to Weir, which makes a flow of each until their TTL ends. Where a node has the
// address, its kernel takes them.
func (fs *Frontends) Refuses(e *topology.Endpoint, protocol string) string {
	addr := e.AddrPort.Addr().Unmap()
	if _, found := slices.BinarySearchFunc(fs.addrs, addr, netip.Addr.Compare); !found || e.NodeName != "" {
		return ""
	}
	if !slices.ContainsFunc(fs.svc.Ports, func(p discovery.Port) bool {
		r := fs.svc.Options.PortRange // packets keep their ports, whatever that of the endpoint
		return (p.Port == e.AddrPort.Port() || r.Contains(p.Port)) && p.Protocol == protocol
	}) {
		return ""
	}
	fs.asked = true
	if fs.held != nil && fs.held(addr) {
		return ""
	}
	return fmt.Sprintf("%s is a frontend of the Service itself", e.AddrPort)
}
