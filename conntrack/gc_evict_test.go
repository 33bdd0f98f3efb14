package conntrack

import (
	"sync"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// establish creates connection i and completes its handshake.
func establish(t testing.TB, tab *Table, w *Worker, i int) Ref {
	f := natFlow(i)
	f.PortLo = 1024
	r := mustCreate(t, w, f)
	tab.TrackTCP(r.Other(), &tcp.Segment{Flags: tcp.FlagSYN | tcp.FlagACK, Ack: f.Seq + 1}, f.Tick)
	tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagACK, Seq: f.Seq + 1, Ack: 1}, f.Tick)
	return r
}

func TestASYNFloodPushesOutHalfOpenFlowsOnly(t *testing.T) {
	const max, open = 4096, 3000
	tab := openTest(t, Config{MaxFlows: max, Workers: 2})
	w := tab.Worker(0)
	w.Online()
	for i := range open {
		establish(t, tab, w, i)
	}
	for i := range 20 * max {
		f := natFlow(open + i)
		f.Endpoint = netipAddrPort(i)
		f.Tick = uint32(i / 100)
		if _, o := w.Create(f); o != Created {
			t.Fatalf("SYN %d: outcome %d, %+v", i, o, tab.Stats())
		}
		if i%64 == 63 {
			w.Quiesce()
		}
		if i%1000 == 0 {
			tab.Sweep(f.Tick, max/8)
		}
	}
	for i := range open {
		if r := tab.lookup(natFlow(i).Client); r == 0 || tab.Conn(r).State() != flowstate.Established {
			t.Fatalf("established flow %d is lost", i)
		}
	}
	s := tab.Stats()
	if s.Evicted == 0 {
		t.Fatalf("stats %+v", s)
	}
	checkTable(t, tab)
	checkFree(t, tab)
}

func TestATableFullOfEstablishedFlowsRefusesAndRecovers(t *testing.T) {
	const max = 2048
	tab := openTest(t, Config{MaxFlows: max})
	w := tab.Worker(0)
	w.Online()
	for i := range max {
		establish(t, tab, w, i)
	}
	f := natFlow(max)
	f.PortLo = 1024
	for i := range 100 {
		if _, o := w.Create(f); o != Full {
			t.Fatalf("attempt %d: outcome %d", i, o)
		}
		w.Quiesce()
	}
	if s := tab.Stats(); s.Evicted != 0 || s.Flows != max {
		t.Fatalf("stats %+v", s)
	}
	// What is over goes next: a new connection is worth more.
	for i := range 64 {
		talk(t, tab, tab.lookup(natFlow(i).Client), 1, "> RST")
	}
	f.Tick = 100
	for range 8*max/int(tab.look) + 8 {
		if _, o := w.Create(f); o == Created {
			checkTable(t, tab)
			return
		}
		w.Quiesce()
		f.Tick++
	}
	t.Fatalf("no room is made: %+v", tab.Stats())
}

// Two workers flood at once, one of them asleep now and then; nothing is lost.
func TestFloodFromTwoWorkersKeepsTheTableSound(t *testing.T) {
	const max, open = 1024, 300
	tab := openHeap(t, Config{MaxFlows: max, Workers: 2, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	for i := range open {
		establish(t, tab, w, i)
	}
	w.Offline()
	var wg sync.WaitGroup
	for n := range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w := tab.Worker(n)
			w.Online()
			for i := range 8000 {
				f := natFlow(open + i*2 + n)
				f.Endpoint = netipAddrPort(i)
				w.Create(f)
				if i%32 == 31 {
					w.Quiesce()
				}
				if i%500 == 499 {
					w.Offline()
					w.Online()
				}
			}
			w.Offline()
		}()
	}
	wg.Wait()
	for i := range open {
		if r := tab.lookup(natFlow(i).Client); r == 0 || tab.Conn(r).State() != flowstate.Established {
			t.Fatalf("established flow %d is lost", i)
		}
	}
	checkTable(t, tab)
	checkFree(t, tab)
}

func TestFlowsExpireByTheTimeoutOfTheirState(t *testing.T) {
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	timeouts, _ := flowstate.Timeouts{}.Ticks()
	r := establish(t, tab, w, 1)
	half := mustCreate(t, w, natFlow(2))
	closed := establish(t, tab, w, 3)
	talk(t, tab, closed, 7, "> RST")
	w.Quiesce()
	for _, step := range []struct {
		tick    uint32
		expired int
	}{
		{7 + timeouts[flowstate.Close], 0}, {8 + timeouts[flowstate.Close], 1},
		{timeouts[flowstate.SynSent], 0}, {1 + timeouts[flowstate.SynSent], 1},
		{timeouts[flowstate.Established], 0}, {1 + timeouts[flowstate.Established], 1},
	} {
		if n := tab.Sweep(step.tick, 4096); n != step.expired {
			t.Errorf("at %d %d flows expire, want %d", step.tick, n, step.expired)
		}
	}
	if half == r || tab.Flows() != 0 || tab.Stats().Expired != 3 {
		t.Errorf("stats %+v", tab.Stats())
	}
}

// A deleted connection stays as it is until every online worker has passed a batch.
func TestAConnectionIsNotUsedAgainWhileAWorkerMaySeeIt(t *testing.T) {
	tab := openTest(t, Config{MaxFlows: 64, Workers: 3})
	a, b := tab.Worker(0), tab.Worker(1) // the third stays offline
	a.Online()
	b.Online()
	r := mustCreate(t, a, natFlow(1))
	key := tab.Entry(r).Tuple()
	seen := b.Lookup(tab.Hash(&key), &key)
	a.Delete(r)
	for i := range 2000 {
		// a alone goes on: it must never get that connection again.
		n, o := a.Create(natFlow(2 + i))
		if o == Created {
			if n.Conn() == r.Conn() {
				t.Fatal("connection is used again while b sees it")
			}
			a.Delete(n)
		}
		a.Quiesce()
		tab.Sweep(0, 64)
	}
	if tab.Entry(seen).Tuple() != key {
		t.Fatal("entry has changed under b")
	}
	for i := range 2000 {
		b.Quiesce()
		n, o := a.Create(natFlow(5000 + i))
		if o == Created {
			if n.Conn() == r.Conn() {
				return
			}
			a.Delete(n)
		}
		a.Quiesce()
	}
	t.Fatal("connection is never used again")
}
