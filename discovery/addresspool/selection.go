package addresspool

import (
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"slices"
)

// selection is the pools that an advertisement selects. Advertisements that select the same pools have the same
// selection, with the same prefixes: many of them with many pools would not fit into memory.
type selection struct {
	prefixes []netip.Prefix
	// four and six are the pools with addresses of a family, by their place in Config.Pools, ascending.
	four, six []int
	// longest are the first of the longest prefixes of the families.
	longest4, longest6 netip.Prefix
}

// selections are those of a Config, by pools.
type selections struct {
	c     *Config
	pools map[int][]netip.Prefix // by place in Config.Pools
	known map[string]*selection
	all   *selection
}

// of is the selection by names and labels, without any that of all pools. An error if no pool is selected.
func (s *selections) of(names []string, selectors []Selector) (*selection, error) {
	var out *selection
	if len(names)+len(selectors) == 0 {
		if s.all == nil {
			all := map[int]bool{}
			for i := range s.c.Pools {
				all[i] = true
			}
			s.all = s.make(all)
		}
		out = s.all
	} else {
		out = s.make(s.c.selected(names, selectors))
	}
	if len(out.prefixes) == 0 {
		return nil, errors.New("spec.ipAddressPools: no pool is selected")
	}
	return out, nil
}

// selected are the pools of names and labels, by their place in Pools.
func (c *Config) selected(names []string, selectors []Selector) map[int]bool {
	out := map[int]bool{}
	for _, name := range names {
		if i, ok := c.names[name]; ok {
			out[i] = true
		}
	}
	if len(selectors) == 0 {
		return out
	}
	for i := range c.Pools {
		if AnyMatches(selectors, c.Pools[i].Labels) {
			out[i] = true
		}
	}
	return out
}

// make is the selection of pools by their place.
func (s *selections) make(pools map[int]bool) *selection {
	places := slices.Sorted(maps.Keys(pools))
	var key []byte
	for _, i := range places {
		key = binary.AppendUvarint(key, uint64(i))
	}
	if known := s.known[string(key)]; known != nil {
		return known
	}
	out := &selection{}
	for _, i := range places {
		if _, ok := s.pools[i]; !ok {
			for _, r := range s.c.Pools[i].Ranges {
				s.pools[i] = append(s.pools[i], r.Prefixes()...)
			}
		}
		out.add(i, s.pools[i])
	}
	s.known[string(key)] = out
	return out
}

// add adds the prefixes of the pool at a place behind those that are there.
func (s *selection) add(place int, list []netip.Prefix) {
	for _, p := range list {
		pools, longest := &s.six, &s.longest6
		if p.Addr().Is4() {
			pools, longest = &s.four, &s.longest4
		}
		if n := len(*pools); n == 0 || (*pools)[n-1] != place {
			*pools = append(*pools, place)
		}
		if p.Bits() > longest.Bits() {
			*longest = p
		}
	}
	s.prefixes = append(s.prefixes, list...)
}

// meet reports whether two ascending lists have a number in common.
func meet(a, b []int) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	for len(a) > 0 && len(b) > 0 && a[0] <= b[len(b)-1] {
		at, found := slices.BinarySearch(b, a[0])
		if found {
			return true
		}
		a, b = a[1:], b[at:]
	}
	return false
}
