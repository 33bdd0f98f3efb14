package table

import (
	"net/netip"
	"testing"
)

// Another endpoint than a silent one is picked by the hash, also where that has nearly all of the weight.
func TestPickOther(t *testing.T) {
	for _, weights := range [][]uint32{{1, 1, 1}, {1000, 1}, {1}} {
		var p Pool
		for i, w := range weights {
			p.Endpoints = append(p.Endpoints, Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 80), Weight: w})
		}
		tables := New(Config{})
		s := Service{Name: "ns/web", Pools: []Pool{p}, Frontends: []Frontend{{AddrPort: netip.MustParseAddrPort("192.0.2.1:80"), Proto: 6}}}
		if _, err := tables.Apply([]Service{s}, nil); err != nil {
			t.Fatal(err)
		}
		k := MakeKey(s.Frontends[0].AddrPort, 6)
		pool := tables.Load().Lookup(&k).Pool
		silent, found := pool.Endpoints()[0].ID, map[uint32]bool{}
		for hash := range uint64(1000) {
			e := pool.PickOther(mix(hash, seed0), silent)
			if e == nil {
				continue
			}
			if found[e.ID] = true; e.ID == silent {
				t.Fatalf("weights %v: the silent endpoint is picked", weights)
			}
		}
		if len(found) != len(weights)-1 {
			t.Errorf("weights %v: %d others are picked", weights, len(found))
		}
	}
}
