package route

import (
	"bytes"
	"net/netip"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func TestAdjacencyIsOneCacheLine(t *testing.T) {
	if size := unsafe.Sizeof(Adjacency{}); size != 64 {
		t.Errorf("%d bytes", size)
	}
}

func TestPutMACs(t *testing.T) {
	frame := bytes.Repeat([]byte{0xee}, 14)
	PutMACs(frame, MACWord([6]byte{1, 2, 3, 4, 5, 6}), MACWord([6]byte{7, 8, 9, 10, 11, 12}))
	if want := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0xee, 0xee}; !bytes.Equal(frame, want) {
		t.Errorf("%v", frame)
	}
}

// The index against a map, with few keys so that they come and go often.
func TestIndexFindsWhatWasInserted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 16
		adj := make([]Adjacency, limit+1)
		x := newHopIndex(limit)
		model := map[hopKey]uint32{}
		free := make([]uint32, 0, limit)
		for n := range uint32(limit) {
			free = append(free, n+1)
		}
		key := func(i int) hopKey {
			return makeHopKey(i%3, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			k := key(rapid.IntRange(0, 29).Draw(t, "key"))
			if n, ok := model[k]; ok {
				x.remove(k, n)
				adj[n].port.Store(0)
				delete(model, k)
				free = append(free, n)
				// As release does: an index full of tombstones is made anew.
				if x.tombs > len(x.slots)/4 {
					x = newHopIndex(limit)
					for k, n := range model {
						x.insert(k, n)
					}
				}
			} else if len(free) > 0 {
				n := free[0]
				free = free[1:]
				adj[n].hop[0].Store(k.w0)
				adj[n].hop[1].Store(k.w1)
				adj[n].port.Store(k.port)
				x.insert(k, n)
				model[k] = n
			}
			for i := range 30 {
				want, ok := model[key(i)]
				got, found := x.find(adj, key(i))
				if found != ok || got != want {
					t.Fatalf("key %d: %d %v, want %d %v", i, got, found, want, ok)
				}
			}
		}
	})
}

func TestRingKeepsOrderAndRefusesWhenFull(t *testing.T) {
	r := new(ring)
	key := func(i int) request { return request{hopKey{w0: uint64(i)}, true} }
	for round := range 3 {
		for i := range ringSize {
			if !r.put(key(i)) {
				t.Fatalf("round %d: refused number %d", round, i)
			}
		}
		if r.put(key(0)) || r.full.Load() != uint64(round+1) {
			t.Fatal("took more than it holds")
		}
		for i := range ringSize {
			if k, ok := r.take(); !ok || k != key(i) {
				t.Fatalf("round %d: %v %v, want %d", round, k, ok, i)
			}
		}
		if _, ok := r.take(); ok {
			t.Fatal("gave from nothing")
		}
	}
}

func TestRequestsForClientsLeaveRoomForEndpoints(t *testing.T) {
	r := new(ring)
	taken := 0
	for i := range ringSize {
		if r.put(request{hopKey{w0: uint64(i)}, false}) {
			taken++
		}
	}
	if taken != ringSize/2 || !r.put(request{hopKey{w0: 1 << 40}, true}) {
		t.Errorf("%d requests for clients filled the ring", taken)
	}
}

// world is a static watcher of n prefixes for what a worker does.
func world(n int) (*Watcher, []netip.Addr) {
	routes := map[netip.Prefix]Path{}
	hop := netip.MustParseAddr("192.0.2.9")
	var addrs []netip.Addr
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1})
		routes[netip.PrefixFrom(a, 24).Masked()] = Path{Kind: Attached, NextHop: hop, MTU: 1500}
		addrs = append(addrs, a)
	}
	return Static(routes, []StaticHop{{NextHop: hop, MAC: [6]byte{2, 0, 0, 0, 0, 9}, MTU: 1500}}), addrs
}

func TestWorkersCallsDoNotAllocate(t *testing.T) {
	w, addrs := world(100)
	hop := netip.MustParseAddr("2001:db8::77")
	frame := make([]byte, 64)
	for name, f := range map[string]func(){
		"Lookup":    func() { w.Load().Lookup(packetTo(addrs[7]), 1) },
		"Local":     func() { w.Local(addrs[7]) },
		"Resolve":   func() { w.Resolve(0, 0, hop, false) },
		"Adjacency": func() { w.Adjacency(0, hop) },
		"leave": func() {
			p, _ := w.Load().Lookup(packetTo(addrs[3]), 1)
			n, _ := w.Adjacency(p.Port, p.NextHop)
			a := &w.Adjacencies()[n]
			dst, _ := a.Dst()
			src, _ := a.Src()
			a.Touch(3)
			PutMACs(frame, dst, src)
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	w, addrs := world(10000)
	b.ReportAllocs()
	t := w.Load()
	i := 0
	for b.Loop() {
		if _, ok := t.Lookup(packetTo(addrs[i]), uint32(i)); !ok {
			b.Fatal("no route")
		}
		if i++; i == len(addrs) {
			i = 0
		}
	}
}

func BenchmarkAdjacency(b *testing.B) {
	w, _ := world(1)
	hop := netip.MustParseAddr("192.0.2.9")
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := w.Adjacency(0, hop); !ok {
			b.Fatal("not found")
		}
	}
}
