package conntrack

import (
	"math/bits"
	"sync/atomic"
)

const (
	slotsPerBucket = 7
	// maxProbes bounds the buckets in which a key may be. With buckets half full
	// at the most one in forty is full, and eight full ones in a row do not occur.
	maxProbes = 8
	// waitLoads is how often a pending slot of another worker is read again before
	// it is killed: about a microsecond, more than an insertion takes and far less
	// than a preempted worker would make us wait.
	waitLoads = 1 << 10
)

// Slot states, in the two lowest bits of a slot's upper half.
const (
	slotPending = 1
	slotLive    = 2
	slotDead    = 3 // a pending slot that another worker killed; its owner clears it
)

// bucket is one cache line of the index. A slot word is, from the top: 27 bits of
// tag, 3 bits of probe number, 2 bits of state, 32 bits of Ref. 0 is empty.
type bucket struct {
	slot [slotsPerBucket]atomic.Uint64
	// over counts the entries that were placed by a later probe because this
	// bucket was full: a look-up goes on only while it is not 0.
	over atomic.Int64
}

// place is a position in the probe sequence of a key.
type place struct{ probe, slot uint32 }

func (p place) before(o place) bool {
	return p.probe < o.probe || p.probe == o.probe && p.slot < o.slot
}

// probeMultiplier spreads the second and later probes of keys that share a first
// bucket (odd constants).
var probeMultiplier = [maxProbes]uint64{
	1, 0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
	0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53, 0xd6e8feb86659fd93, 0xa0761d6478bd642f,
}

// bucketAt returns the bucket of a probe: the first from the upper bits of h, the
// others from the lower ones.
func (t *Table) bucketAt(h uint64, probe uint32) *bucket {
	if probe != 0 {
		h = bits.RotateLeft64(h, 32) * probeMultiplier[probe]
	}
	return &t.buckets[bucketIndex(h, uint64(len(t.buckets)))]
}

// bucketIndex is h/2^64 * buckets.
func bucketIndex(h, buckets uint64) uint64 {
	i, _ := bits.Mul64(h, buckets)
	return i
}

// slotHead returns the upper half of a slot word without its state.
func slotHead(h uint64, probe uint32) uint32 { return uint32(h)&^31 | probe<<2 }

func slotWord(head, state uint32, r Ref) uint64 {
	return uint64(head|state)<<32 | uint64(r)
}

