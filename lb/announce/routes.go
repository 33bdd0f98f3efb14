package announce

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// routes are those of the announced addresses.
func (r *Rule) routes(list []Decision) []Route {
	by := map[netip.Prefix][]int{}
	for i := range list {
		if list[i].Reason != Announced {
			continue
		}
		for _, n := range r.addresses[list[i].Address].by {
			if x := &r.all[n]; !x.Link {
				p := x.prefix(list[i].Address)
				by[p] = append(by[p], n)
			}
		}
	}
	var out []Route
	for _, p := range slices.SortedFunc(maps.Keys(by), netip.Prefix.Compare) {
		slices.Sort(by[p])
		out = append(out, r.routeOf(p, slices.Compact(by[p])))
	}
	return out
}

// routeOf is the route that several advertisements ask for.
func (r *Rule) routeOf(p netip.Prefix, by []int) Route {
	out := Route{Prefix: p, Limited: true}
	for _, n := range by {
		x := &r.all[n]
		if x.Peers == nil {
			out.Attributes, out.Limited = out.Attributes.and(&x.Attributes), false
		}
		for _, name := range x.Peers {
			if out.Peers == nil {
				out.Peers = map[string]Attributes{}
			}
			out.Peers[name] = Attributes{}
		}
	}
	for name := range out.Peers {
		var told Attributes
		for _, n := range by {
			if x := &r.all[n]; x.Peers == nil || slices.Contains(x.Peers, name) {
				told = told.and(&x.Attributes)
			}
		}
		out.Peers[name] = told
	}
	return out
}

// and are the attributes of a route that two advertisements ask for: the communities of both, the
// longer prepending, and of other attributes the first.
func (a Attributes) and(b *Attributes) Attributes {
	for _, c := range b.Communities {
		if !slices.Contains(a.Communities, c) {
			a.Communities = append(slices.Clip(a.Communities), c)
		}
	}
	for _, c := range b.LargeCommunities {
		if !slices.Contains(a.LargeCommunities, c) {
			a.LargeCommunities = append(slices.Clip(a.LargeCommunities), c)
		}
	}
	a.MED, a.LocalPref = cmp.Or(a.MED, b.MED), cmp.Or(a.LocalPref, b.LocalPref)
	a.Prepend = max(a.Prepend, b.Prepend)
	return a
}
