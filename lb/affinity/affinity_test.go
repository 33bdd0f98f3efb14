package affinity

import (
	"sync"
	"testing"
)

func key(i int) [3]uint64 { return [3]uint64{uint64(i), 0, 7} }

func TestAClientKeepsItsEndpointForTheTime(t *testing.T) {
	s := New(64, [2]uint64{1, 2})
	s.Put(key(1), 5, 100)
	for _, test := range []struct {
		now  uint32
		want bool
	}{{100, true}, {99, true}, {400, true}, {401, false}, {100 + secondMask + 1, true}} {
		if n, ok := s.Get(key(1), test.now, 300); ok != test.want || n != 5 {
			t.Errorf("at %d: endpoint %d, %v; want %v", test.now, n, ok, test.want)
		}
	}
	s.Put(key(1), 5, 400)
	if _, ok := s.Get(key(1), 700, 300); !ok {
		t.Error("a new connection did not refresh the time")
	}
	s.Put(key(1), 6, 400)
	if n, _ := s.Get(key(1), 400, 300); n != 6 {
		t.Errorf("endpoint %d after a new choice", n)
	}
	if n, ok := s.Get(key(2), 400, 300); ok || n != 0 {
		t.Error("another client has it too")
	}
	if _, ok := s.Get([3]uint64{1, 0, 8}, 400, 300); ok {
		t.Error("the client has it at another Service port too")
	}
}

// Connections of an earlier process come in any order: the last one counts.
func TestARestoredConnectionReplacesNoLaterOne(t *testing.T) {
	s := New(64, [2]uint64{1, 2})
	for _, c := range []struct{ endpoint, at, want uint32 }{{5, 1000, 5}, {6, 900, 5}, {7, 1100, 7}, {8, 1099, 7}, {9, 100, 7}} {
		s.Restore(key(1), c.endpoint, c.at, 1200)
		if n, ok := s.Get(key(1), 1200, 300); n != c.want || !ok {
			t.Errorf("after %+v: endpoint %d, %v", c, n, ok)
		}
	}
	if _, ok := s.Get(key(1), 1401, 300); ok {
		t.Error("the time began with the restart")
	}
	full := New(ways, [2]uint64{3, 4}) // one bucket
	for i := range ways + 2 {
		full.Restore(key(i), 1, uint32(1000-10*i), 1200)
	}
	full.Restore(key(100), 1, 1100, 1200)
	for i := range ways + 2 {
		if _, ok := full.Get(key(i), 1200, 1000); ok != (i < ways-1) {
			t.Errorf("client %d: %v", i, ok)
		}
	}
}

func TestTimeGoesRoundWithoutHarm(t *testing.T) {
	s := New(64, [2]uint64{1, 2})
	s.Put(key(1), 5, 1<<32-10)
	if _, ok := s.Get(key(1), 10, 20); !ok {
		t.Error("forgotten when the seconds began anew")
	}
	if _, ok := s.Get(key(1), 11, 20); ok {
		t.Error("remembered for too long")
	}
}

func TestAFullBucketForgetsTheOldest(t *testing.T) {
	s := New(ways, [2]uint64{3, 4}) // one bucket
	for i := range ways {
		s.Put(key(i), 1, uint32(10+i))
	}
	s.Put(key(0), 1, 50) // back again
	s.Put(key(100), 9, 60)
	if _, ok := s.Get(key(1), 60, 1000); ok {
		t.Error("the oldest is still there")
	}
	for _, i := range []int{0, 2, 3, 4, 5, 6, 7, 100} {
		if _, ok := s.Get(key(i), 60, 1000); !ok {
			t.Errorf("client %d is forgotten", i)
		}
	}
}

// Clients that came back stay where forged ones, each with an address of its own, fill
// the store.
func TestClientsThatComeOnceDoNotPushOutThoseThatCameBack(t *testing.T) {
	const room = 1 << 10
	s := New(room, [2]uint64{3, 4})
	for i := range room / 4 {
		s.Put(key(i), 5, 100)
		s.Put(key(i), 5, 200)
	}
	for i := range 20 * room {
		s.Put(key(1<<20+i), 6, uint32(300+i/room))
	}
	kept := 0
	for i := range room / 4 {
		if n, ok := s.Get(key(i), 400, 1000); ok && n == 5 {
			kept++
		}
	}
	if kept < room/4*95/100 {
		t.Errorf("%d of %d clients are remembered", kept, room/4)
	}
	// Who has been away for too long is forgotten before new ones.
	for i := range 20 * room {
		s.Put(key(1<<22+i), 6, uint32(200+keepSeconds+i/room))
	}
	for i := range room / 4 {
		if _, ok := s.Get(key(i), 200+keepSeconds+20, secondMask); ok {
			kept--
		}
	}
	if kept < room/4*9/10 {
		t.Errorf("%d clients that do not come back are still there", room/4-kept)
	}
}

func TestNumbersThatDoNotFitAreNotRemembered(t *testing.T) {
	s := New(64, [2]uint64{1, 2})
	for _, n := range []uint32{0, MaxEndpoint + 1} {
		s.Put(key(1), n, 1)
		if _, ok := s.Get(key(1), 1, 10); ok {
			t.Errorf("endpoint %d", n)
		}
	}
	s.Put(key(1), MaxEndpoint, 1)
	if n, ok := s.Get(key(1), 1, 10); !ok || n != MaxEndpoint {
		t.Errorf("the largest number: %d %v", n, ok)
	}
}

func TestManyClientsSpreadOverTheStore(t *testing.T) {
	const room = 1 << 12
	s := New(room, [2]uint64{5, 6})
	for i := range room / 4 {
		s.Put(key(i), uint32(i%100+1), 1)
	}
	lost := 0
	for i := range room / 4 {
		if n, ok := s.Get(key(i), 1, 10); !ok || n != uint32(i%100+1) {
			lost++
		}
	}
	if lost > room/4/100 {
		t.Errorf("%d of %d clients lost in a store that is a quarter full", lost, room/4)
	}
}

// Whatever the order, a reader sees an endpoint that was put, and in the end
// each client has one.
func TestWorkersShareTheStore(t *testing.T) {
	s := New(ways, [2]uint64{3, 4})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := range 20000 {
				i := n % 4
				s.Put(key(i), uint32(100+i), uint32(n/2000))
				if e, ok := s.Get(key(i), uint32(n/2000), 100); !ok || e != uint32(100+i) {
					t.Errorf("client %d: endpoint %d, %v", i, e, ok)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestNothingIsAllocated(t *testing.T) {
	s := New(64, [2]uint64{1, 2})
	if n := testing.AllocsPerRun(100, func() { s.Put(key(1), 5, 100); s.Get(key(1), 100, 5) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkGetPut(b *testing.B) {
	s := New(1<<20, [2]uint64{1, 2})
	b.ReportAllocs()
	for i := range b.N {
		k := key(i & 0xffff)
		if _, ok := s.Get(k, 1, 10); !ok {
			s.Put(k, 5, 1)
		}
	}
}
