package table

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// Maglev hashing: Eisenbud et al., "Maglev: A Fast and Reliable Software
// Network Load Balancer", NSDI 2016, section 3.4. Every endpoint has a
// permutation of the slots, (offset + j*skip) mod size for j = 0, 1, ...;
// endpoints take turns, each takes its first slot that is still free, until
// none is. Weights change the frequency of an endpoint's turns.

// ladder are the table sizes, primes about a factor of four apart. The size
// depends on the number of endpoints alone, so that nodes with the same
// endpoints agree; the steps are few because a change of size moves nearly every flow.
// There is a further step near the top: to fill a table costs some 15 ns per slot,
// and a Service of 5,000 endpoints must not pay for a million of them at every change.
var ladder = [...]int{1021, 4093, 16381, 65521, 262139, 524287, 1048573}

// slotsPerEndpoint is the least number of slots that an endpoint has, below the top of
// the ladder: with 64 the shares of equal endpoints differ by at most 1/64.
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

const (
	// batchPart is the part of the free slots that a batch may take: 1/16.
	batchPart = 16
	// smallBatch is too small to gain from seeking ahead.
	smallBatch = 64
	// farPart is the part of all slots that are free when the distance to the next free
	// slot is large: 1/32.
	farPart = 32
)

// permutation is the position of an endpoint in its permutation of the slots.
type permutation struct {
	at   uint32 // the next slot that it would take
	skip uint32 // from 1 to size-1
}

// startPermutation is the beginning of the endpoint's permutation.
func startPermutation(e *EndpointEntry, size int) permutation {
	h1, h2 := endpointHash(e)
	offset, _ := bits.Mul64(h1, uint64(size))
	skip, _ := bits.Mul64(h2, uint64(size-1))
	return permutation{at: uint32(offset), skip: uint32(skip) + 1}
}

// step is (at+skip) mod size. The sign of at+skip-size, spread over the word,
// says whether size has to be added again: a jump would be mispredicted every other time.
func step(at, skip, size uint32) uint32 {
	d := int32(at + skip - size)
	return uint32(d + d>>31&int32(size))
}

// population is the filling of a table; the memory is reused for the next.
//
// The paper's loop, in which an endpoint at a time walks to the next free slot, spends
// its time on mispredicted branches, and half of its steps on the last
// thousandth of the slots. So turns are taken in batches, with the same result:
//
//   - seek moves all of a batch to their next free slots, as if alone, without a branch on the slot's state;
//   - commit takes the slots in the order of turns, and lets an endpoint walk on whose
//     slot one before it in the batch has taken. Batches are small
//     enough, against the slots still free, for this to be rare;
//   - the last few free slots are found from the other side, see takeNearest.
type population struct {
	size    uint32
	shift   uint8
	slots   []byte
	perms   []permutation
	taken   bitmap
	free    []uint32 // the last free slots
	factors []uint64 // see takeNearest; 0: not known

	equal   bool     // all weights are the same
	price   uint64   // of a slot
	weights []uint64 // that an endpoint gets in every round
	credits []uint64 // credit of each; in the present round, from next on, including the weight
	next    int      // the endpoint whose turn it is

	turns, rest []uint32 // a batch, and those of it that still seek
}

// build is a new Maglev table for at least two endpoints.
func (p *population) build(endpoints []EndpointEntry) (slots []byte, size uint64, shift uint8) {
	return p.buildSize(endpoints, tableSize(len(endpoints)))
}

// buildSize is build with m slots, a prime from len(endpoints) to the bits of a bitmap.
func (p *population) buildSize(endpoints []EndpointEntry, m int) (slots []byte, size uint64, shift uint8) {
	n := len(endpoints)
	p.size, p.shift = uint32(m), slotShift(n)
	p.slots = make([]byte, m<<p.shift+slotPadding)
	clear(p.taken[:(m+63)/64])
	p.perms, p.turns, p.rest = p.perms[:0], zeroed(p.turns, n), zeroed(p.rest, n)
	for i := range endpoints {
		p.perms = append(p.perms, startPermutation(&endpoints[i], m))
	}
	p.factors = zeroed(p.factors, n)
	p.weigh(endpoints)
	p.populate()
	slots, p.slots = p.slots, nil
	return slots, uint64(m), p.shift
}

