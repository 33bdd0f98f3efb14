package conntrack

import (
	"math/bits"
	"sync/atomic"
)

const (
	slotsPerBucket = 12
	// maxProbes bounds the buckets in which a key may be. With loadFactor of the slots in
	// use one bucket in fifteen is full, and eight full ones in a row do not occur.
	maxProbes = 8
	// waitLoads is how often a pending slot of another worker is read again before
	// it is killed: about a microsecond, more than an insertion takes and far less
	// than a preempted worker would make us wait.
	waitLoads = 1 << 10
)

// A slot word is 0 if the slot is empty, and the Ref of a live entry.
const (
	// slotPending is set beside the Ref of an entry that is about to go live.
	slotPending = 1 << 31
	// slotDead is a pending slot that another worker killed, or one that is being
	// emptied. Its owner empties it.
	slotDead = slotPending
)

// bucket is one cache line of the index, in C:
//
//	struct { u8 tag[12]; u32 over; u32 slot[12]; }
//
// The slot word alone says whose the slot is. Its tag is 8 bits of the hash, never 0: the
// owner of the slot sets it just before the slot goes live, and clears it before the slot
// is empty again. Of a slot that is not live it says nothing.
type bucket struct {
	tag [slotsPerBucket / 4]atomic.Uint32 // four tags each, the first lowest
	// over counts the entries that were placed by a later probe because this
	// bucket was full: a look-up goes on only while it is not 0.
	over atomic.Int32
	slot [slotsPerBucket]atomic.Uint32
}

// index finds entries by their keys.
type index struct {
	buckets []bucket
	entries []Entry
}

// tagOf returns the tag of hash h: from bits that neither choose the bucket nor the
// step to the next one.
func tagOf(h uint64) uint8 { return max(uint8(h), 1) }

// tagAt returns the tag of slot i.
func (b *bucket) tagAt(i uint32) uint8 {
	return uint8(b.tag[i/4%uint32(len(b.tag))].Load() >> (i % 4 * 8))
}

// matches returns in bit 7 of each byte whether that one of four tags is tag. Above the
// first that is it may be wrong in saying so: the key tells.
func matches(four uint32, tag uint8) uint32 {
	const ones = 0x01010101
	x := four ^ uint32(tag)*ones
	return (x - ones) &^ x & (ones << 7)
}

// slotOf returns the slot of the lowest tag in m of the four of group g.
func slotOf(g, m uint32) uint32 { return (4*g + uint32(bits.TrailingZeros32(m))/8) % slotsPerBucket }

// place is a position in the probe sequence of a key.
type place struct{ probe, slot uint32 }

func (p place) before(o place) bool {
	return p.probe < o.probe || p.probe == o.probe && p.slot < o.slot
}

// bucketAt returns the bucket of a probe: the first from the upper bits of h, the
// others by steps of a width that the lower ones give. In an index of at least maxProbes
// buckets they all differ, so that the bucket of an entry says how many were passed over.
func (x *index) bucketAt(h uint64, probe uint32) *bucket {
	n := uint64(len(x.buckets))
	i := bucketIndex(h, n)
	if probe != 0 {
		i = (i + uint64(probe)*(1+bucketIndex(bits.RotateLeft64(h, 32), n/maxProbes))) % n
	}
	return &x.buckets[i]
}

// bucketIndex is h/2^64 * buckets.
func bucketIndex(h, buckets uint64) uint64 {
	i, _ := bits.Mul64(h, buckets)
	return i
}

// find returns the live entry of k, or 0.
func (x *index) find(h uint64, k *Key) Ref {
	for probe := uint32(0); probe < maxProbes; probe++ {
		b := x.bucketAt(h, probe)
		for m := tagged(b, uint32(tagOf(h))*0x01010101); m != 0; m &= m - 1 {
			w := b.slot[uint32(bits.TrailingZeros32(m))%slotsPerBucket].Load()
			if w-1 < slotPending-1 && x.entries[w-1].Key.equal(k) {
				return Ref(w)
			}
		}
		if b.over.Load() == 0 {
			return 0
		}
	}
	return 0
}

type insertResult uint8

const (
	inserted insertResult = iota
	exists                // another entry has the key
	noSlot                // no free slot in any probe
)

// insert links entry r under its key, whose hash is h. It returns exists and the live entry
// when the key is there already; with wait false a pending entry counts too and the Ref may
// be 0. Even if it did not return inserted, other workers may be reading the entry: it must
// be retired, not rewritten.
func (x *index) insert(h uint64, r Ref, wait bool) (Ref, insertResult) {
	for {
		own, ok := x.place(h, r)
		if !ok {
			return 0, noSlot
		}
		other := x.contest(h, r, own)
		if x.settle(h, r, own, other) {
			return r, inserted
		}
		switch {
		case other.pending != 0 && !wait:
			return 0, exists
		case other.pending != 0:
			x.await(x.bucketAt(h, other.at.probe), other.at.slot, other.pending)
		case other.ref != 0:
			return other.ref, exists
		}
		if live := x.find(h, &x.entries[r-1].Key); live != 0 {
			return live, exists
		}
	}
}

