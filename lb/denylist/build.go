package denylist

import (
	"net/netip"
	"slices"
)

// point is a boundary: the lists that have the addresses from there to the next one.
type point struct {
	at    wide
	lists Mask
}

// New returns the Set without prefixes.
func New() *Set { return &Set{blocks: make([]Block, 2)} }

// With returns a Set in which a list has other prefixes, in any order, which may overlap. It sorts
// them. The error is that of alloc.
func (s *Set) With(list int, prefixes []netip.Prefix, alloc Alloc) (*Set, error) {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	first6, _ := slices.BinarySearchFunc(prefixes, 6, func(p netip.Prefix, _ int) int {
		if p.Addr().Is4() {
			return -1
		}
		return 0
	})
	bit := Mask(1) << list
	four := merge(s.points(per4), boundaries(prefixes[:first6]), bit)
	six := merge(s.points(per6), boundaries(prefixes[first6:]), bit)
	blocks, memory, err := alloc(2 + size(len(four), per4) + size(len(six), per6))
	if err != nil {
		return nil, err
	}
	out := &Set{blocks: blocks, prefixes: s.prefixes, memory: memory}
	out.prefixes[list] = len(prefixes)
	out.write(six, per6, out.write(four, per4, 2))
	return out, nil
}

// points are the boundaries of a family.
func (s *Set) points(per uint32) []point {
	head := &s.blocks[familyOf(per)]
	levels := head[wordLevels]
	if levels == 0 {
		return nil
	}
	out := make([]point, head[wordCount])
	leaves, masks := head[wordStarts+levels-1], head[wordStarts+levels]
	for i := range uint32(len(out)) {
		b := &s.blocks[leaves+i/per]
		if per == per4 {
			out[i].at.lo = uint64(b[i%per])
		} else {
			out[i].at = boundary6(b, i%per)
		}
		out[i].lists = Mask(s.blocks[masks+i/32][i/2%16] >> (i % 2 * 16))
	}
	return out
}

func familyOf(per uint32) int {
	if per == per4 {
		return 0
	}
	return 1
}

// merge replaces the list of a bit in points by that with the boundaries mine: of these each other one
// begins a range of the list. The result begins with address 0, or is empty.
func merge(points []point, mine []wide, bit Mask) []point {
	out := make([]point, 0, len(points)+len(mine)+1)
	add := func(p point) {
		switch n := len(out); {
		case n > 0 && out[n-1].at == p.at:
			out[n-1].lists = p.lists
			if n > 1 && out[n-2].lists == p.lists {
				out = out[:n-1]
			}
		case n == 0 || out[n-1].lists != p.lists:
			out = append(out, p)
		}
	}
	add(point{})
	var others, own Mask
	for i, j := 0, 0; i < len(points) || j < len(mine); {
		if j == len(mine) || i < len(points) && !mine[j].less(points[i].at) {
			others = points[i].lists &^ bit
			add(point{points[i].at, others | own})
			i++
			continue
		}
		own ^= bit
		add(point{mine[j], others | own})
		j++
	}
	if len(out) == 1 && out[0].lists == 0 {
		return nil
	}
	return out
}

// boundaries are the first address of each range of addresses that sorted prefixes of a family have,
// and the first address behind it, in order. The last range has no end if it reaches the last address.
func boundaries(sorted []netip.Prefix) (out []wide) {
	out = make([]wide, 0, 2*len(sorted))
	for _, p := range sorted {
		first, next, open := span(p)
		n := len(out)
		switch {
		case n%2 == 1: // the range before reaches the last address
			return out
		case n > 0 && !out[n-1].less(first): // it goes on
			if !open && !out[n-1].less(next) {
				continue
			}
			out = out[:n-1]
		default:
			out = append(out, first)
		}
		if !open {
			out = append(out, next)
		}
	}
	return out
}

// span is the first address of a prefix and the first behind it; open is true if there is none.
func span(p netip.Prefix) (first, next wide, open bool) {
	first = number(p.Addr())
	host := p.Addr().BitLen() - p.Bits()
	next = first
	if host >= 64 {
		next.hi += 1 << (host - 64)
		return first, next, next.hi == 0 || host == 128
	}
	if next.lo += 1 << host; next.lo < first.lo {
		next.hi++
		return first, next, next.hi == 0
	}
	return first, next, p.Addr().Is4() && next.lo>>32 != 0
}

// sizes are the number of blocks of each level, from the root on, and of the masks.
func sizes(n int, per uint32) (list []int) {
	if n == 0 {
		return nil
	}
	for blocks := n; ; {
		blocks = (blocks + int(per) - 1) / int(per)
		list = append(list, blocks)
		if blocks == 1 {
			break
		}
	}
	slices.Reverse(list)
	leaves := list[len(list)-1] * int(per)
	return append(list, (leaves+31)/32)
}

func size(n int, per uint32) (sum int) {
	for _, blocks := range sizes(n, per) {
		sum += blocks
	}
	return sum
}

// write writes a family to the blocks from the number free on, and returns the next one that is free.
// Behind the last boundary there are copies of it.
func (s *Set) write(points []point, per uint32, free int) int {
	list := sizes(len(points), per)
	if list == nil {
		return free
	}
	head := &s.blocks[familyOf(per)]
	levels := len(list) - 1
	head[wordLevels], head[wordCount] = uint32(levels), uint32(len(points))
	every := 1 // boundary of the leaves that the next of a level is
	for range levels - 1 {
		every *= int(per)
	}
	for level, blocks := range list {
		head[wordStarts+level] = uint32(free)
		to := s.blocks[free : free+blocks]
		free += blocks
		if level == levels {
			for i := range 32 * blocks {
				lists := points[min(i, len(points)-1)].lists
				to[i/32][i/2%16] |= uint32(lists) << (i % 2 * 16)
			}
			break
		}
		for i := range blocks * int(per) {
			at := points[min(i*every, len(points)-1)].at
			b := &to[i/int(per)]
			if per == per4 {
				b[i%per4] = uint32(at.lo)
			} else {
				copy(b[i%per6*4:], []uint32{uint32(at.hi >> 32), uint32(at.hi), uint32(at.lo >> 32), uint32(at.lo)})
			}
		}
		every /= int(per)
	}
	return free
}