// find returns the live entry of k, or 0.
func (t *Table) find(h uint64, k *Key) Ref {
	for probe := uint32(0); probe < maxProbes; probe++ {
		b := t.bucketAt(h, probe)
		want := slotHead(h, probe) | slotLive
		for i := range b.slot {
			w := b.slot[i].Load()
			if uint32(w>>32) == want && t.entries[uint32(w)-1].Key.equal(k) {
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

// insert links entry r under its key, whose hash is h. It returns exists and the
// live entry when the key is there already; with wait false a pending one counts
// too and the Ref may be 0. If it did not return inserted other workers may all
// the same be reading the entry: it must be retired, not rewritten.
func (t *Table) insert(h uint64, r Ref, wait bool) (Ref, insertResult) {
	for {
		own, ok := t.place(h, r)
		if !ok {
			return 0, noSlot
		}
		other := t.contest(h, r, own)
		if t.settle(h, r, own, other) {
			return r, inserted
		}
		switch {
		case other.pending != 0 && !wait:
			return 0, exists
		case other.pending != 0:
			t.await(t.bucketAt(h, other.at.probe), other.at.slot, other.pending)
		case other.ref != 0:
			return other.ref, exists
		}
		if live := t.find(h, &t.entries[r-1].Key); live != 0 {
			return live, exists
		}
	}
}

// rival is an entry with the same key that has precedence; ref 0 is none.
type rival struct {
	ref     Ref
	at      place
	pending uint64 // its slot word if it is pending, 0 if it is live
}

// place puts r as pending into the first free slot of its probe sequence.
func (t *Table) place(h uint64, r Ref) (place, bool) {
	for probe := uint32(0); probe < maxProbes; probe++ {
		b := t.bucketAt(h, probe)
		word := slotWord(slotHead(h, probe), slotPending, r)
		for i := range b.slot {
			if b.slot[i].Load() == 0 && b.slot[i].CompareAndSwap(0, word) {
				return place{probe, uint32(i)}, true
			}
		}
		b.over.Add(1) // before the slot of a later probe is taken
	}
	t.unpass(h, maxProbes)
	return place{}, false
}

// contest looks for a rival of r, which is pending at own. Pending ones at a higher
// position it kills.
func (t *Table) contest(h uint64, r Ref, own place) rival {
	key := &t.entries[r-1].Key
	for probe := uint32(0); probe < maxProbes; probe++ {
		b := t.bucketAt(h, probe)
		head := slotHead(h, probe)
		for i := uint32(0); i < slotsPerBucket; i++ {
			for {
				w := b.slot[i].Load()
				if uint32(w>>32)&^3 != head || Ref(w) == r || w == 0 || !t.entries[uint32(w)-1].Key.equal(key) {
					break
				}
				at := place{probe, i}
				switch state := uint32(w>>32) & 3; {
				case state == slotLive:
					return rival{ref: Ref(w), at: at}
				case state == slotPending && at.before(own):
					return rival{ref: Ref(w), at: at, pending: w}
				case state == slotPending && !b.slot[i].CompareAndSwap(w, slotWord(head, slotDead, Ref(w))):
					continue // it went live or withdrew: look again
				}
				break
			}
		}
		if b.over.Load() == 0 {
			break
		}
	}
	return rival{}
}

// settle ends an attempt: without a rival r goes live, unless another has killed it
// meanwhile. It reports whether r is live; else its slot is empty again.
func (t *Table) settle(h uint64, r Ref, own place, other rival) bool {
	head := slotHead(h, own.probe)
	slot := &t.bucketAt(h, own.probe).slot[own.slot]
	if other.ref == 0 && slot.CompareAndSwap(slotWord(head, slotPending, r), slotWord(head, slotLive, r)) {
		return true
	}
	slot.Store(0)
	t.unpass(h, own.probe)
	return false
}

// await waits a moment for a pending slot to go live or to be withdrawn, then
// kills it: its owner may not be running.
func (t *Table) await(b *bucket, slot uint32, word uint64) {
	for range waitLoads {
		if b.slot[slot].Load() != word {
			return
		}
	}
	b.slot[slot].CompareAndSwap(word, word|slotDead<<32)
}

// unpass takes back that the buckets of the first n probes were passed over.
func (t *Table) unpass(h uint64, n uint32) {
	for probe := uint32(0); probe < n; probe++ {
		t.bucketAt(h, probe).over.Add(-1)
	}
}

// linkedAt is where a live entry was seen in the index; slot nil is nowhere.
type linkedAt struct {
	slot  *atomic.Uint64
	word  uint64
	hash  uint64
	probe uint32
}

// remove unlinks live entry r. Supersede and the claimant of the connection may do
// so at the same time: the one whose compare-and-swap succeeds takes the entry out.
func (t *Table) remove(r Ref) { t.withdraw(t.locate(r)) }

// locate returns where live entry r is linked.
func (t *Table) locate(r Ref) linkedAt {
	h := t.Hash(&t.entries[r-1].Key)
	for probe := uint32(0); probe < maxProbes; probe++ {
		b := t.bucketAt(h, probe)
		word := slotWord(slotHead(h, probe), slotLive, r)
		for i := range b.slot {
			if b.slot[i].Load() == word {
				return linkedAt{&b.slot[i], word, h, probe}
			}
		}
		if b.over.Load() == 0 {
			break
		}
	}
	return linkedAt{}
}

// withdraw empties a slot unless it holds another entry by now: r cannot be linked
// anew before the caller's next Quiesce.
func (t *Table) withdraw(at linkedAt) {
	if at.slot != nil && at.slot.CompareAndSwap(at.word, 0) {
		t.unpass(at.hash, at.probe)
	}
}
