// Package frontends keeps the steering program in line with the published frontends: those that it
// has, those that it has no room for, and former ones while connections of them go on.
//
//	former.go     the former frontends
//	frontends.go  frontends that come and go
//	settle.go     the end of former frontends, and of flows of frontends that are gone
package frontends

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
)

// Config is all that a Set works with.
type Config struct {
	Program *steer.Program
	Flows   *conntrack.Table
	Tables  *table.Table
	Router  *route.Watcher
	// KeepFormer has former frontends stay. Without a host veth none can: other packets could not be
	// given to the kernel.
	KeepFormer bool
	// Routed reports whether clients on the node have a route of Weir's to an address, which stays.
	Routed func(netip.Addr) bool
	// Unroute removes the routes to addresses that had their last frontend before a time.
	Unroute func(before time.Time) error
	// ServiceRemoved sends the packets of a Service's flows to the steering program; nil: the kernel
	// forwards none.
	ServiceRemoved func(number uint32, removed bool)
	Log            *slog.Logger
}

// Set is the frontends of the steering program. Calls must not overlap, but for Settle.
type Set struct {
	cfg Config
	// unsteered are published frontends for which the steering program had no room: the
	// kernel gets their packets until it has.
	unsteered map[table.Key]*table.FrontendEntry
	former    *formerFrontends
	withdrawn withdrawals
	lists     map[table.Key]uint16 // deny lists of steered frontends that have some
	// stale are steered frontends whose deny lists the program does not have, since a change failed.
	stale map[table.Key]*table.FrontendEntry
}

// withdrawals are Services that have lost a frontend. Packets of their flows go to the
// steering program, which knows the frontends, until no flow of a frontend that is gone can
// be forwarded by the kernel.
type withdrawals struct {
	since    time.Time
	services map[uint32]bool
}

// New returns a set without frontends.
func New(cfg Config) *Set {
	return &Set{
		cfg: cfg, unsteered: map[table.Key]*table.FrontendEntry{}, former: newFormer(),
		withdrawn: withdrawals{services: map[uint32]bool{}}, lists: map[table.Key]uint16{},
		stale: map[table.Key]*table.FrontendEntry{},
	}
}

// Unsteered are the published frontends for which the steering program has no room: their packets
// go to the kernel.
func (s *Set) Unsteered() []*table.FrontendEntry { return slices.Collect(maps.Values(s.unsteered)) }

// Remove takes frontends off the steering program that are served no more, before they leave the
// tables. Those of which connections may go on become former frontends; taken is false while no
// traffic is taken, so that there are no connections.
func (s *Set) Remove(removed []*table.FrontendEntry, taken bool) error {
	return s.withdraw(s.keep(removed, taken))
}

// keep makes former frontends of those of which connections may go on. It returns the others, and
// those that make room.
func (s *Set) keep(removed []*table.FrontendEntry, taken bool) (gone []*table.FrontendEntry) {
	now := time.Now()
	for _, f := range removed {
		if f.Proto == header.ProtoUDP {
			s.former.forget(f.Key, now)
			gone = append(gone, f)
			continue
		}
		if !s.cfg.KeepFormer || !taken || s.unsteered[f.Key] != nil ||
			s.steer(f, steer.FlowsOnly) != nil {
			gone = append(gone, f)
			continue
		}
		if out := s.former.add(f, now); out != nil {
			gone = append(gone, out)
		}
	}
	return gone
}

// withdraw takes frontends off the steering program. The kernel forwards no flow of their Services
// from before that on.
func (s *Set) withdraw(list []*table.FrontendEntry) error {
	if s.cfg.ServiceRemoved != nil && len(list) > 0 {
		for _, f := range list {
			s.cfg.ServiceRemoved(f.ServiceID, true)
			s.withdrawn.services[f.ServiceID] = true
		}
		s.withdrawn.since = time.Now()
	}
	return s.unsteer(list)
}

