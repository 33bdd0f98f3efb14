package lb

import (
	"net/netip"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/worker"
)

// wayBackFor prepares the way back from an endpoint that is to see its clients'
// addresses, and tells of one whose answers could not come back.
func (l *LB) wayBackFor(f *table.FrontendEntry, ep *table.EndpointEntry, path *route.Path) error {
	if f.Mode == conntrack.ModeNAT || l.host == nil {
		return nil
	}
	if path.Kind == route.Host && !path.Local {
		return l.host.AddEndpoint(ep.AddrPort.Addr())
	}
	if f.Mode == conntrack.ModeDNAT && path.Kind == route.Attached && !l.toldNAT[f.ServiceName] {
		l.toldNAT[f.ServiceName] = true
		l.warnings.Add(warning.Mode, f.ServiceName, "endpoint %s is reached by an attached interface, where its answers to clients' own addresses would not come back to Weir: nat in place of dnat",
			ep.AddrPort)
	}
	return nil
}

// keepWayBack forgets endpoints that no frontend has any more.
func (l *LB) keepWayBack(frontends []*table.FrontendEntry) {
	if l.host == nil {
		return
	}
	used := map[netip.Addr]bool{}
	for _, f := range frontends {
		if f.Mode == conntrack.ModeNAT {
			continue
		}
		for i := range f.Pool.Endpoints() {
			used[f.Pool.Endpoints()[i].AddrPort.Addr()] = true
		}
	}
	l.host.PruneEndpoints(func(a netip.Addr) bool { return used[a] }, len(used))
}

// ModeTo is the mode of new flows from a frontend to one of its endpoints, as
// far as it does not depend on the client.
func (l *LB) ModeTo(f *table.FrontendEntry, ep *table.EndpointEntry) conntrack.Mode {
	path, _ := l.router.Load().Lookup(ep.AddrPort.Addr(), 0)
	return worker.ModeTo(f, ep, &path, l.node.Load())
}
