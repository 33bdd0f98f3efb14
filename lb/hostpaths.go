package lb

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/warning"
)

// hostPaths are what the kernel does for endpoints behind it: it forwards their answers, and brings
// back those to clients whose address is kept.
type hostPaths struct {
	host     *hostveth.Veth // nil without it
	router   *route.Watcher
	warned   map[string]bool // Services that get nat in place of dnat
	warnings *warning.List
}

// prepare has the kernel forward the answers of endpoints behind it: packets that
// arrive on their interface. Where they see their clients' addresses it prepares the
// return path too.
func (hp *hostPaths) prepare(frontends []*table.FrontendEntry) error {
	if hp.host == nil {
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
			errs = append(errs, hp.prepareEndpoint(f, &endpoints[i]))
		}
	}
	return errors.Join(errs...)
}

// prepareEndpoint is prepare for an endpoint of a frontend.
func (hp *hostPaths) prepareEndpoint(f *table.FrontendEntry, ep *table.EndpointEntry) error {
	var errs []error
	for _, path := range hp.router.Load().Paths(ep.AddrPort, f.Proto) {
		behind := path.Kind == route.Host && !path.Local
		switch {
		case f.Mode == conntrack.ModeNAT:
		case behind:
			errs = append(errs, hp.host.AddEndpoint(ep.AddrPort.Addr()))
		case f.Mode == conntrack.ModeDNAT && path.Kind == route.Attached:
			hp.warnNoReturnPath(f.ServiceName, ep.AddrPort)
		}
		if behind && path.Interface > 0 {
			if err := hp.host.EnableForwarding(path.Interface); err != nil {
				errs = append(errs, fmt.Errorf("forwarding for endpoint %v: %w", ep.AddrPort, err))
			}
		}
	}
	return errors.Join(errs...)
}

// warnNoReturnPath warns, once for a Service, that an endpoint gets nat in place of dnat.
func (hp *hostPaths) warnNoReturnPath(service string, endpoint netip.AddrPort) {
	if hp.warned[service] {
		return
	}
	hp.warned[service] = true
	hp.warnings.Add(warning.Mode, service, "endpoint %s is reached by an attached interface, "+
		"where its answers to clients' own addresses would not come back to Weir: "+
		"nat in place of dnat", endpoint)
}

// prune removes the endpoints that no frontend has any more from the return
// path.
func (hp *hostPaths) prune(frontends []*table.FrontendEntry) {
	if hp.host == nil {
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
	hp.host.PruneEndpoints(func(a netip.Addr) bool { return used[a] }, len(used))
}