// zeroed is n zeros, in the memory of s if that is large enough.
func zeroed[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// burst bounds the time for very unequal weights: a round gives out at least 1/burst as
// many slots as there are endpoints.
const burst = 4

// weigh prepares the order of turns. In each round every endpoint adds the weight to the
// credit, and takes a slot for each price that it can pay. The price is the heaviest
// weight, so that no endpoint has two in a row, but at most
// burst times the mean. Equal weights are the paper's rounds.
func (p *population) weigh(endpoints []EndpointEntry) {
	n := uint64(len(endpoints))
	var heaviest, total uint64
	p.weights = p.weights[:0]
	for i := range endpoints {
		w := uint64(endpoints[i].Weight)
		p.weights = append(p.weights, w*n) // in units of 1/n, for the mean's sake
		heaviest, total = max(heaviest, w), total+w
	}
	p.price = min(heaviest*n, burst*total)
	p.equal = heaviest*n == total
	p.credits = append(p.credits[:0], p.weights...)
	p.next = 0
}

// batch is the endpoints that take the next slots, in the order of their turns, at most limit.
func (p *population) batch(limit int) []uint32 {
	turns := p.turns[:0]
	for limit = min(limit, len(p.perms)); len(turns) < limit; {
		if p.equal || p.credits[p.next] >= p.price {
			turns = append(turns, uint32(p.next))
			p.credits[p.next] -= p.price
			if !p.equal {
				continue // it may have a second turn
			}
		}
		p.credits[p.next] += p.weights[p.next]
		if p.next++; p.next == len(p.perms) {
			p.next = 0
		}
	}
	return turns
}

// populate fills the table.
func (p *population) populate() {
	left, few := int(p.size), p.fewFree()
	for left > few {
		turns := p.batch(min(left-few, max(left/batchPart, 1)))
		switch {
		case left < int(p.size)/farPart:
			for _, i := range turns {
				p.seekFar(&p.perms[i])
			}
		case len(turns) >= smallBatch:
			p.seek(turns)
		}
		p.commit(turns)
		left -= len(turns)
	}
	for p.listFree(); left > 0; {
		turns := p.batch(left)
		for _, i := range turns {
			p.takeNearest(i)
		}
		left -= len(turns)
	}
}

// bitmap has a bit per slot, of the largest table. The size is a power of two for indices
// without a bounds check.
type bitmap [1 << 14]uint64

// bit is 1 if the slot is taken.
func (b *bitmap) bit(slot uint32) uint32 { return uint32(b[slot>>6%uint32(len(b))]>>(slot%64)) & 1 }

func (b *bitmap) take(slot uint32) { b[slot>>6%uint32(len(b))] |= 1 << (slot % 64) }

// seek moves the permutations to their next free slots.
func (p *population) seek(turns []uint32) {
	perms, size, taken := p.perms, p.size, &p.taken
	for len(turns) > 0 {
		n, rest := uint32(0), p.rest[:len(turns)]
		for _, i := range turns {
			perm := &perms[i]
			busy := taken.bit(perm.at)
			perm.at = step(perm.at, perm.skip&-busy, size)
			rest[n] = i
			n += busy
		}
		turns = rest[:n]
	}
}

// commit lets each take the first free slot, in the order of turns.
func (p *population) commit(turns []uint32) {
	perms, size, taken, slots, shift := p.perms, p.size, &p.taken, p.slots, p.shift
	for _, i := range turns {
		perm := &perms[i]
		at, skip := perm.at, perm.skip
		for taken.bit(at) != 0 {
			at = step(at, skip, size)
		}
		taken.take(at)
		perm.at = step(at, skip, size)
		setSlot(slots, at, shift, i)
	}
}

// seekFar moves a permutation to at most three steps before the next free slot. A step
// waits for the previous step, so over a long distance four walks with four times the skip
// go side by side.
func (p *population) seekFar(perm *permutation) {
	size, taken := p.size, &p.taken
	at0, skip := perm.at, perm.skip
	at1 := step(at0, skip, size)
	at2 := step(at1, skip, size)
	at3 := step(at2, skip, size)
	skip4 := step(skip, skip, size)
	skip4 = step(skip4, skip4, size)
	for taken.bit(at0)&taken.bit(at1)&taken.bit(at2)&taken.bit(at3) != 0 {
		at0, at1 = step(at0, skip4, size), step(at1, skip4, size)
		at2, at3 = step(at2, skip4, size), step(at3, skip4, size)
	}
	perm.at = at0
}

// setSlot writes a slot of 1<<shift bytes.
func setSlot(slots []byte, slot uint32, shift uint8, i uint32) {
	switch at := uint(slot) << (shift & 3); shift {
	case 0:
		slots[at] = byte(i)
	case 1:
		binary.LittleEndian.PutUint16(slots[at:at+2], uint16(i))
	default:
		binary.LittleEndian.PutUint32(slots[at:at+4], i)
	}
}

// fewFree is the number of free slots from which looking at all of them is
// cheaper than walking to the next: about the square root of the size.
func (p *population) fewFree() int {
	return 1 << (bits.Len32(p.size) / 2)
}

// listFree lists the free slots.
func (p *population) listFree() {
	p.free = p.free[:0]
	for i, word := range p.taken[:p.size/64+1] {
		for free := ^word; free != 0; free &= free - 1 {
			if slot := uint32(i*64 + bits.TrailingZeros64(free)); slot < p.size {
				p.free = append(p.free, slot)
			}
		}
	}
}

// takeNearest takes the free slot to which the permutation comes first. Slot s
// is (s-at)/skip steps away, modulo the prime size. That number, as a fraction
// of size in 64 bits, is a multiplication that overflows: fractions of different
// steps are 2^44 apart, while the rounding of the factor, multiplied by s-at, comes to 2^20.
func (p *population) takeNearest(i uint32) {
	perm := &p.perms[i]
	factor := p.factors[i]
	if factor == 0 { // inverse/size, as a fraction of 2^64
		factor, _ = bits.Div64(uint64(invert(perm.skip, p.size)), 0, uint64(p.size))
		p.factors[i] = factor
	}
	nearest, best := 0, ^uint64(0)
	at := uint64(perm.at)
	for j, slot := range p.free {
		if x := (uint64(slot) - at) * factor; x < best {
			nearest, best = j, x
		}
	}
	slot, last := p.free[nearest], len(p.free)-1
	p.free[nearest] = p.free[last]
	p.free = p.free[:last]
	setSlot(p.slots, slot, p.shift, i)
	perm.at = step(slot, perm.skip, p.size)
}

// invert is the inverse of a modulo the prime m, by Euclid's extended algorithm.
func invert(a, m uint32) uint32 {
	r0, r1 := m, a
	t0, t1 := int32(0), int32(1)
	for r1 != 0 {
		q := r0 / r1
		r0, r1 = r1, r0-q*r1
		t0, t1 = t1, t0-int32(q)*t1
	}
	if t0 < 0 {
		t0 += int32(m)
	}
	return uint32(t0)
}
