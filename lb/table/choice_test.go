package table

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func onlyPool(t interface{ Fatal(...any) }, p Pool) *PoolEntry {
	tb := New(Config{})
	s := Service{
		Name: "test/web", Pools: []Pool{p},
		Frontends: []Frontend{{AddrPort: netip.MustParseAddrPort("203.0.113.1:80"), Proto: 6, Kind: LoadBalancer}},
	}
	if _, err := tb.Apply([]Service{s}, nil); err != nil {
		t.Fatal(err)
	}
	for f := range tb.Load().All() {
		return f.Pool
	}
	t.Fatal("there is no frontend")
	return nil
}

// Pools with the same hash choose the same endpoint for every tuple, in whatever order the
// endpoints came; pools that choose differently have different hashes.
func TestChoiceHash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		member := rapid.Custom(func(t *rapid.T) Endpoint {
			return Endpoint{
				AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "host")}), rapid.SampledFrom([]uint16{80, 8080}).Draw(t, "port")),
				Weight:   rapid.SampledFrom([]uint32{0, 1, 2, 7}).Draw(t, "weight"),
			}
		})
		list := rapid.SliceOfNDistinct(member, 1, 6, func(e Endpoint) netip.AddrPort { return e.AddrPort }).Draw(t, "endpoints")
		a := Pool{Endpoints: list}
		b := Pool{Endpoints: rapid.Permutation(list).Draw(t, "order")}
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 1:
			b.Endpoints = b.Endpoints[1:]
		case 2:
			b.Endpoints = slices.Clone(b.Endpoints)
			b.Endpoints[0].Weight = rapid.SampledFrom([]uint32{1, 5}).Draw(t, "new weight")
		case 3:
			b.Algorithm = Random
		}
		x, y := onlyPool(t, a), onlyPool(t, b)
		if alike := choosesLike(x, y); alike != (x.ChoiceHash() == y.ChoiceHash()) {
			t.Fatalf("%v and %v: alike %v, hashes %x, %x", a, b, alike, x.ChoiceHash(), y.ChoiceHash())
		}
		if y.ChoosesByNode() != (b.Algorithm == Random && len(b.Endpoints) > 1) {
			t.Fatalf("%v chooses by node: %v", b, y.ChoosesByNode())
		}
	})
}

// choosesLike reports whether two pools have the same members and algorithm, which is all that
// a choice depends on.
func choosesLike(a, b *PoolEntry) bool {
	return a.algorithm == b.algorithm && slices.EqualFunc(a.endpoints, b.endpoints, func(x, y EndpointEntry) bool {
		return x.AddrPort == y.AddrPort && x.Weight == y.Weight
	})
}
