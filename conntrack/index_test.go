package conntrack

import (
	"fmt"
	"math/bits"
	"testing"
)

// withKeys makes a heap table whose first entries have the given keys, and nothing
// in the index.
func withKeys(t testing.TB, buckets int, keys ...Key) *Table {
	t.Helper()
	tab := openHeap(t, Config{MaxFlows: 1024, Workers: 1, MaxEndpoints: 8})
	tab.index.buckets = tab.index.buckets[:buckets]
	for i, k := range keys {
		tab.entries[i].Key = k
	}
	return tab
}

// inserter is insert, one step at a time.
type inserter struct {
	ref   Ref
	step  int
	own   place
	other rival
	live  Ref // what it ended with
}

func (in *inserter) advance(tab *Table, h uint64) {
	switch in.step {
	case 0:
		in.own, _ = tab.index.place(h, in.ref)
	case 1:
		in.other = tab.index.contest(h, in.ref, in.own)
	case 2:
		if tab.index.settle(h, in.ref, in.own, in.other) {
			in.live = in.ref
		}
	}
	in.step++
}

// In every order in which three inserters of one key can take their steps, and
// wherever their slots lie, at most one goes live; a fourth that comes afterwards
// finds it or goes live itself.
func TestEveryInterleavingOfInsertersLeavesOneEntry(t *testing.T) {
	k := MakeKey(client(1), vip, ProtoTCP)
	tab := withKeys(t, 64, k, k, k, k, MakeKey(client(2), vip, ProtoTCP))
	for holes := range 1 << 3 { // which slots open up after the first inserter placed
		outcomes := 0
		interleave(nil, [3]int{3, 3, 3}, func(order []int) {
			clear(tab.index.buckets)
			h := tab.Hash(&k)
			// All but one slot of the first bucket are taken by others at first.
			b := tab.index.bucketAt(h, 0)
			for i := range b.slot {
				if i != 5 {
					b.setTag(uint32(i), tagOf(^h))
					b.slot[i].Store(5)
				}
			}
			ins := [3]inserter{{ref: 1}, {ref: 2}, {ref: 3}}
			for n, i := range order {
				ins[i].advance(tab, h)
				if n < 3 && holes>>n&1 != 0 {
					b.setTag(uint32(3-n), 0)
					b.slot[3-n].Store(0)
				}
			}
			var live []Ref
			for i := range ins {
				if ins[i].live != 0 {
					live = append(live, ins[i].live)
				}
			}
			found := tab.index.find(h, &k)
			if len(live) > 1 || len(live) == 1 && found != live[0] || len(live) == 0 && found != 0 {
				t.Fatalf("order %v: live %v, found %d", order, live, found)
			}
			late, result := tab.index.insert(h, 4, true)
			if found != 0 && (late != found || result != exists) || found == 0 && result != inserted {
				t.Fatalf("order %v: after %d a late inserter gets %d, %d", order, found, late, result)
			}
			tab.unlist(late)
			if tab.index.find(h, &k) != 0 {
				t.Fatalf("order %v: found after removal", order)
			}
			for i := range tab.index.buckets {
				if n := tab.index.buckets[i].over.Load(); n != 0 {
					t.Fatalf("order %v: bucket %d counts %d overflows", order, i, n)
				}
			}
			outcomes++
		})
		if outcomes != 1680 {
			t.Fatalf("%d orders tried, want 9!/(3!3!3!)", outcomes)
		}
	}
}

func interleave(order []int, left [3]int, f func([]int)) {
	if left == [3]int{} {
		f(order)
		return
	}
	for i := range left {
		if left[i] > 0 {
			next := left
			next[i]--
			interleave(append(order[:len(order):len(order)], i), next, f)
		}
	}
}

// A worker that stops in the middle of an insertion does not stop the others.
func TestAPendingSlotOfAStoppedWorkerIsOvercome(t *testing.T) {
	k := MakeKey(client(1), vip, ProtoTCP)
	tab := withKeys(t, 64, k, k)
	h := tab.Hash(&k)
	stopped := inserter{ref: 1}
	stopped.advance(tab, h)
	if r, result := tab.index.insert(h, 2, true); r != 2 || result != inserted {
		t.Fatalf("insert gives %d, %d", r, result)
	}
	stopped.advance(tab, h)
	stopped.advance(tab, h)
	if stopped.live != 0 || tab.index.find(h, &k) != 2 {
		t.Fatalf("the stopped one went live; found %d", tab.index.find(h, &k))
	}
}

