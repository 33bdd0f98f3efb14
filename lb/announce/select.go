package announce

import (
	"net/netip"
	"slices"
)

// selecting adds the advertisements that select an address to by. own are the frontends of its owner's
// namespace.
func (r *Rule) selecting(by []int, a netip.Addr, own []Frontend) []int {
	for _, i := range r.allowing.of(a) {
		if x := &r.all[i]; (x.Peers == nil || len(x.Peers) > 0) && x.selectsAll(own) {
			by = append(by, i)
		}
	}
	return by
}

// selectsAll reports whether the advertisement is for all Services of an owner's namespace.
func (x *Advertisement) selectsAll(own []Frontend) bool {
	if x.Selects == nil {
		return true
	}
	for i := range own {
		if i > 0 && own[i].Service == own[i-1].Service {
			continue // another port of it
		}
		if !x.Selects(own[i].Labels) {
			return false
		}
	}
	return true
}

// allows reports whether the prefixes have an address, whatever Services do.
func (x *Advertisement) allows(a netip.Addr) bool {
	return slices.ContainsFunc(x.Allow, func(p netip.Prefix) bool { return p.Contains(a) })
}

// unselected says why no advertisement selects an address.
func (r *Rule) unselected(a netip.Addr, own []Frontend) string {
	allowing := r.allowing.of(a)
	if slices.ContainsFunc(allowing, func(i int) bool { return r.all[i].Peers != nil && r.all[i].selectsAll(own) }) {
		return noPeer
	}
	if len(allowing) > 0 {
		return notSelected
	}
	return notAllowed
}

func (r *Rule) wasAnnounced(a netip.Addr, h *history) bool {
	return slices.ContainsFunc(h.by, func(i int) bool { return r.adopted[r.all[i].prefix(a)] })
}
