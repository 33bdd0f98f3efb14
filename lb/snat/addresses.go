// Package snat chooses the source address and the port range of a new flow, and finds the
// packets to these addresses.
package snat

import (
	"math/bits"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// Source is a source address of translated flows, with its range of ports. It has the size that
// the compiler keeps in registers.
type Source struct {
	Addr   netip.Addr
	Lo, Hi uint16 // inclusive; as conntrack.NewFlow's
	// Shared reports whether the node has the address: new flows do not get all ports (see Except),
	// the kernel translates from it too, and its masquerade rules know no range.
	Shared bool
}

// Exclusive is the source at an address that is Weir's alone: with the user and the
// dynamic ports of RFC 6335.
func Exclusive(a netip.Addr) Source { return Source{Addr: a, Lo: 1024, Hi: 65535} }

// Listener is the source of flows to an address of the node itself.
type Listener struct {
	Addr   netip.Addr // the node's
	Source netip.Addr
}

// Config is the contents of Addresses.
type Config struct {
	// Pool lists the configured SNAT addresses. Flows to endpoints of a family
	// without any have the address of the egress interface.
	Pool []Source
	// Lo and Hi are the range of ports on the egress interface's address, inclusive.
	Lo, Hi uint16
	// Except are the ports that new flows do not get on shared addresses, nil: none.
	Except *conntrack.PortSet
	// Listeners are the sources of flows to the node's own addresses.
	Listeners []Listener
	// Owned lists every source whose packets are for Weir. At other ports packets without a flow are
	// the kernel's.
	Owned []Source
}

// Addresses is a snapshot of the addresses that flows may have as their source. It
// is immutable: when the node's addresses change the control object makes another.
type Addresses struct {
	pool4, pool6 []Source
	lo, hi       uint16
	except       *conntrack.PortSet
	listeners    []listener
	// owned is open-addressed by ownedSlot, a power of two in length and at most half full:
	// nearly every look-up ends at the first place.
	owned []owned
}

// listener is a Listener with its address as in table.EndpointEntry.
type listener struct {
	w0, w1 uint64
	source netip.Addr
}

// owned is a Source with its address as in table.Key. The family of an empty place is 0.
type owned struct {
	w0, w1 uint64
	family uint8
	shared bool
	lo, hi uint16
}

// New makes a snapshot of cfg.
func New(cfg Config) Addresses {
	a := Addresses{lo: cfg.Lo, hi: cfg.Hi, except: cfg.Except}

	for _, s := range cfg.Pool {
		if s.Addr.Is4() {
			a.pool4 = append(a.pool4, s)
		} else {
			a.pool6 = append(a.pool6, s)
		}
	}

	for _, l := range cfg.Listeners {
		k := hostKey(l.Addr)
		a.listeners = append(a.listeners, listener{k.W0, k.W1, l.Source})
	}

	sorted := slices.SortedFunc(slices.Values(cfg.Owned), func(x, y Source) int {
		return x.Addr.Compare(y.Addr)
	})
	if len(sorted) > 0 {
		a.owned = make([]owned, 2<<bits.Len(uint(len(sorted)-1)))
	}
	for _, s := range sorted {
		k := hostKey(s.Addr)
		i := ownedSlot(&k)
		for a.owned[i%uint64(len(a.owned))].family != 0 {
			i++
		}
		a.owned[i%uint64(len(a.owned))] = owned{k.W0, k.W1, uint8(k.W2 >> 24), s.Shared, s.Lo, s.Hi}
	}
	return a
}

// ownedSlot is where the search for an address begins, modulo the number of places.
func ownedSlot(k *table.Key) uint64 { return (k.W0 ^ k.W1) * 0x9e3779b97f4a7c15 >> 40 }

// hostKey is a table key of which only the address and the family count.
func hostKey(a netip.Addr) table.Key { return table.MakeKey(netip.AddrPortFrom(a, 0), 0) }

// Source is the source of a flow to ep by path. It reports false when the path's
// interface has no address of the family.
func (a *Addresses) Source(path *route.Path, ep *table.EndpointEntry, hash uint64) (Source, bool) {
	if path.Kind == route.Host {
		// In the prefix of the veth pair every address is Weir's alone.
		s := Exclusive(a.towardsHost(path, ep))
		return s, s.Addr.IsValid()
	}
	if pool := a.pool(ep.Family); len(pool) > 0 {
		// Not by the hash's low bits, which chose the next hop.
		return pool[hash>>32%uint64(len(pool))], true
	}
	s := Source{Addr: path.Source, Lo: a.lo, Hi: a.hi, Shared: true}
	return s, s.Addr.IsValid()
}

// Except are the ports of a source that new flows do not get.
func (a *Addresses) Except(shared bool) *conntrack.PortSet {
	if !shared {
		return nil
	}
	return a.except
}

// OtherSource is the n-th alternative to Source's choice, n from 1. It reports false
// when there are no more.
func (a *Addresses) OtherSource(
	path *route.Path, ep *table.EndpointEntry, hash uint64, n int,
) (Source, bool) {
	pool := a.pool(ep.Family)
	if path.Kind == route.Host || n >= len(pool) {
		return Source{}, false
	}
	return pool[(hash>>32+uint64(n))%uint64(len(pool))], true
}

func (a *Addresses) pool(family uint8) []Source {
	if family == 6 {
		return a.pool6
	}
	return a.pool4
}

// towardsHost is the source address towards an endpoint behind the kernel.
func (a *Addresses) towardsHost(path *route.Path, ep *table.EndpointEntry) netip.Addr {
	switch {
	case path.Local:
		return a.towardsListener(path, ep)
	case ep.Local:
		return path.LocalSource
	}
	return path.Source
}

// towardsListener is the source address towards an address of the node itself.
func (a *Addresses) towardsListener(path *route.Path, ep *table.EndpointEntry) netip.Addr {
	for i := range a.listeners {
		l := &a.listeners[i]
		if l.w0 == ep.W0 && l.w1 == ep.W1 && l.source.Is6() == (ep.Family == 6) {
			return l.source
		}
	}
	return path.LocalSource
}

// OwnsTuple is Owns of the destination of a tuple.
func (a *Addresses) OwnsTuple(k *conntrack.Key) (owned, shared bool) {
	d := table.DestinationKey(&k.W)
	return a.Owns(&d)
}

// Owns reports whether an address and port are owned, and whether the node has the address
// too: without a flow a packet there may be of a connection that the kernel translates.
func (a *Addresses) Owns(d *table.Key) (owned, shared bool) {
	if len(a.owned) == 0 {
		return false, false
	}
	family, port := uint8(d.W2>>24), bits.ReverseBytes16(uint16(d.W2))
	for i := ownedSlot(d); ; i++ {
		o := &a.owned[i&uint64(len(a.owned)-1)]
		if o.family == 0 {
			return false, false
		}
		if o.w0 == d.W0 && o.w1 == d.W1 && o.family == family && port >= o.lo && port <= o.hi {
			return true, o.shared
		}
	}
}
