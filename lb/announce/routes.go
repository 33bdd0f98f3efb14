package announce

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// routes are those of the announced addresses.
func (r *Rule) routes(list []Decision) []Route {
	by := map[netip.Prefix][]*Advertisement{}
	for n := range r.all {
		x := &r.all[n]
		for i := range list {
			if x.Link {
				break
			}
			if list[i].Reason != Announced || !slices.Contains(r.addresses[list[i].Address].by, n) {
				continue
			}
			if p := x.prefix(list[i].Address); !slices.Contains(by[p], x) {
				by[p] = append(by[p], x)
			}
		}
	}
	var out []Route
	for _, p := range slices.SortedFunc(maps.Keys(by), netip.Prefix.Compare) {
		out = append(out, routeOf(p, by[p]))
	}
	return out
}

// routeOf is the route that several advertisements ask for.
func routeOf(p netip.Prefix, by []*Advertisement) Route {
	out := Route{Prefix: p, Limited: true}
	for _, x := range by {
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
		for _, x := range by {
			if x.Peers == nil || slices.Contains(x.Peers, name) {
				told = told.and(&x.Attributes)
			}
		}
		out.Peers[name] = told
	}
	return out
}

// and are the attributes of a route that two advertisements ask for: the communities of both, and
// of other attributes the first.
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
