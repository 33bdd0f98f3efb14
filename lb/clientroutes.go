package lb

import (
	"errors"
	"net/netip"
	"time"

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
	// leaving are addresses with a route and without a frontend, with the time when the last went.
	leaving map[netip.Addr]time.Time
}

func newClientRoutes(host *hostveth.Veth, router *route.Watcher) *clientRoutes {
	return &clientRoutes{
		host: host, router: router,
		claims: map[netip.Addr]int{}, claimed: map[table.Key]bool{}, routed: map[netip.Addr]bool{}, leaving: map[netip.Addr]time.Time{},
	}
}

// stays reports whether an address has a route that will not be removed.
func (cr *clientRoutes) stays(a netip.Addr) bool { return cr.routed[a] && cr.claims[a] > 0 }

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

// route has a route to the host veth for the frontend addresses that the host does not have
// itself: clients on the node reach them by it. It leaves the removal to unroute.
func (cr *clientRoutes) route(a netip.Addr) error {
	if cr.host == nil {
		return nil
	}
	want := cr.claims[a] > 0 && (cr.routed[a] || !cr.router.Local(a))
	if want {
		delete(cr.leaving, a)
	}
	if want == cr.routed[a] {
		return nil
	}
	if want {
		if err := cr.host.AddRoute(a); err != nil {
			return err
		}
		cr.routed[a] = true
	} else if cr.leaving[a].IsZero() {
		cr.leaving[a] = time.Now()
	}
	return nil
}

// unroute removes the routes of addresses that had their last frontend before a time. Connections
// of the node's clients go on until then, and are ended before: without the route no packet of
// these clients comes, and a RST would have to guess the number that they expect.
func (cr *clientRoutes) unroute(before time.Time) error {
	var errs []error
	for a, since := range cr.leaving {
		if !since.Before(before) {
			continue
		}
		if err := cr.host.RemoveRoute(a); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(cr.leaving, a)
		delete(cr.routed, a)
		if cr.claims[a] == 0 {
			delete(cr.claims, a)
		}
	}
	return errors.Join(errs...)
}
