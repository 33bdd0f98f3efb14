package table

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// A pool of the size that a Table chooses is the pool that the Table publishes.
func TestSizedPoolChoosesAsATableOfThatSize(t *testing.T) {
	for _, n := range []int{2, 100, 1000} {
		tab := testTable(t, 1, n)
		f := testService(0, 0).Frontends[0]
		k := MakeKey(f.AddrPort, f.Proto)
		want := tab.Load().Lookup(&k).Pool
		var endpoints []Endpoint
		for _, e := range want.Endpoints() {
			endpoints = append(endpoints, Endpoint{AddrPort: e.AddrPort})
		}
		slices.Reverse(endpoints)
		got, err := SizedPool(endpoints, want.TableSize())
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for range 10_000 {
			h := rng.Uint64()
			if a, b := got.Pick(h).AddrPort, want.Pick(h).AddrPort; a != b {
				t.Fatalf("%d endpoints, hash %x: %v, want %v", n, h, a, b)
			}
		}
	}
}

func TestSizedPoolOfThePapersSizesIsThatOfThePaper(t *testing.T) {
	var p population
	for _, size := range []int{65537, 655373} {
		endpoints := testEntries(equalWeights(1000)...)
		slots, got, shift := p.buildSize(endpoints, size)
		if !slices.Equal(readSlots(slots, got, shift), paperPopulate(endpoints, size)) {
			t.Errorf("%d slots: table differs", size)
		}
	}
}

func TestSizedPoolRefusesWhatIsNoTable(t *testing.T) {
	two := []Endpoint{{AddrPort: netip.MustParseAddrPort("10.0.0.1:80")}, {AddrPort: netip.MustParseAddrPort("10.0.0.2:80")}}
	for _, c := range []struct {
		endpoints []Endpoint
		size      int
	}{{two[:1], 1021}, {two, 1}, {two, 1000}, {two, 1 << 21}} {
		if p, err := SizedPool(c.endpoints, c.size); err == nil {
			t.Errorf("%d endpoints, %d slots: %v", len(c.endpoints), c.size, p)
		}
	}
}
