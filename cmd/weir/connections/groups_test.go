package connections

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// Of more groups than are kept apart a count is too low by at most lost, and never too high.
func TestGroupsAreCountedInBoundedMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 8).Draw(t, "most")
		g, exact := newGroups(most), map[string]uint64{}
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 12), 0, 200).Draw(t, "groups") {
			text := fmt.Sprint("group ", n*n%13)
			g.add(group{text: text})
			exact[text]++
		}
		if len(g.count) > most {
			t.Fatalf("%d groups in memory, want at most %d", len(g.count), most)
		}
		list := g.largest(len(exact))
		listed := map[string]uint64{}
		for i, x := range list {
			if listed[x.Key] = x.Count; i > 0 && x.Count > list[i-1].Count {
				t.Fatalf("not sorted: %v", list)
			}
		}
		for text, n := range exact {
			if got := listed[text]; got > n || got+g.lost < n {
				t.Fatalf("%s: %d, want %d, or up to %d less", text, got, n, g.lost)
			}
		}
		if len(exact) <= most && g.lost != 0 {
			t.Fatalf("%d lost of %d groups", g.lost, len(exact))
		}
	})
}
