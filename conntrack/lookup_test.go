package conntrack

import (
	"math/rand/v2"
	"testing"
)

// The candidates of a batch are those that one look at each bucket finds.
func TestCandidatesAreThoseOfTheBuckets(t *testing.T) {
	tab := withKeys(t, 64)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		hashes := make([]uint64, 1+rng.IntN(64))
		for i := range hashes {
			hashes[i] = rng.Uint64()
		}
		for i := range tab.index.buckets {
			b := &tab.index.buckets[i]
			for j := range b.slot {
				h := rng.Uint64()
				if rng.IntN(2) == 0 {
					h = hashes[rng.IntN(len(hashes))]
				}
				state := []uint32{0, 0, slotPending}[rng.IntN(3)]
				b.setTag(uint32(j), tagOf(h))
				b.slot[j].Store(state | uint32(1+rng.IntN(1000)))
				if rng.IntN(4) == 0 {
					b.setTag(uint32(j), 0)
					b.slot[j].Store(0)
				}
			}
			b.over.Store(int32(rng.IntN(2)))
		}
		got := make([]Ref, len(hashes))
		candidates(&tab.index.buckets[0], uint64(len(tab.index.buckets)), &hashes[0], &got[0], len(hashes))
		for i, h := range hashes {
			b := tab.index.bucketAt(h, 0)
			if want := b.candidate(h); got[i] != want {
				t.Fatalf("hash %x: %d, want %d", h, got[i], want)
			}
			first := Ref(0)
			for j := slotsPerBucket - 1; j >= 0; j-- {
				if b.tagAt(uint32(j)) == tagOf(h) {
					first = Ref(b.slot[j].Load())
				}
			}
			if first == 0 && b.over.Load() != 0 {
				first = unresolved
			}
			if got[i] != first {
				t.Fatalf("hash %x: %d, the first slot with its tag has %d", h, got[i], first)
			}
		}
	}
	clear(tab.index.buckets)
}
