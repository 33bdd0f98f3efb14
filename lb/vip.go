package lb

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"github.com/gaissmai/bart"

	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
)

// vips are the addresses that serve frontends and that the node does not have: only Weir
// answers pings of them.
type vips struct {
	program   *steer.Program
	router    *route.Watcher
	published atomic.Pointer[bart.Lite] // as workers see them; never changed once stored
	frontends map[netip.Addr]int        // per address
}

func newVIPs(program *steer.Program, router *route.Watcher) *vips {
	v := &vips{program: program, router: router, frontends: map[netip.Addr]int{}}
	v.published.Store(new(bart.Lite))
	return v
}

// follow follows a change of the tables.
func (v *vips) follow(ch *table.Change) error {
	touched := map[netip.Addr]bool{}
	for _, f := range ch.Added {
		v.frontends[f.AddrPort.Addr()]++
		touched[f.AddrPort.Addr()] = true
	}
	for _, f := range ch.Removed {
		v.frontends[f.AddrPort.Addr()]--
		touched[f.AddrPort.Addr()] = true
	}
	var errs []error
	for a := range touched {
		errs = append(errs, v.refresh(a))
	}
	return errors.Join(errs...)
}

// refreshAll follows a change of the node's addresses. A step that failed before is
// tried again.
func (v *vips) refreshAll() error {
	var errs []error
	for a := range v.frontends {
		errs = append(errs, v.refresh(a))
	}
	return errors.Join(errs...)
}

// refresh gives an address to the steering program and the workers for as long as the
// address serves frontends and the node does not have it; to the workers for longer.
func (v *vips) refresh(a netip.Addr) error {
	n := v.frontends[a]
	if n == 0 {
		delete(v.frontends, a)
	}
	known, p := v.published.Load(), netip.PrefixFrom(a, a.BitLen())
	want := n > 0 && !v.router.Local(a)
	if want == known.Lookup(a) {
		return nil
	}
	if want {
		if err := v.program.AddVIP(a); err != nil {
			return err
		}
		v.published.Store(known.InsertPersist(p))
		return nil
	}
	err := v.program.RemoveVIP(a)
	v.published.Store(known.DeletePersist(p))
	return err
}
