package addresspool

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRangesAreFoundAsByComparisonWithEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s rangeSet[int]
		var all []Range
		draw := func() Range {
			from := rapid.Uint16().Draw(t, "from")
			to := min(uint32(from)+uint32(rapid.Uint8().Draw(t, "more")), 0xffff)
			r := Range{netip.AddrFrom4([4]byte{10, 0, byte(from >> 8), byte(from)}), netip.AddrFrom4([4]byte{10, 0, byte(to >> 8), byte(to)})}
			if rapid.Bool().Draw(t, "six") {
				a, b := r.From.As16(), r.To.As16()
				a[0], b[0] = 0x20, 0x20
				r = Range{netip.AddrFrom16(a), netip.AddrFrom16(b)}
			}
			return r
		}
		for range rapid.IntRange(1, 4*maxPart).Draw(t, "ranges") {
			if r := draw(); !slices.ContainsFunc(all, r.overlaps) {
				s.add(r, len(all))
				all = append(all, r)
			}
		}
		for range 10 {
			r := draw()
			var want, got []Range
			for _, o := range all {
				if o.overlaps(r) {
					want = append(want, o)
				}
			}
			slices.SortFunc(want, func(a, b Range) int { return a.From.Compare(b.From) })
			for o, at := range s.overlapping(r) {
				if got = append(got, o); all[at] != o {
					t.Fatalf("%v has the value of %v", o, all[at])
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%v overlaps %v, want %v", r, got, want)
			}
			at, ok := s.of(r.From)
			if is := slices.IndexFunc(all, func(o Range) bool { return o.Contains(r.From) }); ok != (is >= 0) || ok && at != is {
				t.Fatalf("%v is of %d, %v, want %d", r.From, at, ok, is)
			}
		}
	})
}
