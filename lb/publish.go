package lb

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/worker"
)

// Apply publishes changed Services and forgets deleted ones. The first call
// also starts to take traffic: it must hold all that is known. A frontend
// leaves the steering program before the snapshot without it is published,
// and enters it afterwards, so that Weir never gets a packet that it cannot
// serve. What could not be applied is in the error (joined *table.ServiceError
// and others); all else is.
func (l *LB) Apply(put []table.Service, del []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	ch, err := l.tables.Prepare(put, del)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range ch.Errors {
		errs = append(errs, e)
	}
	for _, f := range ch.Removed {
		delete(l.unsteered, f.Key)
		errs = append(errs, l.steer.RemoveFrontend(f.AddrPort, f.Proto))
	}
	if err := l.tables.Publish(ch); err != nil {
		return errors.Join(append(errs, err)...)
	}
	l.steerAgain()
	for _, f := range ch.Added {
		err := l.steer.AddFrontend(f.AddrPort, f.Proto, uint32(f.Kind))
		if err != nil {
			l.unsteered[f.Key] = f
		}
		errs = append(errs, err)
	}
	l.reassign.Follow(&ch)
	errs = append(errs, l.noteVIPs(&ch), l.routeFrontends(&ch), l.forwardBehind(ch.Added), l.forwardBehind(ch.Changed))
	if !l.attached {
		l.attached = true
		l.restoreFlows()
		errs = append(errs, l.ports.Attach())
	}
	return errors.Join(errs...)
}

// steerAgain adds the frontends that found no room, as far as there is some now.
func (l *LB) steerAgain() {
	for k, f := range l.unsteered {
		if l.steer.AddFrontend(f.AddrPort, f.Proto, uint32(f.Kind)) != nil {
			return // said when it was first tried
		}
		delete(l.unsteered, k)
	}
}

// routeFrontends counts the frontends of every address that clients on the
// node may need a route for, and brings the routes in line.
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
		errs = append(errs, l.routeAddress(a))
		if l.claims[a] == 0 && !l.routed[a] {
			delete(l.claims, a)
		}
	}
	return errors.Join(errs...)
}

// routeAddress has a route to the host veth exactly for the frontend addresses
// that the host does not hold itself: by it clients on the node reach them.
func (l *LB) routeAddress(a netip.Addr) error {
	if l.host == nil {
		return nil
	}
	want := l.claims[a] > 0 && (l.routed[a] || !l.router.Local(a))
	if want == l.routed[a] {
		return nil
	}
	// What fails is tried again by the next replan.
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

// restoreFlows gives flows of an earlier process the numbers of this one's tables.
func (l *LB) restoreFlows() {
	l.adopted = l.reassign.Restore()
	if l.adopted > 0 {
		l.log.Info("carrying on with the flows of the last process", "flows", l.adopted)
	}
}

// replan makes the workers' view of the node anew from the host's addresses, and
// brings the SNAT addresses of the steering program in line with it: new ones before
// the view is published, old ones stay while a flow may still need them.
func (l *LB) replan() error {
	cfg := snat.Config{Lo: l.cfg.SNATPortLo, Hi: l.cfg.SNATPortHi}
	want := map[netip.Addr]snat.Source{}
	for _, a := range l.cfg.SNATAddresses {
		s := l.sourceAt(a)
		want[a] = s
		cfg.Pool = append(cfg.Pool, s)
	}
	for _, a := range l.router.Sources() {
		if _, ok := want[a]; !ok {
			want[a] = snat.Source{Addr: a, Lo: cfg.Lo, Hi: cfg.Hi}
		}
	}
	var errs []error
	for a, s := range want {
		if l.owned[a] != s {
			if err := l.steer.SetSNAT(a, s.Lo, s.Hi); err != nil {
				errs = append(errs, err)
				continue
			}
			l.owned[a] = s
		}
	}
	for a := range l.owned {
		if _, ok := want[a]; !ok && !l.router.Local(a) {
			errs = append(errs, l.steer.RemoveSNAT(a))
			delete(l.owned, a)
		}
	}
	for _, s := range l.owned {
		cfg.Owned = append(cfg.Owned, s)
	}
	if l.host != nil {
		for _, a := range l.router.Addresses() {
			errs = append(errs, l.planListener(&cfg, a.Prefix.Addr()))
		}
		hp := l.host.Route(0)
		for _, a := range []netip.Addr{hp.Local4, hp.Forward4, hp.Local6, hp.Forward6} {
			if a.IsValid() {
				cfg.Owned = append(cfg.Owned, snat.Exclusive(a))
			}
		}
	}
	for a, n := range l.claims {
		errs = append(errs, l.routeAddress(a))
		if n == 0 && !l.routed[a] {
			delete(l.claims, a)
		}
	}
	all := slices.Collect(l.tables.Load().All())
	errs = append(errs, l.planVIPs(), l.forwardBehind(all))
	l.keepWayBack(all)
	l.node.Store(&worker.Node{
		Addresses:  snat.New(cfg),
		ReturnPath: l.host != nil && l.host.ReturnPathErr == nil,
		Draining:   l.draining,
	})
	return errors.Join(errs...)
}

// planListener adds the source of flows to one of the node's addresses.
func (l *LB) planListener(cfg *snat.Config, a netip.Addr) error {
	src, err := l.host.SourceFor(a)
	if src.IsValid() {
		cfg.Listeners = append(cfg.Listeners, snat.Listener{Addr: a, Source: src})
		cfg.Owned = append(cfg.Owned, snat.Exclusive(src))
	}
	return err
}

// Addresses lists the node's addresses that frontends may be on, and Changed
// delivers a value after they changed.
func (l *LB) Addresses() []route.Address { return l.router.Addresses() }

// Router is the view of the kernel's routes and addresses.
func (l *LB) Router() *route.Watcher { return l.router }
