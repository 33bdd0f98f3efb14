// Package denylist has the clients that may begin no flow: up to MaxLists lists of prefixes,
// merged into a Set in flat memory, which a worker and a BPF program search alike.
package denylist

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"runtime"
)

const (
	// MaxLists is the number of lists of a Set.
	MaxLists = 16
	// MaxPrefixes is the number of prefixes of a list.
	MaxPrefixes = 1 << 20
)

// Mask has a bit for each list, that of the first list lowest.
type Mask uint16

// Block is a cache line, the element of a Set's memory.
type Block = [16]uint32

// Set is an immutable set of lists. For each family it has the boundaries in order: the first
// address from which on other lists apply, and these lists. The boundaries are the leaves of a
// tree of blocks. The inner blocks repeat the first boundary of each block below, so that a search
// reads a block for each level.
//
// Block 0 says where those of IPv4 are, block 1 those of IPv6: word 0 is the number of levels,
// word 1 the number of boundaries, the next words are the first block of each level from the root
// on, and that of the masks, two in a word. A boundary is a word of IPv4, four of IPv6, the most
// significant first. Words 12 and 13 of block 0 are the BPF program's. A prefix takes at most 13 bytes in IPv4, 47 in IPv6.
type Set struct {
	blocks   []Block
	prefixes [MaxLists]int
	memory   any // that of the blocks, as long as the Set is used
}

// Alloc returns memory for a Set: n blocks of zeros, and a value to keep alive with them.
type Alloc func(n int) (blocks []Block, memory any, err error)

// Heap is the Alloc of the process's own memory.
func Heap(n int) ([]Block, any, error) { return make([]Block, n), nil, nil }

// Blocks is the memory of the Set. It must not be written to.
func (s *Set) Blocks() []Block { return s.blocks }

// Memory is the value that came with the blocks.
func (s *Set) Memory() any { return s.memory }

// Len is the number of prefixes that a list was made of.
func (s *Set) Len(list int) int { return s.prefixes[list] }

// Words of the blocks 0 and 1.
const (
	wordLevels = 0
	wordCount  = 1
	wordStarts = 2
)

// wide is an address as a number. An IPv4 address is in lo.
type wide struct{ hi, lo uint64 }

func (a wide) less(b wide) bool { return a.hi < b.hi || a.hi == b.hi && a.lo < b.lo }

func number(a netip.Addr) wide {
	if a.Is4() {
		b := a.As4()
		return wide{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return wide{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}
}

// Find returns the number of the first list that is in lists and has an address, -1 if none has.
func (s *Set) Find(a netip.Addr, lists Mask) int {
	if found := s.lists(a) & lists; found != 0 {
		return bits.TrailingZeros16(uint16(found))
	}
	return -1
}

// lists are the lists that have an address.
func (s *Set) lists(a netip.Addr) (found Mask) {
	if a.Is4() {
		found = s.find(&s.blocks[0], wide{lo: number(a).lo}, per4)
	} else {
		found = s.find(&s.blocks[1], number(a), per6)
	}
	runtime.KeepAlive(s)
	return found
}

// Boundaries of a block.
const (
	per4 = 16
	per6 = 4
)

// find searches a family: head is the block of it, per the boundaries of a block. The BPF program
// has the same search (lb/steer/bpf/deny.h).
func (s *Set) find(head *Block, a wide, per uint32) Mask {
	levels, at := head[wordLevels], uint32(0)
	if levels == 0 {
		return 0
	}
	for level := range levels {
		starts := head[wordStarts+level:]
		if level > 0 { // behind the last boundary inner blocks have copies of it
			at = min(at, starts[1]-starts[0]-1)
		}
		at = at*per + last(&s.blocks[starts[0]+at], a, per)
	}
	word := s.blocks[head[wordStarts+levels]+at/32][at/2%16]
	return Mask(word >> (at % 2 * 16))
}

// last is the number of the last boundary of a block that is not behind an address, 0 if all are.
func last(b *Block, a wide, per uint32) (n uint32) {
	if per == per4 {
		for n = 1; n < per4 && b[n] <= uint32(a.lo); n++ {
		}
		return n - 1
	}
	for n = 1; n < per6 && !a.less(boundary6(b, n)); n++ {
	}
	return n - 1
}

// boundary6 is boundary n of a block of IPv6.
func boundary6(b *Block, n uint32) wide {
	w := b[4*n : 4*n+4]
	return wide{uint64(w[0])<<32 | uint64(w[1]), uint64(w[2])<<32 | uint64(w[3])}
}
