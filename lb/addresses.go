package lb

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/worker"
)

// refreshAddresses brings the steering program, the host veth and the workers in line
// with the node's addresses and routes. A step that fails does not keep the others from
// running, and is done again by the next call. Preconditions: mu is held, or l is not yet
// in use.
func (l *LB) refreshAddresses() error {
	cfg := snat.Config{Lo: l.cfg.SNATPortLo, Hi: l.cfg.SNATPortHi}
	for _, a := range l.cfg.SNATAddresses {
		cfg.Pool = append(cfg.Pool, l.configuredSource(a))
	}

	frontends := slices.Collect(l.tables.Load().All())
	errs := []error{
		l.steerSources(l.wantedSources(&cfg)),
		l.addHostSources(&cfg),
		l.refreshRoutes(),
		l.refreshVIPs(),
		l.prepareHost(frontends),
	}
	l.pruneReturnPath(frontends)

	for _, s := range l.sources {
		cfg.Owned = append(cfg.Owned, s)
	}
	l.node.Store(&worker.Node{
		Addresses:  snat.New(cfg),
		ReturnPath: l.host != nil && l.host.ReturnPathErr == nil,
		Draining:   l.draining,
	})
	return errors.Join(errs...)
}

// configuredSource is the SNAT source at a configured address. If the host has the
// address too, Weir has a part of its ports only.
func (l *LB) configuredSource(a netip.Addr) snat.Source {
	if l.router.Load().Local(a) {
		return snat.Source{
			Addr: a, Lo: l.cfg.SNATPortLo, Hi: l.cfg.SNATPortHi, Shared: true,
		}
	}
	return snat.Exclusive(a)
}

// wantedSources are the SNAT sources whose packets the steering program must take: the
// pool of cfg, and the addresses of egress interfaces.
func (l *LB) wantedSources(cfg *snat.Config) map[netip.Addr]snat.Source {
	want := map[netip.Addr]snat.Source{}
	for _, a := range l.router.Sources() {
		want[a] = snat.Source{Addr: a, Lo: cfg.Lo, Hi: cfg.Hi, Shared: true}
	}
	for _, s := range cfg.Pool {
		want[s.Addr] = s
	}
	return want
}

// steerSources brings the SNAT sources of the steering program in line with want. A source
// that is no longer wanted stays while the node has the address, and for sourceStays: flows
// may still use it. An interface that comes back has its address before its routes are known.
func (l *LB) steerSources(want map[netip.Addr]snat.Source) error {
	var errs []error
	for a, s := range want {
		if l.sources[a] == s {
			continue
		}
		if err := l.steer.SetSNAT(a, s.Lo, s.Hi); err != nil {
			errs = append(errs, err)
			continue
		}
		l.sources[a] = s
	}
	for a := range l.sources {
		if _, ok := want[a]; ok || l.router.Local(a) {
			delete(l.sourcesGone, a)
			continue
		}
		since, ok := l.sourcesGone[a]
		switch {
		case !ok:
			l.sourcesGone[a] = time.Now()
		case time.Since(since) >= sourceStays:
			errs = append(errs, l.steer.RemoveSNAT(a))
			delete(l.sources, a)
			delete(l.sourcesGone, a)
		}
	}
	return errors.Join(errs...)
}

// sourceStays is how long a SNAT source outlives its address.
const sourceStays = 5 * time.Minute

// addHostSources adds the sources towards endpoints behind the kernel, and towards each
// of the node's own addresses.
func (l *LB) addHostSources(cfg *snat.Config) error {
	if l.host == nil {
		return nil
	}
	var errs []error
	for _, a := range l.router.Addresses() {
		src, err := l.host.SourceFor(a.Prefix.Addr())
		if src.IsValid() {
			cfg.Listeners = append(cfg.Listeners, snat.Listener{Addr: a.Prefix.Addr(), Source: src})
			cfg.Owned = append(cfg.Owned, snat.Exclusive(src))
		}
		errs = append(errs, err)
	}

	veth := l.host.Route(0)
	for _, a := range []netip.Addr{veth.Local4, veth.Forward4, veth.Local6, veth.Forward6} {
		if a.IsValid() {
			cfg.Owned = append(cfg.Owned, snat.Exclusive(a))
		}
	}
	return errors.Join(errs...)
}

// Addresses lists the node's addresses that frontends may be on.
func (l *LB) Addresses() []route.Address { return l.router.Addresses() }

// Router is the view of the kernel's routes and addresses.
func (l *LB) Router() *route.Watcher { return l.router }
