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
		for i := range tab.buckets {
			b := &tab.buckets[i]
			for j := range b.slot {
				state := []uint32{0, slotLive, slotPending}[rng.IntN(3)]
				h := rng.Uint64()
				if rng.IntN(2) == 0 {
					h = hashes[rng.IntN(len(hashes))]
				}
				b.slot[j].Store(slotWord(slotHead(h, 0), state, Ref(1+rng.IntN(1000))))
			}
			b.over.Store(int64(rng.IntN(2)))
		}
		got := make([]Ref, len(hashes))
		candidates(&tab.buckets[0], uint64(len(tab.buckets)), &hashes[0], &got[0], len(hashes))
		for i, h := range hashes {
			b := tab.bucketAt(h, 0)
			same := 0
			for j := range b.slot {
				if uint32(b.slot[j].Load()>>32) == slotHead(h, 0)|slotLive {
					same++
				}
			}
			if want := b.candidate(h); same < 2 && got[i] != want {
				t.Fatalf("hash %x, %d slots with its tag: %d, want %d", h, same, got[i], want)
			}
		}
	}
	clear(tab.buckets)
}
