package prober

import (
	"cmp"
	"slices"
)

// reserve is the part of PerSecond that regular probes leave to first probes.
const reserve = 0.1

// lengthen makes the periods of groups longer that ask for more than their part, where all together ask
// for more than the node sends: those who ask for little get it, and the others share the rest evenly.
// Preconditions: s.mu is held.
func (s *Scheduler) lengthen() {
	for _, g := range s.groups {
		g.perSecond = 0
	}
	for _, t := range s.targets {
		t.group.perSecond += 1 / t.Check.Period.Seconds()
	}
	list := make([]*group, 0, len(s.groups))
	for name, g := range s.groups {
		if g.perSecond == 0 && g.inFlight == 0 && len(g.waiting) == 0 {
			delete(s.groups, name)
			continue
		}
		list = append(list, g)
	}
	slices.SortFunc(list, func(a, b *group) int { return cmp.Compare(a.perSecond, b.perSecond) })
	left := PerSecond * (1 - reserve)
	for i, g := range list {
		share := min(g.perSecond, left/float64(len(list)-i))
		left -= share
		g.stretched = 1
		if share > 0 {
			g.stretched = g.perSecond / share
		}
	}
}
