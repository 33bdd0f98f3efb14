package lb

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/warning"
)

// wantsHostVeth reports whether there is to be a host veth.
func (l *LB) wantsHostVeth() bool { return l.cfg.HostVeth4.IsValid() || l.cfg.HostVeth6.IsValid() }

// openHostVeth makes the host veth, which is the last port.
func (l *LB) openHostVeth(workers int) error {
	if !l.wantsHostVeth() {
		l.warnings.Add(warning.PacketPath, "",
			"no host veth (hostVeth.prefixes is empty): endpoints behind the kernel cannot be reached")
		return nil
	}
	h, err := hostveth.Open(hostveth.Config{
		Prefix4: l.cfg.HostVeth4, Prefix6: l.cfg.HostVeth6,
		Queues: workers, MTU: l.ports.MTU(), Redirects: l.cache != nil,
		Mark: l.cfg.HostVethMark, Table: l.cfg.HostVethTable,
		StateDir: l.cfg.StateDir, ProcSys: l.cfg.ProcSys, Log: l.log,
	})
	if err != nil {
		return err
	}
	l.host = h
	if !h.Masquerades {
		l.warnings.Add(warning.PacketPath, "", "nftables could not be programmed: "+
			"endpoints on other nodes that are reached through the kernel get no traffic")
	}
	if h.ReturnPathErr != nil {
		l.warnings.Add(warning.PacketPath, "", "connection marks cannot bring answers back: "+
			"nat in place of dnat, so that endpoints do not see clients' addresses: %v", h.ReturnPathErr)
	}
	l.ports.AddHost(ports.Host{
		Name: h.Name(), Index: h.Index(), MAC: h.MAC(), MTU: h.MTU(), Queues: workers, Fault: h.Fault,
	})
	return nil
}

// routedHost is the host veth for the routes, nil without it.
func (l *LB) routedHost() *route.HostVeth {
	if l.host == nil {
		return nil
	}
	hp := l.host.Route(l.ports.HostID())
	return &hp
}

// routeFrontends counts the frontends of every address that clients on the node may need
// a route for, and brings the routes in line.
func (l *LB) routeFrontends(ch *table.Change) error {
	touched := map[netip.Addr]bool{}
	count := func(f *table.FrontendEntry, claims bool) {
		if claims == l.claimed[f.Key] {
			return
		}
		a := f.AddrPort.Addr()
		touched[a] = true
		if claims {
			l.claimed[f.Key] = true
			l.claims[a]++
			return
		}
		delete(l.claimed, f.Key)
		l.claims[a]--
	}

	for _, list := range [][]*table.FrontendEntry{ch.Added, ch.Changed} {
		for _, f := range list {
			count(f, f.Kind == table.LoadBalancer || f.Kind == table.ExternalIP)
		}
	}
	for _, f := range ch.Removed {
		count(f, false)
	}

	var errs []error
	for a := range touched {
		errs = append(errs, l.refreshRoute(a))
	}
	return errors.Join(errs...)
}

// refreshRoutes follows a change of the node's addresses. A route that failed before is
// tried again.
func (l *LB) refreshRoutes() error {
	var errs []error
	for a := range l.claims {
		errs = append(errs, l.refreshRoute(a))
	}
	return errors.Join(errs...)
}

// refreshRoute brings the route of an address in line, and forgets an address without
// frontends and route.
func (l *LB) refreshRoute(a netip.Addr) error {
	err := l.routeAddress(a)
	if l.claims[a] == 0 && !l.routed[a] {
		delete(l.claims, a)
	}
	return err
}

// routeAddress has a route to the host veth exactly for the frontend addresses that the
// host does not have itself: clients on the node reach them by it.
func (l *LB) routeAddress(a netip.Addr) error {
	if l.host == nil {
		return nil
	}
	want := l.claims[a] > 0 && (l.routed[a] || !l.router.Local(a))
	if want == l.routed[a] {
		return nil
	}
	if want {
		if err := l.host.AddRoute(a); err != nil {
			return err
		}
		l.routed[a] = true
		return nil
	}
	if err := l.host.RemoveRoute(a); err != nil {
		return err
	}
	delete(l.routed, a)
	return nil
}

// prepareHost has the kernel forward the answers of endpoints behind it: packets that
// arrive on their interface. Where they see their clients' addresses it prepares the
// return path too.
func (l *LB) prepareHost(frontends []*table.FrontendEntry) error {
	if l.host == nil {
		return nil
	}
	type pool struct {
		*table.PoolEntry
		mode conntrack.Mode
	}
	var errs []error
	seen := map[pool]bool{}
	for _, f := range frontends {
		p := pool{f.Pool, f.Mode}
		if seen[p] {
			continue
		}
		seen[p] = true
		endpoints := p.Endpoints()
		for i := range endpoints {
			errs = append(errs, l.prepareEndpoint(f, &endpoints[i]))
		}
	}
	return errors.Join(errs...)
}

// prepareEndpoint is prepareHost for an endpoint of a frontend.
func (l *LB) prepareEndpoint(f *table.FrontendEntry, ep *table.EndpointEntry) error {
	a := ep.AddrPort.Addr()
	path, ok := l.router.Load().Lookup(a, 0)
	behind := path.Kind == route.Host && !path.Local

	var errs []error
	switch {
	case f.Mode == conntrack.ModeNAT:
	case behind:
		errs = append(errs, l.host.AddEndpoint(a))
	case f.Mode == conntrack.ModeDNAT && path.Kind == route.Attached:
		l.warnNoReturnPath(f.ServiceName, ep.AddrPort)
	}
	if ok && behind && path.Interface > 0 {
		if err := l.host.EnableForwarding(path.Interface); err != nil {
			errs = append(errs, fmt.Errorf("forwarding for endpoint %v: %w", ep.AddrPort, err))
		}
	}
	return errors.Join(errs...)
}

// warnNoReturnPath warns, once for a Service, that an endpoint gets nat in place of dnat.
func (l *LB) warnNoReturnPath(service string, endpoint netip.AddrPort) {
	if l.warnedNAT[service] {
		return
	}
	l.warnedNAT[service] = true
	l.warnings.Add(warning.Mode, service, "endpoint %s is reached by an attached interface, "+
		"where its answers to clients' own addresses would not come back to Weir: "+
		"nat in place of dnat", endpoint)
}

// pruneReturnPath removes the endpoints that no frontend has any more from the return
// path.
func (l *LB) pruneReturnPath(frontends []*table.FrontendEntry) {
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
