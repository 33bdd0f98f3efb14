package probepath

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/route"
)

// routed is the route to a frontend's address.
type routed struct {
	frontend    netip.Addr
	connections int
	end         *time.Timer // removes the route; nil while there are connections
}

// use is the route to a frontend's address, made if it is not there. Preconditions: p.mu is held, p is
// open.
func (p *Path) use(frontend netip.Addr) (*routed, error) {
	r := p.routes[frontend]
	if r == nil {
		if len(p.routes) >= maxRoutes {
			p.prune()
		}
		if err := p.open.routes.RouteReplace(p.route(frontend)); err != nil {
			return nil, fmt.Errorf("route to %s of table %d: %w", frontend, p.cfg.Table, err)
		}
		r = &routed{frontend: frontend}
		p.routes[frontend] = r
	}
	if r.end != nil {
		r.end.Stop()
		r.end = nil
	}
	r.connections++
	return r, nil
}

// release ends the use of a route by a connection. Preconditions: p.mu is held.
func (p *Path) release(r *routed) {
	if r.connections--; r.connections > 0 || p.routes[r.frontend] != r {
		return
	}
	r.end = time.AfterFunc(p.idle, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.routes[r.frontend] == r && r.connections == 0 {
			p.unroute(r)
		}
	})
}

// prune removes the routes that no connection uses. Preconditions: p.mu is held, p is open.
func (p *Path) prune() {
	for _, r := range p.routes {
		if r.connections == 0 {
			r.end.Stop()
			p.unroute(r)
		}
	}
}

// unroute removes a route, which may be gone with the pair. Preconditions: p.mu is held, p is open.
func (p *Path) unroute(r *routed) {
	_ = p.open.routes.RouteDel(p.route(r.frontend))
	delete(p.routes, r.frontend)
}

func (p *Path) route(a netip.Addr) *netlink.Route {
	return &netlink.Route{
		LinkIndex: p.open.outer, Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		Scope: unix.RT_SCOPE_LINK, Table: p.cfg.Table, Protocol: route.Protocol,
	}
}
