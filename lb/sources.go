package lb

import (
	"errors"
	"net/netip"
	"time"

	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/steer"
)

// sources are the SNAT sources whose packets the steering program takes.
type sources struct {
	program *steer.Program
	router  *route.Watcher
	host    *hostveth.Veth // nil without it
	ports   sharedPorts    // on addresses of the host
	pool    []netip.Addr   // configured, in place of the addresses of the way out
	steered map[netip.Addr]snat.Source
	gone    map[netip.Addr]time.Time // those whose address is gone, since when
}

// refresh brings the steering program in line with the node's addresses, and returns the sources
// for the workers. A step that fails is done again by the next call.
func (ss *sources) refresh() (snat.Config, error) {
	r := ss.ports.given()
	cfg := snat.Config{Lo: r.Lo, Hi: r.Hi, Except: ss.ports.except()}
	for _, a := range ss.pool {
		cfg.Pool = append(cfg.Pool, ss.configured(a))
	}
	err := errors.Join(ss.steer(ss.wanted(cfg.Pool)), ss.addHost(&cfg))
	owned := ss.ports.owned()
	for _, s := range ss.steered {
		if s.Shared {
			s.Lo, s.Hi = owned.Lo, owned.Hi
		}
		cfg.Owned = append(cfg.Owned, s)
	}
	return cfg, err
}

// configured is the SNAT source at a configured address. If the host has the
// address too, Weir has a part of its ports only.
func (ss *sources) configured(a netip.Addr) snat.Source {
	if ss.router.Load().Local(a) {
		r := ss.ports.given()
		return snat.Source{Addr: a, Lo: r.Lo, Hi: r.Hi, Shared: true}
	}
	return snat.Exclusive(a)
}

// wanted are the SNAT sources whose packets the steering program must take, with the ports at
// which it takes all: the pool, and the addresses of egress interfaces.
func (ss *sources) wanted(pool []snat.Source) map[netip.Addr]snat.Source {
	want := map[netip.Addr]snat.Source{}
	r := ss.ports.steered()
	for _, a := range ss.router.Sources() {
		want[a] = snat.Source{Addr: a, Lo: r.Lo, Hi: r.Hi, Shared: true}
	}
	for _, s := range pool {
		if s.Shared {
			s.Lo, s.Hi = r.Lo, r.Hi
		}
		want[s.Addr] = s
	}
	return want
}

// steer brings the SNAT sources of the steering program in line with want. A source
// that is no longer wanted stays while the node has the address, and for sourceStays: flows
// may still use it. An interface that comes back has its address before its routes are known.
func (ss *sources) steer(want map[netip.Addr]snat.Source) error {
	var errs []error
	for a, s := range want {
		if ss.steered[a] == s {
			continue
		}
		if err := ss.program.SetSNAT(a, s.Lo, s.Hi); err != nil {
			errs = append(errs, err)
			continue
		}
		ss.steered[a] = s
	}
	for a := range ss.steered {
		if _, ok := want[a]; ok || ss.router.Local(a) {
			delete(ss.gone, a)
			continue
		}
		since, ok := ss.gone[a]
		switch {
		case !ok:
			ss.gone[a] = time.Now()
		case time.Since(since) >= sourceStays:
			errs = append(errs, ss.program.RemoveSNAT(a))
			delete(ss.steered, a)
			delete(ss.gone, a)
		}
	}
	return errors.Join(errs...)
}

// sourceStays is how long a SNAT source outlives its address.
const sourceStays = 5 * time.Minute

// addHost adds the sources towards endpoints behind the kernel, and towards each
// of the node's own addresses.
func (ss *sources) addHost(cfg *snat.Config) error {
	if ss.host == nil {
		return nil
	}
	var errs []error
	for _, a := range ss.router.Addresses() {
		src, err := ss.host.SourceFor(a.Prefix.Addr())
		if src.IsValid() {
			cfg.Listeners = append(cfg.Listeners, snat.Listener{Addr: a.Prefix.Addr(), Source: src})
			cfg.Owned = append(cfg.Owned, snat.Exclusive(src))
		}
		errs = append(errs, err)
	}

	veth := ss.host.Route(0)
	for _, a := range []netip.Addr{veth.Local4, veth.Forward4, veth.Local6, veth.Forward6} {
		if a.IsValid() {
			cfg.Owned = append(cfg.Owned, snat.Exclusive(a))
		}
	}
	return errors.Join(errs...)
}
