package table

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// testEntries makes endpoints 10.0.0.1.. with the weights.
func testEntries(weights ...uint32) []EndpointEntry {
	out := make([]EndpointEntry, len(weights))
	for i, w := range weights {
		ap := netip.AddrPortFrom(v4(1+i), 8080)
		w0, w1, family := addrWords(ap.Addr())
		out[i] = EndpointEntry{AddrPort: ap, W0: w0, W1: w1, Family: family, Port: rawPort(8080), Weight: w}
	}
	return out
}

func equalWeights(n int) []uint32 {
	w := make([]uint32, n)
	for i := range w {
		w[i] = 1
	}
	return w
}

// paperPopulate is the paper's pseudo-code 1, word for word but for the
// weights; permutation(i, j) is the paper's permutation[i][j].
func paperPopulate(endpoints []EndpointEntry, size int) []int {
	n := len(endpoints)
	starts := make([]permutation, n)
	permutation := func(i, j int) int { return (int(starts[i].at) + j*int(starts[i].skip)) % size }
	var heaviest, total float64
	for i := range endpoints {
		starts[i] = startPermutation(&endpoints[i], size)
		heaviest, total = max(heaviest, float64(endpoints[i].Weight)), total+float64(endpoints[i].Weight)
	}
	next, credit := make([]int, n), make([]float64, n)
	price := min(heaviest*float64(n), burst*total)
	entry := make([]int, size)
	for j := range entry {
		entry[j] = -1
	}
	for filled := 0; ; {
		for i := range n {
			for credit[i] += float64(endpoints[i].Weight) * float64(n); credit[i] >= price; credit[i] -= price {
				c := permutation(i, next[i])
				for entry[c] >= 0 {
					next[i]++
					c = permutation(i, next[i])
				}
				entry[c] = i
				next[i]++
				if filled++; filled == size {
					return entry
				}
			}
		}
	}
}

// readSlots is a table as numbers.
func readSlots(slots []byte, size uint64, shift uint8) []int {
	out := make([]int, size)
	for i := range out {
		switch shift {
		case 0:
			out[i] = int(slots[i])
		case 1:
			out[i] = int(binary.LittleEndian.Uint16(slots[2*i:]))
		default:
			out[i] = int(binary.LittleEndian.Uint32(slots[4*i:]))
		}
	}
	return out
}

func TestMaglevTableIsThatOfThePaper(t *testing.T) {
	var p population // used again, so that what one build leaves behind would show in the next
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 100).Draw(t, "endpoints")
		weights := equalWeights(n)
		if rapid.Bool().Draw(t, "weighted") {
			weights = rapid.SliceOfN(rapid.OneOf(rapid.Uint32Range(1, 10), rapid.Just(uint32(1000))), n, n).Draw(t, "weights")
		}
		endpoints := testEntries(weights...)
		slots, size, shift := p.build(endpoints)
		got := readSlots(slots, size, shift)
		want := paperPopulate(endpoints, tableSize(n))
		if !slices.Equal(got, want) {
			t.Fatalf("%d endpoints, weights %v: table differs", n, weights)
		}
	})
}

func TestLargeMaglevTableIsThatOfThePaper(t *testing.T) {
	var p population
	for _, n := range []int{257, 1000, 1100} { // 65521 and 262139 slots
		endpoints := testEntries(equalWeights(n)...)
		slots, size, shift := p.build(endpoints)
		if !slices.Equal(readSlots(slots, size, shift), paperPopulate(endpoints, tableSize(n))) {
			t.Errorf("%d endpoints: table differs", n)
		}
	}
}

func TestTableSizeFollowsTheLadder(t *testing.T) {
	for _, c := range []struct{ endpoints, size int }{
		{2, 1021}, {15, 1021}, {16, 4093}, {63, 4093}, {64, 16381}, {255, 16381}, {256, 65521},
		{1023, 65521}, {1024, 262139}, {4095, 262139}, {5000, 524287}, {8191, 524287}, {8192, 1048573}, {16383, 1048573}, {100_000, 1048573},
	} {
		if got := tableSize(c.endpoints); got != c.size {
			t.Errorf("%d endpoints: %d slots, want %d", c.endpoints, got, c.size)
		}
	}
}

func TestLadderIsOfPrimes(t *testing.T) {
	for _, size := range ladder {
		for d := 2; d*d <= size; d++ {
			if size%d == 0 {
				t.Errorf("%d = %d * %d", size, d, size/d)
			}
		}
		if size > len(bitmap{})*64 {
			t.Errorf("%d slots do not fit the bitmap", size)
		}
	}
}

func TestInvert(t *testing.T) {
	for _, m := range ladder {
		for a := uint64(1); a < uint64(m); a += uint64(m)/997 + 1 {
			if a*uint64(invert(uint32(a), uint32(m)))%uint64(m) != 1 {
				t.Fatalf("inverse of %d mod %d", a, m)
			}
		}
	}
}

func TestSlotsAreSharedByWeight(t *testing.T) {
	for _, weights := range [][]uint32{{1, 2, 3, 4}, {100, 100, 50}, {1, 1, 1, 1, 1, 1, 1, 30}, {1 << 31, 1 << 30}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1000}} {
		t.Run(fmt.Sprint(weights), func(t *testing.T) {
			var p population
			slots, size, shift := p.build(testEntries(weights...))
			count, total := make([]float64, len(weights)), 0.0
			for _, i := range readSlots(slots, size, shift) {
				count[i]++
			}
			for _, w := range weights {
				total += float64(w)
			}
			for i, w := range weights {
				want := float64(w) / total * float64(size)
				if d := count[i] - want; d > want/20+1 || d < -want/20-1 {
					t.Errorf("weight %d: %v slots, want %.1f", w, count[i], want)
				}
			}
		})
	}
}

func TestWeightsCountAsRatios(t *testing.T) {
	var p population
	a, size, shift := p.build(testEntries(2, 4, 6))
	want := readSlots(a, size, shift)
	b, size, shift := p.build(testEntries(100, 200, 300))
	if !slices.Equal(want, readSlots(b, size, shift)) {
		t.Error("weights 2:4:6 and 100:200:300 give different tables")
	}
}

func TestMoreThan65536EndpointsHaveWideSlots(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	var p population
	n := 1<<16 + 10
	slots, size, shift := p.build(testEntries(equalWeights(n)...))
	if shift != 2 {
		t.Fatalf("slots of %d bytes", 1<<shift)
	}
	count := make([]int, n)
	for _, i := range readSlots(slots, size, shift) {
		count[i]++
	}
	for i, c := range count {
		if c != int(size)/n && c != int(size)/n+1 {
			t.Fatalf("endpoint %d has %d slots of %d", i, c, size)
		}
	}
}