// Buckets that overflow lead to the next probe, and forget it when the entry goes.
func TestAFullIndexFindsEveryKeyAndRefusesTheRest(t *testing.T) {
	var keys []Key
	for i := range 200 {
		keys = append(keys, MakeKey(client(i), vip, ProtoTCP), MakeKey(ap(fmt.Sprintf("[2001:db8::%x]:1", i)), vip6, ProtoUDP))
	}
	tab := withKeys(t, 32, keys...)
	var in []Ref
	for i := range keys {
		r, result := tab.index.insert(tab.Hash(&keys[i]), Ref(i+1), true)
		switch {
		case result == inserted && r == Ref(i+1):
			in = append(in, r)
		case result != noSlot:
			t.Fatalf("key %d: %d, %d", i, r, result)
		}
	}
	if len(in) < 32*slotsPerBucket*9/10 {
		t.Fatalf("only %d of %d slots are taken when the index refuses", len(in), 32*slotsPerBucket)
	}
	for n, r := range in {
		for _, q := range in[n:] {
			if tab.lookup(keys[q-1]) != q {
				t.Fatalf("key %d is lost after %d removals", q, n)
			}
		}
		tab.unlist(r)
		if tab.lookup(keys[r-1]) != 0 {
			t.Fatalf("key %d is found after its removal", r)
		}
	}
	for i := range tab.index.buckets {
		if tab.index.buckets[i] != (bucket{}) {
			t.Fatalf("bucket %d is not empty", i)
		}
	}
}

func TestLookupBatchAgreesWithLookup(t *testing.T) {
	var keys []Key
	for i := range 400 {
		keys = append(keys, MakeKey(client(i), vip, ProtoTCP))
	}
	tab := withKeys(t, 40, keys...)
	for i := 0; i < len(keys); i += 2 {
		tab.index.insert(tab.Hash(&keys[i]), Ref(i+1), true)
	}
	w := tab.Worker(0)
	for _, n := range []int{0, 1, 63, 64, 65, 200, 400} {
		h, out := make([]uint64, n), make([]Ref, n)
		for i := range h {
			h[i] = tab.Hash(&keys[i])
		}
		w.LookupBatch(h, keys[:n], out)
		for i := range out {
			if out[i] != w.Lookup(h[i], &keys[i]) {
				t.Fatalf("batch of %d: key %d is %d, alone %d", n, i, out[i], w.Lookup(h[i], &keys[i]))
			}
		}
	}
}

// Keys that differ in few bits, as those of one client or one range do, fill the
// buckets evenly.
func TestHashSpreadsStructuredKeys(t *testing.T) {
	tab := withKeys(t, 64)
	const buckets, n = 1 << 10, 1 << 16
	for name, key := range map[string]func(i int) Key{
		"ports of one client":   func(i int) Key { return Key{W: [5]uint64{1, 0, 0, 0, uint64(i) | 6<<32 | 4<<40}} },
		"clients of one prefix": func(i int) Key { return Key{W: [5]uint64{uint64(i) << 8, 0, 0, 0, 6<<32 | 4<<40}} },
		"addresses and ports":   func(i int) Key { return Key{W: [5]uint64{uint64(i>>8) << 24, 0, 0, 0, uint64(i&255)<<8 | 4<<40}} },
		"IPv6 hosts":            func(i int) Key { return Key{W: [5]uint64{9, uint64(i) << 48, 3, 4, 6<<32 | 6<<40}} },
		"IPv6 destinations":     func(i int) Key { return Key{W: [5]uint64{9, 1, 3, uint64(i), 6<<32 | 6<<40}} },
	} {
		t.Run(name, func(t *testing.T) {
			var high, low [buckets]int
			for i := range n {
				k := key(i)
				h := tab.Hash(&k)
				b, _ := bits.Mul64(h, buckets)
				high[b]++
				low[uint32(h)>>5%buckets]++
			}
			for part, counts := range map[string][buckets]int{"bucket": high, "tag": low} {
				var chi float64
				for _, c := range counts {
					d := float64(c - n/buckets)
					chi += d * d / (n / buckets)
				}
				// 1023 degrees of freedom: mean 1023, deviation 45.
				if chi < 700 || chi > 1350 {
					t.Errorf("%s bits: chi-square %.0f, want about %d", part, chi, buckets-1)
				}
			}
		})
	}
}