// unsteer takes frontends off the steering program.
func (s *Set) unsteer(list []*table.FrontendEntry) error {
	var errs []error
	for _, f := range list {
		delete(s.unsteered, f.Key)
		delete(s.lists, f.Key)
		delete(s.stale, f.Key)
		if f.LastPort != 0 {
			errs = append(errs, s.cfg.Program.RemoveRange(f.AddrPort, f.LastPort, f.Proto))
			continue
		}
		errs = append(errs, s.cfg.Program.RemoveFrontend(f.AddrPort, f.Proto))
	}
	return errors.Join(errs...)
}

// Add adds frontends to the steering program, those first that found no room earlier.
func (s *Set) Add(list []*table.FrontendEntry) error {
	for k, f := range s.unsteered {
		err := s.add(f)
		if errors.Is(err, steer.ErrManyRanges) {
			continue // others may have room
		}
		if err != nil {
			break // the first attempt returned the error
		}
		delete(s.unsteered, k)
	}
	var errs []error
	for _, f := range list {
		err := s.add(f)
		if err != nil {
			s.unsteered[f.Key] = f
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// add adds a frontend to the steering program. Former frontends make room.
func (s *Set) add(f *table.FrontendEntry) error {
	s.former.remove(f.Key)
	for {
		err := s.steer(f, uint32(f.Kind))
		many := errors.Is(err, steer.ErrManyRanges)
		if !many && !errors.Is(err, steer.ErrFull) {
			return err
		}
		out := s.former.yield(func(x *table.FrontendEntry) bool {
			return (x.LastPort != 0) == (f.LastPort != 0) && (!many || x.Proto == f.Proto && x.AddrPort.Addr() == f.AddrPort.Addr())
		})
		if out == nil {
			return err
		}
		if err := s.withdraw([]*table.FrontendEntry{out}); err != nil {
			return err
		}
	}
}

// Change has the program deny by the deny lists of frontends that have changed. A change that fails is made
// again by the next call, and once a second by Run.
func (s *Set) Change(list []*table.FrontendEntry) error {
	s.changeAgain()
	var errs []error
	for _, f := range list {
		switch {
		case s.unsteered[f.Key] != nil:
			s.unsteered[f.Key] = f
		case f.LastPort == 0 && s.lists[f.Key] != f.DenyLists():
			err := s.steer(f, uint32(f.Kind))
			if err != nil {
				s.stale[f.Key] = f
			}
			errs = append(errs, err)
		default:
			delete(s.stale, f.Key)
		}
	}
	return errors.Join(errs...)
}

// changeAgain repeats changes that failed: the first attempt returned the error.
func (s *Set) changeAgain() {
	for _, f := range s.stale {
		_ = s.steer(f, uint32(f.Kind))
	}
}

// steer has the program give Weir the packets to a frontend. Of a range of ports the packet loop alone
// denies by lists of the Service.
func (s *Set) steer(f *table.FrontendEntry, flags uint32) error {
	if f.LastPort != 0 {
		return s.cfg.Program.AddRange(f.AddrPort, f.LastPort, f.Proto, flags)
	}
	lists := f.DenyLists()
	if err := s.cfg.Program.AddDenyingFrontend(f.AddrPort, f.Proto, flags, lists); err != nil {
		return err
	}
	delete(s.stale, f.Key)
	if delete(s.lists, f.Key); lists != 0 {
		s.lists[f.Key] = lists
	}
	return nil
}

// Adopt makes a former frontend of one of the last process.
func (s *Set) Adopt(k table.Key, to netip.AddrPort, proto uint8) {
	if proto == header.ProtoUDP {
		s.former.forget(k, time.Now())
		return
	}
	if !s.cfg.KeepFormer || s.former.byKey[k] != nil || len(s.former.byKey) >= maxFormer ||
		s.cfg.Program.AddFrontend(to, proto, steer.FlowsOnly) != nil {
		return
	}
	s.former.add(&table.FrontendEntry{Key: k, AddrPort: to, Proto: proto}, time.Now())
}
