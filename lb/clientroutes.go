package lb

import (
	"errors"
	"net/netip"

	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// clientRoutes are routes to the host veth, by which clients on the node reach the addresses of
// frontends.
type clientRoutes struct {
	host    *hostveth.Veth // nil without it
	router  *route.Watcher
	claims  map[netip.Addr]int  // frontends per address that may need a route
	claimed map[table.Key]bool  // the frontends that claims counts
	routed  map[netip.Addr]bool // addresses that have a route
}

func newClientRoutes(host *hostveth.Veth, router *route.Watcher) *clientRoutes {
	return &clientRoutes{
		host: host, router: router,
		claims: map[netip.Addr]int{}, claimed: map[table.Key]bool{}, routed: map[netip.Addr]bool{},
	}
}

// has reports whether an address has a route.
func (cr *clientRoutes) has(a netip.Addr) bool { return cr.routed[a] }

// follow counts the frontends of every address that clients on the node may need
// a route for, and brings the routes in line.
func (cr *clientRoutes) follow(ch *table.Change) error {
	touched := map[netip.Addr]bool{}
	count := func(f *table.FrontendEntry, claims bool) {
		if claims == cr.claimed[f.Key] {
			return
		}
		a := f.AddrPort.Addr()
		touched[a] = true
		if claims {
			cr.claimed[f.Key] = true
			cr.claims[a]++
			return
		}
		delete(cr.claimed, f.Key)
		cr.claims[a]--
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
		errs = append(errs, cr.refresh(a))
	}
	return errors.Join(errs...)
}

// refreshAll follows a change of the node's addresses. A route that failed before is
// tried again.
func (cr *clientRoutes) refreshAll() error {
	var errs []error
	for a := range cr.claims {
		errs = append(errs, cr.refresh(a))
	}
	return errors.Join(errs...)
}

// refresh brings the route of an address in line, and forgets an address without
// frontends and route.
func (cr *clientRoutes) refresh(a netip.Addr) error {
	err := cr.route(a)
	if cr.claims[a] == 0 && !cr.routed[a] {
		delete(cr.claims, a)
	}
	return err
}

// route has a route to the host veth exactly for the frontend addresses that the
// host does not have itself: clients on the node reach them by it.
func (cr *clientRoutes) route(a netip.Addr) error {
	if cr.host == nil {
		return nil
	}
	want := cr.claims[a] > 0 && (cr.routed[a] || !cr.router.Local(a))
	if want == cr.routed[a] {
		return nil
	}
	if want {
		if err := cr.host.AddRoute(a); err != nil {
			return err
		}
		cr.routed[a] = true
		return nil
	}
	if err := cr.host.RemoveRoute(a); err != nil {
		return err
	}
	delete(cr.routed, a)
	return nil
}
