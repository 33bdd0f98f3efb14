package table

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
)

func v4(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 10<<24+uint32(i))
	return netip.AddrFrom4(b)
}

// testService is Service number i with n endpoints, a node port on two addresses and a load balancer IP.
func testService(i, n int) Service {
	s := Service{Name: fmt.Sprintf("ns/service-%d", i), Pools: []Pool{{Tier: "all"}}}
	for j := range n {
		s.Pools[0].Endpoints = append(s.Pools[0].Endpoints, Endpoint{AddrPort: netip.AddrPortFrom(v4(i<<12+j), 8080)})
	}
	for j := range 2 {
		s.Frontends = append(s.Frontends, Frontend{
			AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(j)}), uint16(20000+i)), Proto: 6, Kind: NodePort})
	}
	s.Frontends = append(s.Frontends, Frontend{
		AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 80), Proto: 6, Kind: LoadBalancer})
	return s
}

func testTable(tb testing.TB, services, endpoints int) *Table {
	tb.Helper()
	t := New(Config{})
	put := make([]Service, services)
	for i := range put {
		put[i] = testService(i, endpoints)
	}
	c, err := t.Apply(put, nil)
	if err != nil || len(c.Errors) > 0 {
		tb.Fatal(err, c.Errors)
	}
	return t
}

func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		t := testTable(b, n, 2)
		s := t.Load()
		keys := make([]Key, 1024)
		for i := range keys {
			keys[i] = MakeKey(testService(i*7919%n, 0).Frontends[i%3].AddrPort, 6)
		}
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if s.Lookup(&keys[i%len(keys)]) == nil {
					b.Fatal("not found")
				}
			}
		})
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{1, 25, 5000} {
		t := testTable(b, 1, n)
		f := testService(0, 0).Frontends[0]
		k := MakeKey(f.AddrPort, f.Proto)
		p := t.Load().Lookup(&k).Pool
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			w := [5]uint64{1, 0, 0, 0, 6<<32 | 4<<40}
			for b.Loop() {
				w[4]++
				if p.Pick(Hash(&w)) == nil {
					b.Fatal("empty")
				}
			}
		})
	}
}

func BenchmarkHash(b *testing.B) {
	w := [5]uint64{1, 0, 0, 0, 6<<32 | 4<<40}
	for b.Loop() {
		w[4] = Hash(&w)
	}
}

// BenchmarkChange is one Service of 25 endpoints that loses one or gets it back.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			t := testTable(b, n, 25)
			put := [2][]Service{{testService(77, 24)}, {testService(77, 25)}}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := t.Apply(put[i%2], nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMaglev is the building of one Maglev table.
func BenchmarkMaglev(b *testing.B) {
	for _, n := range []int{2, 25, 1000, 5000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			t := testTable(b, 1, n)
			f := testService(0, 0).Frontends[0]
			k := MakeKey(f.AddrPort, f.Proto)
			p := t.Load().Lookup(&k).Pool
			var pop population
			b.ReportAllocs()
			for b.Loop() {
				pop.build(p.endpoints)
			}
		})
	}
}

// BenchmarkMaglevSkewed is 5,000 endpoints one of which has as much weight as all others.
func BenchmarkMaglevSkewed(b *testing.B) {
	endpoints := testEntries(equalWeights(5000)...)
	endpoints[0].Weight = 5000
	var p population
	for b.Loop() {
		p.build(endpoints)
	}
}

// BenchmarkChange5000 is one endpoint of a Service of 5,000 going and coming.
func BenchmarkChange5000(b *testing.B) {
	t := testTable(b, 1, 5000)
	put := [2][]Service{{testService(0, 4999)}, {testService(0, 5000)}}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := t.Apply(put[i%2], nil); err != nil {
			b.Fatal(err)
		}
	}
}

// skewed is 10,000 Services with 250,000 endpoints: one with 5,000, ten with
// 1,000, the others with 23 or 24, every one with a pool for the cluster and an equal one.
func skewed() []Service {
	const services, total = 10_000, 250_000
	put := make([]Service, services)
	left := total
	for i := range put {
		n := left / (services - i)
		switch {
		case i == 0:
			n = 5000
		case i <= 10:
			n = 1000
		}
		left -= n
		put[i] = testService(i, 0)
		for j := range n {
			ap := netip.AddrPortFrom(v4(left+j), 8080)
			put[i].Pools[0].Endpoints = append(put[i].Pools[0].Endpoints, Endpoint{AddrPort: ap})
		}
	}
	return put
}

// BenchmarkBuild is the first load of 10,000 Services with 250,000 endpoints;
// B/endpoint is the heap in use afterwards.
func BenchmarkBuild(b *testing.B) {
	put := skewed()
	var t *Table
	for b.Loop() {
		t = New(Config{})
		if c, err := t.Apply(put, nil); err != nil || len(c.Errors) != 0 {
			b.Fatal(err, c.Errors)
		}
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	with := heap()
	endpoints := t.PresentEndpoints()
	runtime.KeepAlive(t)
	t = nil
	b.ReportMetric(float64(with-heap())/float64(endpoints), "B/endpoint")
	runtime.KeepAlive(put)
}
