package lb

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"github.com/gaissmai/bart"

	"github.com/weirlb/weir/lb/table"
)

// vips are the addresses that serve frontends and that the node does not have: only Weir
// answers pings of them.
type vips struct {
	atomic.Pointer[bart.Lite]                    // as workers see them; never changed once stored
	frontends                 map[netip.Addr]int // per address, guarded by LB.mu
}

func (v *vips) init() {
	v.Store(new(bart.Lite))
	v.frontends = map[netip.Addr]int{}
}

// countVIPs follows a change of the tables.
func (l *LB) countVIPs(ch *table.Change) error {
	touched := map[netip.Addr]bool{}
	for _, f := range ch.Added {
		l.vips.frontends[f.AddrPort.Addr()]++
		touched[f.AddrPort.Addr()] = true
	}
	for _, f := range ch.Removed {
		l.vips.frontends[f.AddrPort.Addr()]--
		touched[f.AddrPort.Addr()] = true
	}
	var errs []error
	for a := range touched {
		errs = append(errs, l.refreshVIP(a))
	}
	return errors.Join(errs...)
}

// refreshVIPs follows a change of the node's addresses. A step that failed before is
// tried again.
func (l *LB) refreshVIPs() error {
	var errs []error
	for a := range l.vips.frontends {
		errs = append(errs, l.refreshVIP(a))
	}
	return errors.Join(errs...)
}

// refreshVIP gives an address to the steering program and the workers for as long as the
// address serves frontends and the node does not have it; to the workers for longer.
func (l *LB) refreshVIP(a netip.Addr) error {
	n := l.vips.frontends[a]
	if n == 0 {
		delete(l.vips.frontends, a)
	}
	known, p := l.vips.Load(), netip.PrefixFrom(a, a.BitLen())
	want := n > 0 && !l.router.Local(a)
	if want == known.Lookup(a) {
		return nil
	}
	if want {
		if err := l.steer.AddVIP(a); err != nil {
			return err
		}
		l.vips.Store(known.InsertPersist(p))
		return nil
	}
	err := l.steer.RemoveVIP(a)
	l.vips.Store(known.DeletePersist(p))
	return err
}
