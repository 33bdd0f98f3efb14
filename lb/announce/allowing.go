package announce

import (
	"net/netip"
	"slices"
)

// allowing leads from an address to the advertisements whose prefixes have it. Advertisements with the same
// slice of prefixes are kept once for all of them.
type allowing struct {
	lengths4, lengths6 []int                  // of the prefixes
	slices             map[netip.Prefix][]int // those with a prefix, by place in by
	by                 [][]int                // the advertisements with a slice, by place in Rule.all
}

func newAllowing(all []Advertisement) *allowing {
	x := &allowing{slices: map[netip.Prefix][]int{}}
	type identity struct {
		first *netip.Prefix
		count int
	}
	known := map[identity]int{}
	for n := range all {
		list := all[n].Allow
		if len(list) == 0 {
			continue
		}
		id := identity{&list[0], len(list)}
		at, ok := known[id]
		if !ok {
			at, known[id] = len(x.by), len(x.by)
			x.by = append(x.by, nil)
			x.add(list, at)
		}
		x.by[at] = append(x.by[at], n)
	}
	return x
}

func (x *allowing) add(list []netip.Prefix, at int) {
	for _, p := range list {
		p = p.Masked()
		lengths := &x.lengths6
		if p.Addr().Is4() {
			lengths = &x.lengths4
		}
		if !slices.Contains(*lengths, p.Bits()) {
			*lengths = append(*lengths, p.Bits())
		}
		x.slices[p] = append(x.slices[p], at)
	}
}

// of are the advertisements that have an address, ascending.
func (x *allowing) of(a netip.Addr) (out []int) {
	if x == nil || a.Zone() != "" {
		return nil
	}
	lengths := x.lengths6
	if a.Is4() {
		lengths = x.lengths4
	}
	var places []int
	for _, bits := range lengths {
		p, _ := a.Prefix(bits) // a length of its family
		places = append(places, x.slices[p]...)
	}
	slices.Sort(places)
	for _, at := range slices.Compact(places) {
		out = append(out, x.by[at]...)
	}
	slices.Sort(out)
	return out
}
