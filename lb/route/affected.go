package route

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// routeChange is a prefix whose entry in a table is new, gone or another.
type routeChange struct {
	prefix   netip.Prefix
	old, now *entry // nil: there is none
}

// affectedHops are the next hops that the old routes gave for destinations which have
// another path now. Flows over all others keep theirs.
//
// A destination's path changes only if its old entry is gone or another, or if an added
// entry takes precedence over it. So for each changed prefix the old entry counts, and for
// an added prefix the entry that served the destinations until now.
type affectedHops struct {
	all    bool // of routing rules: any of a destination's paths may be another
	hops   map[hopKey]bool
	onLink map[uint32]*bart.Lite // by port + 1: destinations that are their own next hops
	seen   map[*entry]bool       // entries whose next hops are in hops
}

// affectedBy compares table old, before the changes, with table now, after them.
func affectedBy(old, now *Table, local, main []routeChange) *affectedHops {
	x := newAffectedHops()
	for i := range main {
		c := &main[i]
		was, is := servedBy(old.main, c.prefix, c.old), servedBy(now.main, c.prefix, c.now)
		if was != nil && (is == nil || !was.samePaths(is)) {
			x.add(was, c.prefix)
		}
	}
	for i := range local {
		c := &local[i]
		x.addAll(old.local, c)
		if c.old == nil { // it takes precedence over any prefix of main
			x.addAll(old.main, c)
			x.addUnder(old.main.Subnets(c.prefix), c.prefix)
		}
	}
	return x
}

// affectedUnderRules is affectedBy where routing rules stay and choose among tables: a prefix that a
// table has not served until now, any other may have.
func affectedUnderRules(old map[int]*bart.Table[*entry], changes map[int][]routeChange) *affectedHops {
	x := newAffectedHops()
	for table, list := range changes {
		for i := range list {
			c := &list[i]
			x.addAll(old[table], c)
			if c.old != nil && c.old.kind != NoRoute { // not a throw route
				continue
			}
			for other, routes := range old {
				if other == table {
					continue
				}
				x.addAll(routes, &routeChange{prefix: c.prefix})
				x.addUnder(routes.Subnets(c.prefix), c.prefix)
			}
		}
	}
	return x
}

func newAffectedHops() *affectedHops {
	return &affectedHops{
		hops: make(map[hopKey]bool), onLink: make(map[uint32]*bart.Lite), seen: make(map[*entry]bool),
	}
}

// servedBy returns the entry of a table for the destinations under prefix p that have no
// longer prefix: p's own, if it has one, or that of the longest prefix around it.
func servedBy(t *bart.Table[*entry], p netip.Prefix, own *entry) *entry {
	if own == nil {
		own, _ = t.LookupPrefix(p)
	}
	return own
}

// addAll adds the next hops by which a table served the changed prefix.
func (x *affectedHops) addAll(t *bart.Table[*entry], c *routeChange) {
	if was := servedBy(t, c.prefix, c.old); was != nil {
		x.add(was, c.prefix)
	}
}

// addUnder adds the next hops of longer prefixes under p.
func (x *affectedHops) addUnder(entries iter.Seq2[netip.Prefix, *entry], p netip.Prefix) {
	for _, e := range entries {
		x.add(e, p)
	}
}

// add adds the next hops of an entry for destinations under prefix p.
func (x *affectedHops) add(e *entry, p netip.Prefix) {
	if x.seen[e] {
		return
	}
	seen := true
	for i := range e.paths {
		path := &e.paths[i]
		if path.NextHop.IsValid() {
			x.hops[makeHopKey(path.Port, path.NextHop)] = true
		} else {
			seen = false
			x.addOnLink(path.Port, p)
		}
		if path.Kind == Host && path.LocalSource.IsValid() {
			x.hops[makeHopKey(path.Port, path.LocalSource)] = true // of mode dnat
		}
	}
	x.seen[e] = seen
}

func (x *affectedHops) addOnLink(port int, p netip.Prefix) {
	n := uint32(port) + 1
	if x.onLink[n] == nil {
		x.onLink[n] = new(bart.Lite)
	}
	x.onLink[n].Insert(p)
}

// has reports whether an adjacency is affected.
func (x *affectedHops) has(k hopKey) bool {
	if x.all {
		return true
	}
	on := x.onLink[k.port]
	return x.hops[k] || on != nil && on.Contains(k.nextHop())
}

// samePaths reports whether each destination and hash has the same next hop and MTU by both
// entries: flows need not know more of a path.
func (e *entry) samePaths(o *entry) bool {
	return e.kind == o.kind && slices.Equal(e.cumWeight, o.cumWeight) &&
		slices.EqualFunc(e.paths, o.paths, func(a, b Path) bool {
			return a.Kind == b.Kind && a.Port == b.Port && a.MTU == b.MTU && a.NextHop == b.NextHop &&
				(a.Kind != Host || a.LocalSource == b.LocalSource)
		})
}

// numbersOf returns by number which adjacencies are affected, nil if none is.
func (x *nextHops) numbersOf(of *affectedHops) (affected []bool) {
	for i := range x.adj {
		if k := x.adj[i].key(); k.port != 0 && of.has(k) {
			if affected == nil {
				affected = make([]bool, len(x.adj))
			}
			affected[i] = true
		}
	}
	return affected
}
