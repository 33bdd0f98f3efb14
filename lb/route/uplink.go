package route

import (
	"maps"
	"net/netip"
)

// uplink is an interface with a default route, by the kernel's index, for a family.
type uplink struct {
	index int
	is4   bool
}

// uplinks are the default routes of each attached interface, of whichever table and metric: of
// several the first in the order of compareRoutes.
func (b *builder) uplinks() map[uplink]*entry {
	all := make(map[uplink]*entry)
	for i := range b.sorted {
		r := &b.sorted[i]
		if r.dst.Bits() != 0 || r.tos != 0 || r.sourced {
			continue
		}
		e := b.entry(r)
		if e == nil {
			continue
		}
		for _, p := range e.paths {
			u := uplink{p.Interface, r.dst.Addr().Is4()}
			if p.Kind == Attached && all[u] == nil {
				all[u] = e
			}
		}
	}
	return all
}

// pathBy is a path of the entry to addr that leads out of an interface, of several that which hash chooses,
// in equal parts. ok is false if there is none.
func (e *entry) pathBy(index int, addr netip.Addr, hash uint32) (p Path, ok bool) {
	n := 0
	for i := range e.paths {
		if e.paths[i].Interface == index {
			n++
		}
	}
	skip := int(uint64(hash) * uint64(n) >> 32)
	for i := range e.paths {
		if e.paths[i].Interface != index {
			continue
		}
		if skip--; skip >= 0 {
			continue
		}
		p = e.paths[i]
		if !p.NextHop.IsValid() {
			p.NextHop = addr
		}
		return p, true
	}
	return p, false
}

// Uplink reports whether the interface with this kernel index has a default route for the family of an
// address. Only Config.AnswerByArrival has it known.
func (t *Table) Uplink(index int, of netip.Addr) bool {
	return t.uplinks[uplink{index, of.Is4()}] != nil
}

// LookupAnswer is Lookup for the answer to a packet that came by the interface with this kernel index:
// the path leads out of it where the route does, or else by a default route there. Where neither does, or the
// answer is for this host or prohibited, it is that of Lookup. It does not allocate.
func (t *Table) LookupAnswer(p *Packet, index int, hash uint32) (path Path, ok bool) {
	e, final := t.findFor(p)
	if e == nil && final != NoRoute || e != nil && (e.local || len(e.paths) == 0) {
		return t.Lookup(p, hash)
	}
	addr := p.Dst.Addr()
	if e != nil {
		if path, ok = e.pathBy(index, addr, hash); ok {
			return path, true
		}
	}
	if up := t.uplinks[uplink{index, addr.Is4()}]; up != nil {
		return up.pathBy(index, addr, hash)
	}
	return t.Lookup(p, hash)
}

// sameUplinks reports whether both have the same default routes.
func sameUplinks(a, b map[uplink]*entry) bool {
	return maps.EqualFunc(a, b, func(x, y *entry) bool { return x.equal(y) })
}
