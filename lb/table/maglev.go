package table

import (
	"encoding/binary"
	"math/bits"
)

// Maglev hashing: Eisenbud et al., "Maglev: A Fast and Reliable Software
// Network Load Balancer", NSDI 2016, section 3.4. Every endpoint has a
// permutation of the slots, (offset + j*skip) mod size for j = 0, 1, ...;
// endpoints take turns, each takes its first slot that is still free, until
// none is. Weights change how often an endpoint has its turn.

// ladder are the table sizes, primes about a factor of four apart. The size
// depends on the number of endpoints alone, so that nodes with the same
// endpoints agree; the steps are few because a change of size moves nearly every flow.
var ladder = [...]int{1021, 4093, 16381, 65521, 262139, 1048573}

// slotsPerEndpoint is the least number of slots that an endpoint has, below the top of the ladder:
// with 64 the shares of equal endpoints differ by at most 1/64.
const slotsPerEndpoint = 64

// tableSize is the number of slots for n endpoints.
func tableSize(n int) int {
	for _, size := range ladder {
		if size >= n*slotsPerEndpoint {
			return size
		}
	}
	return ladder[len(ladder)-1]
}

// slotShift is log2 of the bytes of a slot that holds numbers below n.
func slotShift(n int) uint8 {
	switch {
	case n <= 1<<8:
		return 0
	case n <= 1<<16:
		return 1
	}
	return 2
}

// slotPadding lets a four-byte load begin at any slot.
const slotPadding = 3

// permutation is where an endpoint stands in its permutation of the slots.
type permutation struct {
	at     uint32 // the next slot it would take
	skip   uint32 // from 1 to size-1
	weight uint32
	credit uint64 // weight saved up for the next turn
}

// startPermutation is the beginning of the endpoint's permutation.
func startPermutation(e *EndpointEntry, size int) permutation {
	h1, h2 := endpointHash(e)
	offset, _ := bits.Mul64(h1, uint64(size))
	skip, _ := bits.Mul64(h2, uint64(size-1))
	return permutation{at: uint32(offset), skip: uint32(skip) + 1, weight: e.Weight}
}

// population is the filling of one table; its memory is used again for the next.
type population struct {
	perms []permutation
	taken []uint64 // one bit per slot
	free  []uint32 // the last free slots
	slots []byte
	size  uint32
	shift uint8
}

// build is a new Maglev table for at least two endpoints.
func (p *population) build(endpoints []EndpointEntry) (slots []byte, size uint64, shift uint8) {
	m := tableSize(len(endpoints))
	p.size, p.shift = uint32(m), slotShift(len(endpoints))
	p.slots = make([]byte, m<<p.shift+slotPadding)
	p.perms = p.perms[:0]
	var heaviest uint32
	for i := range endpoints {
		p.perms = append(p.perms, startPermutation(&endpoints[i], m))
		heaviest = max(heaviest, endpoints[i].Weight)
	}
	p.taken = append(p.taken[:0], make([]uint64, (m+63)/64)...)
	p.populate(uint64(heaviest))
	slots, p.slots = p.slots, nil
	return slots, uint64(m), p.shift
}

// populate fills the table. In each round the heaviest endpoints take one slot,
// the others one whenever they have saved up as much weight as the heaviest has.
//
// A walk to the next free slot costs size/free steps, half of all steps for the
// last 1/1000 of the slots; those are found from the other side, see [population.takeNearest].
func (p *population) populate(heaviest uint64) {
	left, few := p.size, p.fewFree()
	for {
		for i := range p.perms {
			perm := &p.perms[i]
			perm.credit += uint64(perm.weight)
			if perm.credit < heaviest {
				continue
			}
			perm.credit -= heaviest
			if left > few {
				p.takeNext(perm, i)
			} else {
				p.takeNearest(perm, i)
			}
			if left--; left == 0 {
				return
			}
			if left == few {
				p.listFree()
			}
		}
	}
}

// takeNext walks the permutation to its first free slot.
func (p *population) takeNext(perm *permutation, i int) {
	at, skip, size := perm.at, perm.skip, p.size
	for p.taken[at>>6]>>(at&63)&1 != 0 {
		if at += skip; at >= size {
			at -= size
		}
	}
	p.taken[at>>6] |= 1 << (at & 63)
	p.set(at, i)
	if at += skip; at >= size {
		at -= size
	}
	perm.at = at
}

func (p *population) set(slot uint32, i int) {
	switch p.shift {
	case 0:
		p.slots[slot] = byte(i)
	case 1:
		binary.LittleEndian.PutUint16(p.slots[slot*2:], uint16(i))
	default:
		binary.LittleEndian.PutUint32(p.slots[slot*4:], uint32(i))
	}
}

// fewFree is the number of free slots from which looking at all of them is
// cheaper than walking to the next one.
func (p *population) fewFree() uint32 {
	if p.size < 1<<12 {
		return 0
	}
	return 1 << (bits.Len32(p.size)/2 - 1)
}

func (p *population) listFree() {
	p.free = p.free[:0]
	for slot := range p.size {
		if p.taken[slot>>6]>>(slot&63)&1 == 0 {
			p.free = append(p.free, slot)
		}
	}
}

// takeNearest takes the free slot to which the permutation comes first: slot s
// is (s-at)/skip steps away, modulo the prime size.
func (p *population) takeNearest(perm *permutation, i int) {
	size := uint64(p.size)
	inverse := invert(uint64(perm.skip), size)
	reciprocal := ^uint64(0) / size
	nearest, best := 0, size
	for j, slot := range p.free {
		d := uint64(slot) + size - uint64(perm.at)
		// d*inverse mod size, by Barrett: the estimated quotient is at most one too small.
		x := d * inverse
		q, _ := bits.Mul64(x, reciprocal)
		if x -= q * size; x >= size {
			x -= size
		}
		if x < best {
			nearest, best = j, x
		}
	}
	slot := p.free[nearest]
	last := len(p.free) - 1
	p.free[nearest] = p.free[last]
	p.free = p.free[:last]
	p.set(slot, i)
	if perm.at = slot + perm.skip; perm.at >= p.size {
		perm.at -= p.size
	}
}

// invert is the inverse of a modulo the prime m, by Euclid's extended algorithm.
func invert(a, m uint64) uint64 {
	r0, r1 := int64(m), int64(a)
	t0, t1 := int64(0), int64(1)
	for r1 != 0 {
		q := r0 / r1
		r0, r1 = r1, r0-q*r1
		t0, t1 = t1, t0-q*t1
	}
	if t0 < 0 {
		t0 += int64(m)
	}
	return uint64(t0)
}