// rival is an entry with the same key that has precedence; ref 0 is none.
type rival struct {
	ref     Ref
	at      place
	pending uint32 // the slot word if pending, 0 if live
}

// place puts r as pending into the first free slot of the probe sequence.
func (x *index) place(h uint64, r Ref) (place, bool) {
	for probe := uint32(0); probe < maxProbes; probe++ {
		b := x.bucketAt(h, probe)
		for g := range uint32(len(b.tag)) {
			for m := matches(b.tag[g].Load(), 0); m != 0; m &= m - 1 {
				i := slotOf(g, m)
				if b.slot[i].Load() == 0 && b.slot[i].CompareAndSwap(0, slotPending|uint32(r)) {
					return place{probe, i}, true
				}
			}
		}
		b.over.Add(1) // before the slot of a later probe is taken
	}
	x.unpass(h, maxProbes)
	return place{}, false
}

// contest looks for a rival of r, which is pending at own. Pending ones at a higher
// position it kills.
func (x *index) contest(h uint64, r Ref, own place) rival {
	for probe := uint32(0); probe < maxProbes; probe++ {
		b := x.bucketAt(h, probe)
		m := contenders(b, uint32(tagOf(h))*0x01010101)
		if probe == own.probe {
			m &^= 1 << own.slot
		}
		for ; m != 0; m &= m - 1 {
			at := place{probe, uint32(bits.TrailingZeros32(m))}
			if other := x.confront(b, at, r, own); other.ref != 0 {
				return other
			}
		}
		if b.over.Load() == 0 {
			break
		}
	}
	return rival{}
}

// confront is contest for one slot.
func (x *index) confront(b *bucket, at place, r Ref, own place) rival {
	slot := &b.slot[at.slot%slotsPerBucket]
	for {
		w := slot.Load()
		n, pending := Ref(w&^slotPending), w >= slotPending
		switch {
		case n == 0 || !x.entries[n-1].Key.equal(&x.entries[r-1].Key):
			return rival{}
		case !pending:
			return rival{ref: n, at: at}
		case at.before(own):
			return rival{ref: n, at: at, pending: w}
		case slot.CompareAndSwap(w, slotDead):
			return rival{}
		}
		// It went live or withdrew: look again.
	}
}

// settle ends an attempt: without a rival r goes live, unless another has killed it
// meanwhile. It reports whether r is live; else its slot is empty again.
func (x *index) settle(h uint64, r Ref, own place, other rival) bool {
	if other.ref == 0 {
		b := x.bucketAt(h, own.probe)
		b.setTag(own.slot, tagOf(h))
		if b.slot[own.slot].CompareAndSwap(slotPending|uint32(r), uint32(r)) {
			return true
		}
	}
	x.clear(h, own)
	return false
}

// clear empties a slot, whose owner calls it: who placed an entry there that did not go
// live, or who has made it dead in remove.
func (x *index) clear(h uint64, at place) {
	b := x.bucketAt(h, at.probe)
	b.setTag(at.slot, 0)
	b.slot[at.slot].Store(0)
	x.unpass(h, at.probe)
}

// await waits a moment for a pending slot to go live or to be withdrawn, then
// kills it: its owner may not be running.
func (x *index) await(b *bucket, slot, word uint32) {
	for range waitLoads {
		if b.slot[slot].Load() != word {
			return
		}
	}
	b.slot[slot].CompareAndSwap(word, slotDead)
}

// unpass takes back that the buckets of the first n probes were passed over.
func (x *index) unpass(h uint64, n uint32) {
	for probe := uint32(0); probe < n; probe++ {
		x.bucketAt(h, probe).over.Add(-1)
	}
}

// linkedAt is where a live entry was seen in the index; ref 0 is nowhere.
type linkedAt struct {
	ref  Ref
	hash uint64
	at   place
}

// remove unlinks live entry r, whose hash is h. Supersede and the claimant of the connection may do so at
// the same time: the entry is removed by the successful compare-and-swap.
func (x *index) remove(h uint64, r Ref) { x.withdraw(x.locate(h, r)) }

// locate returns where live entry r is linked, whose hash is h.
func (x *index) locate(h uint64, r Ref) linkedAt {
	for probe := uint32(0); probe < maxProbes; probe++ {
		b := x.bucketAt(h, probe)
		for g := range uint32(len(b.tag)) {
			for m := matches(b.tag[g].Load(), tagOf(h)); m != 0; m &= m - 1 {
				if i := slotOf(g, m); b.slot[i].Load() == uint32(r) {
					return linkedAt{r, h, place{probe, i}}
				}
			}
		}
		if b.over.Load() == 0 {
			break
		}
	}
	return linkedAt{}
}

// withdraw empties a slot unless it holds another entry by now: r cannot be linked
// anew before the caller's next Quiesce. The slot is dead first: were it empty at once,
// another entry might get it, and that one's tag be cleared.
func (x *index) withdraw(l linkedAt) {
	r := uint32(l.ref)
	if r != 0 && x.bucketAt(l.hash, l.at.probe).slot[l.at.slot].CompareAndSwap(r, slotDead) {
		x.clear(l.hash, l.at)
	}
}
