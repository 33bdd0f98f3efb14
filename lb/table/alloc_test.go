package table

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/valyala/fastrand"
)

func TestWorkersCallsDoNotAllocate(t *testing.T) {
	tb := testTable(t, 100, 25)
	k := MakeKey(testService(7, 0).Frontends[0].AddrPort, 6)
	miss := k
	miss.W2++
	w := [5]uint64{1, 2, 3, 4, 6<<32 | 4<<40}
	var rng fastrand.RNG
	number := tb.Load().Lookup(&k).Pool.Endpoints()[0].ID
	for name, f := range map[string]func(){
		"Lookup":      func() { tb.Load().Lookup(&k) },
		"Lookup miss": func() { tb.Load().Lookup(&miss) },
		"Select":      func() { tb.Load().Lookup(&k).Pool.Select(&w, &rng, 0) },
		"Gone":        func() { tb.EndpointRemoved(number) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// allocated is the bytes that f allocates, the least of a few runs.
func allocated(f func()) uint64 {
	least := ^uint64(0)
	for range 10 {
		var a, b runtime.MemStats
		runtime.ReadMemStats(&a)
		f()
		runtime.ReadMemStats(&b)
		least = min(least, b.TotalAlloc-a.TotalAlloc)
	}
	return least
}

func TestChangeCostsTheSameAtAnySize(t *testing.T) {
	var cost [2]uint64
	for i, services := range []int{1000, 10_000} {
		tb := testTable(t, services, 2)
		put := [2][]Service{{testService(77, 25)}, {testService(77, 24)}}
		n := 0
		cost[i] = allocated(func() { apply(t, tb, put[n%2]); n++ })
	}
	if cost[0] > 16<<10 || cost[1] > cost[0]*3/2 {
		t.Errorf("a change of 25 endpoints allocates %d bytes at 1000 Services, %d at 10000", cost[0], cost[1])
	}
}

// TestReadersNeverWait runs readers against a writer, for the race detector
// and for what a reader must never see: a frontend of one Service with another's endpoints.
func TestReadersNeverWait(t *testing.T) {
	tb := testTable(t, 50, 5)
	var stop atomic.Bool
	var readers sync.WaitGroup
	for range 3 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			w := [5]uint64{1, 0, 0, 0, 6<<32 | 4<<40}
			for i := 0; !stop.Load(); i++ {
				w[4]++
				k := MakeKey(testService(i%50, 0).Frontends[i%3].AddrPort, 6)
				f := tb.Load().Lookup(&k)
				if f == nil {
					continue
				}
				e := f.Pool.Pick(Hash(&w))
				if e == nil {
					t.Error("an empty pool")
					return
				}
				if service := int(e.Addr[2])>>4 | int(e.Addr[1])<<4; service != i%50 {
					t.Errorf("service %d: endpoint %v", i%50, e.AddrPort)
					return
				}
				tb.EndpointRemoved(e.ID)
			}
		}()
	}
	for i := range 500 {
		if i%10 == 9 {
			apply(t, tb, nil, testService(i%50, 0).Name)
		} else {
			apply(t, tb, []Service{testService(i%50, 1+i%7)})
		}
	}
	stop.Store(true)
	readers.Wait()
}
