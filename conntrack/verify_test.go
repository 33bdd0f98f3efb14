package conntrack

import (
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func verified(t *testing.T, tab *Table) *Verification {
	t.Helper()
	v, err := tab.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A sound table has no fault while workers change it, nor after.
func TestASoundTableIsVerifiedWhileWorkersGoOn(t *testing.T) {
	tab := openTest(t, Config{MaxFlows: 300, Workers: 2, MaxEndpoints: 64})
	var stop atomic.Bool
	var wg sync.WaitGroup
	for n := range 2 {
		wg.Go(func() {
			w := tab.Worker(n)
			rng := rand.New(rand.NewPCG(7, uint64(n)))
			w.Online()
			defer w.Offline()
			for i := 0; !stop.Load(); i++ {
				stepShared(t, tab, w, rng, 64, tab.Tick())
				w.Quiesce()
			}
		})
	}
	for range 3 {
		if v := verified(t, tab); len(v.Faults) != 0 {
			t.Error(v.Faults)
		}
	}
	stop.Store(true)
	wg.Wait()
	if v := verified(t, tab); len(v.Faults) != 0 || v.Connections != tab.Flows() {
		t.Errorf("%+v of %d connections", v, tab.Flows())
	}
}

// Each kind of damage is a fault that names the object.
func TestADamagedTableHasFaults(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(*Table, Ref)
		say    string
	}{
		{"an entry that is not in the index", func(tab *Table, r Ref) { tab.unlist(r) }, "is found as 0"},
		{"a port that belongs to no connection", func(tab *Table, r Ref) {
			atomic.StoreUint32(&tab.conns[r.Conn()].state, 0)
		}, "of no connection"},
		{"a slot that is left pending", func(tab *Table, _ Ref) {
			tab.index.buckets[0].slot[slotsPerBucket-1].Store(slotPending | 1)
		}, "slot 11 of bucket 0"},
		{"a counter that is off", func(tab *Table, _ Ref) { tab.endpoints.add(3, countFlow) }, "endpoint 3 counts 11"},
		{"lost connections", func(tab *Table, _ Ref) { tab.free.count.Add(-4000) }, "neither in use nor free"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tab := openTest(t, Config{})
			w := tab.Worker(0)
			w.Online()
			var last Ref
			for i := range 10 {
				last = mustCreate(t, w, natFlow(i))
			}
			w.Offline()
			if v := verified(t, tab); len(v.Faults) != 0 || v.Connections != 10 || v.Slots != 20 {
				t.Fatalf("before: %+v", v)
			}
			tt.damage(tab, last)
			if v := verified(t, tab); !strings.Contains(strings.Join(v.Faults, "\n"), tt.say) {
				t.Errorf("%q", v.Faults)
			}
		})
	}
}
