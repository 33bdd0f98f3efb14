package addresspool

import (
	"iter"
	"net/netip"
	"slices"
)

// rangeSet is ranges of which no two overlap, each with a value. The zero value has none. To add one
// takes time in proportion to the logarithm of their number, and to maxPart.
type rangeSet[T any] struct {
	parts [][]ranged[T] // all in the order of addresses
}

type ranged[T any] struct {
	Range
	value T
}

// maxPart bounds what moves when a range is added.
const maxPart = 256

// find is the place of the first range that does not end before an address: that of the part, and in it.
func (s *rangeSet[T]) find(a netip.Addr) (part, at int) {
	before := func(r ranged[T], a netip.Addr) int { return r.To.Compare(a) }
	part, _ = slices.BinarySearchFunc(s.parts, a, func(p []ranged[T], a netip.Addr) int { return before(p[len(p)-1], a) })
	if part < len(s.parts) {
		at, _ = slices.BinarySearchFunc(s.parts[part], a, before)
	}
	return part, at
}

// add adds a range that overlaps none.
func (s *rangeSet[T]) add(r Range, value T) {
	part, at := s.find(r.From)
	if part == len(s.parts) { // behind all
		if part == 0 {
			s.parts = append(s.parts, nil)
		}
		part = len(s.parts) - 1
		at = len(s.parts[part])
	}
	p := slices.Insert(s.parts[part], at, ranged[T]{r, value})
	s.parts[part] = p
	if half := len(p) / 2; len(p) > maxPart {
		s.parts[part] = slices.Clip(p[:half])
		s.parts = slices.Insert(s.parts, part+1, slices.Clone(p[half:]))
	}
}

// overlapping are the ranges with addresses of r, in the order of addresses.
func (s *rangeSet[T]) overlapping(r Range) iter.Seq2[Range, T] {
	return func(yield func(Range, T) bool) {
		part, at := s.find(r.From)
		for ; part < len(s.parts); part, at = part+1, 0 {
			for _, o := range s.parts[part][at:] {
				if !o.overlaps(r) || !yield(o.Range, o.value) {
					return
				}
			}
		}
	}
}

// of is the value of the range that has the address.
func (s *rangeSet[T]) of(a netip.Addr) (value T, ok bool) {
	for _, v := range s.overlapping(Range{a, a}) {
		return v, true
	}
	return value, false
}
