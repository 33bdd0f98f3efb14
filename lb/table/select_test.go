package table

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/valyala/fastrand"
)

// makeTuple is a tuple as conntrack.Key has it.
func makeTuple(src, dst netip.AddrPort, proto uint8) (w [5]uint64) {
	s0, s1, family := addrWords(src.Addr())
	d0, d1, _ := addrWords(dst.Addr())
	if family == 4 {
		w[0] = s0 | d0<<32
	} else {
		w[0], w[1], w[2], w[3] = s0, s1, d0, d1
	}
	w[4] = uint64(rawPort(src.Port())) | uint64(rawPort(dst.Port()))<<16 | uint64(proto)<<32 | uint64(family)<<40
	return w
}

const tupleCount = 100_000

// tupleSets are 100,000 different tuples each, as clients make them.
func tupleSets() map[string][][5]uint64 {
	vip := netip.MustParseAddrPort("203.0.113.10:443")
	vip6 := netip.MustParseAddrPort("[2001:db8::10]:443")
	sets := make(map[string][][5]uint64)
	add := func(name string, tuple func(i int) [5]uint64) {
		for i := range tupleCount {
			sets[name] = append(sets[name], tuple(i))
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	seen := make(map[[5]uint64]bool)
	add("random", func(int) [5]uint64 {
		for {
			src := netip.AddrPortFrom(v4(int(rng.Uint32()>>8)), uint16(1+rng.IntN(65535)))
			if w := makeTuple(src, vip, 6); !seen[w] {
				seen[w] = true
				return w
			}
		}
	})
	add("two clients, every port", func(i int) [5]uint64 {
		return makeTuple(netip.AddrPortFrom(v4(1+i%2), uint16(1024+i/2)), vip, 6)
	})
	add("even ports only", func(i int) [5]uint64 {
		return makeTuple(netip.AddrPortFrom(v4(1+i%4), uint16(2*(1+i/4))), vip, 17)
	})
	add("every address, one port", func(i int) [5]uint64 {
		return makeTuple(netip.AddrPortFrom(v4(i), 40000), vip, 6)
	})
	add("addresses 256 apart", func(i int) [5]uint64 {
		return makeTuple(netip.AddrPortFrom(v4(i%65536<<8), uint16(40000+i/65536)), vip, 17)
	})
	add("IPv6, every interface number", func(i int) [5]uint64 {
		a := netip.MustParseAddr("2001:db8:1::").As16()
		a[13], a[14], a[15] = byte(i>>16), byte(i>>8), byte(i)
		return makeTuple(netip.AddrPortFrom(netip.AddrFrom16(a), 40000), vip6, 6)
	})
	add("IPv6, every network", func(i int) [5]uint64 {
		a := netip.MustParseAddr("2001:db8::1").As16()
		a[5], a[6], a[7] = byte(i>>16), byte(i>>8), byte(i)
		return makeTuple(netip.AddrPortFrom(netip.AddrFrom16(a), 40000), vip6, 17)
	})
	return sets
}

// testPool is the pool of a Table that knows the endpoints in the order given.
func testPool(t *testing.T, pool Pool) *PoolEntry {
	t.Helper()
	frontend := netip.MustParseAddrPort("203.0.113.10:443")
	tb := New(Config{})
	c, err := tb.Apply([]Service{{Name: "ns/a", Pools: []Pool{pool}, Frontends: []Frontend{{AddrPort: frontend, Proto: 6}}}}, nil)
	if err != nil || len(c.Errors) != 0 {
		t.Fatal(err, c.Errors)
	}
	k := MakeKey(frontend, 6)
	return tb.Load().Lookup(&k).Pool
}

func testEndpoints(n int) []Endpoint {
	out := make([]Endpoint, n)
	for i := range out {
		out[i].AddrPort = netip.AddrPortFrom(v4(1+i), 8080)
	}
	return out
}

func TestTuplesAreSpreadEvenly(t *testing.T) {
	p := testPool(t, Pool{Endpoints: testEndpoints(4)})
	for name, tuples := range tupleSets() {
		count := make(map[netip.AddrPort]int)
		for i := range tuples {
			count[p.Pick(Hash(&tuples[i])).AddrPort]++
		}
		for ap, n := range count {
			if n < tupleCount/4*98/100 || n > tupleCount/4*102/100 {
				t.Errorf("%s: %v has %d of %d tuples, want %d within 2 %%", name, ap, n, tupleCount, tupleCount/4)
			}
		}
	}
}

// moved is how many tuples have another endpoint in b than in a.
func moved(a, b *PoolEntry, tuples [][5]uint64) (n int) {
	for i := range tuples {
		h := Hash(&tuples[i])
		if a.Pick(h).AddrPort != b.Pick(h).AddrPort {
			n++
		}
	}
	return n
}

func TestFewTuplesMoveWhenAnEndpointComesOrGoes(t *testing.T) {
	sets := tupleSets()
	all := testEndpoints(11)
	ten := testPool(t, Pool{Endpoints: all[:10]})
	more := testPool(t, Pool{Endpoints: all})
	for name, tuples := range sets {
		if n, limit := moved(ten, more, tuples), tupleCount*3/2/11; n > limit {
			t.Errorf("%s: one more than 10 moves %d tuples, want at most %d", name, n, limit)
		}
		for gone := range 10 {
			less := append(append([]Endpoint{}, all[:gone]...), all[gone+1:10]...)
			if n, limit := moved(ten, testPool(t, Pool{Endpoints: less}), tuples), tupleCount*3/2/10; n > limit {
				t.Errorf("%s: 10 without endpoint %d moves %d tuples, want at most %d", name, gone, n, limit)
			}
		}
	}
}

func TestOrderOfEndpointsDoesNotMatter(t *testing.T) {
	tuples := tupleSets()["random"]
	in := testEndpoints(40)
	for i := range in {
		in[i].Weight = uint32(1 + i%3)
	}
	a := testPool(t, Pool{Endpoints: in})
	rand.New(rand.NewPCG(3, 4)).Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
	b := testPool(t, Pool{Endpoints: append(in, in[:7]...)}) // some twice
	if b.Len() != 40 {
		t.Fatalf("%d endpoints, want 40", b.Len())
	}
	if n := moved(a, b, tuples); n != 0 {
		t.Errorf("two tables with the same endpoints disagree on %d tuples", n)
	}
}

func TestWeightsShareTuples(t *testing.T) {
	tuples := tupleSets()["random"]
	weights := []uint32{1, 2, 3, 4}
	for _, algorithm := range []Algorithm{Maglev, Random} {
		in := testEndpoints(4)
		for i := range in {
			in[i].Weight = weights[i]
		}
		p := testPool(t, Pool{Endpoints: in, Algorithm: algorithm})
		var rng fastrand.RNG
		rng.Seed(7)
		count := make(map[uint32]int)
		for i := range tuples {
			count[p.Select(&tuples[i], &rng, 0).Weight]++
		}
		for _, w := range weights {
			want := tupleCount * int(w) / 10
			if n := count[w]; n < want*95/100 || n > want*105/100 {
				t.Errorf("%v: weight %d has %d of %d tuples, want %d within 5 %%", algorithm, w, n, tupleCount, want)
			}
		}
	}
}

func TestRandomSpreadsOneTuple(t *testing.T) {
	p := testPool(t, Pool{Endpoints: testEndpoints(4), Algorithm: Random})
	w := makeTuple(netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2"), 17)
	var rng fastrand.RNG
	rng.Seed(7)
	count := make(map[netip.AddrPort]int)
	for range tupleCount {
		count[p.Select(&w, &rng, 0).AddrPort]++
	}
	for ap, n := range count {
		if n < tupleCount/4*97/100 || n > tupleCount/4*103/100 {
			t.Errorf("%v has %d of %d", ap, n, tupleCount)
		}
	}
	if p.TableSize() != 0 {
		t.Error("a random pool has a Maglev table")
	}
}

func TestAffinityFollowsTheClientsAddress(t *testing.T) {
	for _, algorithm := range []Algorithm{Maglev, Random} {
		p := testPool(t, Pool{Endpoints: testEndpoints(4), Algorithm: algorithm, AffinitySeconds: 10800})
		var rng fastrand.RNG
		count := make(map[*EndpointEntry]int)
		for client := range 10_000 {
			var first *EndpointEntry
			for port := range 5 {
				dst := netip.AddrPortFrom(v4(port), uint16(80+port)) // affinity is the pool's, not the frontend's
				w := makeTuple(netip.AddrPortFrom(v4(client), uint16(1024+port)), dst, 6)
				e := p.Select(&w, &rng, 0)
				if first == nil {
					first = e
				}
				if e != first {
					t.Fatalf("%v: client %v goes to %v and %v", algorithm, v4(client), first.AddrPort, e.AddrPort)
				}
			}
			count[first]++
		}
		for e, n := range count {
			if n < 2300 || n > 2700 {
				t.Errorf("%v: %v has %d of 10000 clients", algorithm, e.AddrPort, n)
			}
		}
	}
}

func TestSmallPools(t *testing.T) {
	for n := range 2 {
		for _, algorithm := range []Algorithm{Maglev, Random} {
			t.Run(fmt.Sprint(n, algorithm), func(t *testing.T) {
				p := testPool(t, Pool{Endpoints: testEndpoints(n), Algorithm: algorithm})
				for _, h := range []uint64{0, 1, 1 << 63, ^uint64(0)} {
					if e := p.Pick(h); (e == nil) != (n == 0) {
						t.Errorf("hash %x: %v", h, e)
					}
				}
				if p.TableSize() != 0 {
					t.Error("has a table")
				}
			})
		}
	}
}

func TestEveryHashHasAnEndpoint(t *testing.T) {
	for _, n := range []int{2, 256, 257} {
		for _, algorithm := range []Algorithm{Maglev, Random} {
			in := testEndpoints(n)
			in[0].Weight = 3
			p := testPool(t, Pool{Endpoints: in, Algorithm: algorithm})
			if first, last := p.Pick(0), p.Pick(^uint64(0)); first == nil || last == nil {
				t.Errorf("%d endpoints, %v: %v, %v", n, algorithm, first, last)
			}
		}
	}
}

// TestHashIsFixed holds the hash to its values: nodes of different versions must choose alike.
func TestHashIsFixed(t *testing.T) {
	w := makeTuple(netip.MustParseAddrPort("192.0.2.1:1234"), netip.MustParseAddrPort("203.0.113.10:443"), 6)
	w6 := makeTuple(netip.MustParseAddrPort("[2001:db8::1]:1234"), netip.MustParseAddrPort("[2001:db8::10]:443"), 17)
	p := testPool(t, Pool{Endpoints: testEndpoints(10)})
	got := fmt.Sprintf("%x %x %x %x %v", Hash(&w), HashClient(&w), Hash(&w6), HashClient(&w6), p.Pick(Hash(&w)).AddrPort)
	const want = "8deadd4628ecf9e1 71e3c8bc3723ece3 67bb340b3e9946fa 13d7c48dee356337 10.0.0.8:8080"
	if got != want {
		t.Errorf("got  %s\nwant %s\nA change of the hash makes nodes of two versions disagree: say so in CHANGELOG.md.", got, want)
	}
}
