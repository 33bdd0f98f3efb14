package lb

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"github.com/gaissmai/bart"

	"github.com/weirlb/weir/lb/table"
)

// vips are the addresses that serve frontends and that the node does not hold:
// nobody but Weir answers pings of them.
type vips struct {
	atomic.Pointer[bart.Lite]                    // as workers see them; never changed once stored
	frontends                 map[netip.Addr]int // per address, guarded by LB.mu
}

func (v *vips) init() {
	v.Store(new(bart.Lite))
	v.frontends = map[netip.Addr]int{}
}

// noteVIPs follows a change of the tables.
func (l *LB) noteVIPs(ch *table.Change) error {
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
		errs = append(errs, l.planVIP(a))
	}
	return errors.Join(errs...)
}

// planVIPs follows a change of the node's addresses. What failed before is
// tried again.
func (l *LB) planVIPs() error {
	var errs []error
	for a := range l.vips.frontends {
		errs = append(errs, l.planVIP(a))
	}
	return errors.Join(errs...)
}

// planVIP has the steering program and the workers know an address as long as
// it serves frontends alone; the workers longer than the program.
func (l *LB) planVIP(a netip.Addr) error {
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
