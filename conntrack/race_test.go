package conntrack

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// checkTable fails unless index, connections and counters agree. Nobody else may
// be inside.
func checkTable(t *testing.T, tab *Table) {
	t.Helper()
	live := map[Ref]bool{}
	var over int64
	for i := range tab.index.buckets {
		b := &tab.index.buckets[i]
		over += int64(b.over.Load())
		for s := range b.slot {
			w := b.slot[s].Load()
			if w == 0 {
				if tag := b.tagAt(uint32(s)); tag != 0 {
					t.Fatalf("bucket %d: the empty slot %d has tag %d", i, s, tag)
				}
				continue
			}
			if w >= slotPending {
				t.Fatalf("bucket %d slot %d is left as %#x", i, s, w)
			}
			if live[Ref(w)] {
				t.Fatalf("entry %d is linked twice", Ref(w))
			}
			live[Ref(w)] = true
			at := tab.index.locate(tab.Hash(&tab.Entry(Ref(w)).Key), Ref(w)).at
			if tab.index.bucketAt(tab.Hash(&tab.Entry(Ref(w)).Key), at.probe) != b || at.slot != uint32(s) {
				t.Fatalf("entry %d of bucket %d slot %d is located at %+v", w, i, s, at)
			}
			over -= int64(at.probe)
		}
	}
	if over != 0 {
		t.Fatalf("overflow counts are off by %d", over)
	}
	flows, perEndpoint := 0, map[uint32]uint32{}
	var open, counted int32
	keys := map[Key]Ref{}
	for i := range tab.conns {
		if tab.conns[i].state&flowstate.Published == 0 {
			continue
		}
		flows++
		perEndpoint[tab.conns[i].EndpointID]++
		if tab.conns[i].EndpointID != NoID && flowstate.CountsAsOpen(tab.conns[i].state) {
			open++
		}
		refs := []Ref{forwardRef(uint32(i)), reverseRef(uint32(i))}
		if tab.entries[2*i].Mode.DSR() {
			refs = refs[:1]
		} else if tab.conns[i].state&flowstate.Superseded != 0 {
			refs = refs[1:]
		}
		for _, r := range refs {
			e := tab.Entry(r)
			earlier := tab.nextHops != 0 && tab.Restored() // words of the process before
			if word := tab.NextHop(r); !earlier && word>>32 != 0 && !tab.conns[i].Steady(uint32(r-1)&1) {
				t.Fatalf("entry %d is steady in state %v", r, tab.conns[i].State())
			}
			key := e.Tuple()
			if keys[key] != 0 {
				t.Fatalf("key %v of entries %d and %d", key, keys[key], r)
			}
			keys[key] = r
			if got := tab.lookup(key); got != r {
				t.Fatalf("entry %d is found as %d", r, got)
			}
			delete(live, r)
		}
	}
	if len(live) != 0 {
		t.Fatalf("%d entries are linked and belong to no connection", len(live))
	}
	if tab.Flows() != flows {
		t.Fatalf("table counts %d flows, there are %d", tab.Flows(), flows)
	}
	for n := range tab.endpoints {
		if got := tab.EndpointFlows(uint32(n)); got != perEndpoint[uint32(n)] {
			t.Fatalf("endpoint %d counts %d flows, there are %d", n, got, perEndpoint[uint32(n)])
		}
		counted += int32(tab.endpoints[n].Load() >> 32)
	}
	// SetIDs beside packets may count one for another number, not lose it.
	if counted != open {
		t.Fatalf("%d open flows are counted, there are %d", counted, open)
	}
}

// checkFree fails unless every connection is in use or can be had again.
func checkFree(t *testing.T, tab *Table) {
	t.Helper()
	for i := range tab.workers {
		w := &tab.workers[i]
		w.Online()
		for s := &w.spares; s.n != 0; s.n-- {
			w.release(s.conn[(s.first+s.n-1)%uint32(len(s.conn))])
		}
		if w.cache.n != 0 {
			tab.push(&tab.free, w.cache)
			w.cache = chain{}
		}
		w.Offline()
	}
	for range 4 {
		tab.Sweep(0, 0)
	}
	seen := map[uint32]bool{}
	for {
		l := tab.pop(&tab.free)
		if l.n == 0 {
			break
		}
		for l.n > 0 {
			conn := tab.chainPop(&l)
			if seen[conn] {
				t.Fatalf("connection %d is free twice", conn)
			}
			seen[conn] = true
			if tab.conns[conn].state&flowstate.Published != 0 {
				t.Fatalf("connection %d is free and in use", conn)
			}
		}
		if l.first != 0 {
			t.Fatal("a block is longer than it says")
		}
	}
	if got := len(seen) + tab.Flows(); got != int(tab.bound.Load()) {
		t.Fatalf("%d connections free and %d in use of %d: some are lost", len(seen), tab.Flows(), tab.bound.Load())
	}
}

// Workers create, find, track and delete connections of a few tuples that they all use,
// over a few ports. They age the table, while it is swept and listed.
func TestWorkersThatShareTuplesKeepTheTableSound(t *testing.T) {
	const workers, tuples = 4, 48
	steps := 6000
	if testing.Short() {
		steps = 1500
	}
	tab := openHeap(t, Config{MaxFlows: 256, Workers: workers, MaxEndpoints: 8, RecordsPerSecond: 1 << 24})
	recorded, records := 0, make([]Record, recordSlots)
	var tick atomic.Uint32
	var wg sync.WaitGroup
	for i := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w := tab.Worker(i)
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			w.Online()
			for step := range steps {
				stepShared(t, tab, w, rng, tuples, tick.Load())
				if step%8 == 0 {
					w.Age(tick.Load())
					w.Quiesce()
				}
				if step%256 == 0 {
					w.Offline()
					w.Online()
				}
			}
			w.Offline()
		}()
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		tab.Sweep(tick.Add(1), 100)
		tab.Range(func(r Ref) bool {
			if tab.Entry(r).Key.Family() != 4 {
				t.Error("a listed entry has no key")
			}
			tab.SetIDs(r, uint32(tab.Conn(r).Created()%8), 1)
			return true
		})
		for n := len(records); n == len(records); {
			n = tab.ReadRecords(records)
			for i := range records[:n] {
				if recorded--; records[i].Cause == CauseNone {
					recorded += 2
				}
			}
		}
	}
	if s := tab.RecordStats(); s.Lost == 0 && s.Skipped == 0 && recorded != tab.Flows() {
		t.Errorf("by the records there are %d connections, in the table %d", recorded, tab.Flows())
	}
	if t.Failed() {
		return
	}
	checkTable(t, tab)
	checkFree(t, tab)
}

func stepShared(t *testing.T, tab *Table, w *Worker, rng *rand.Rand, tuples int, tick uint32) {
	f := natFlow(rng.IntN(tuples))
	f.PortLo, f.PortHi = 61000, 61000+uint16(tuples*3/4)
	f.Tick = tick
	f.EndpointID = uint32(rng.IntN(8))
	f.Seq = rng.Uint32()
	if rng.IntN(8) == 0 {
		f.Mode = ModeL2DSR
		f.Client = MakeKey(client(1000+rng.IntN(4)), vip, ProtoTCP)
	}
	h := tab.Hash(&f.Client)
	r := w.Lookup(h, &f.Client)
	if r == 0 {
		var o Outcome
		if r, o = w.Create(f); r == 0 {
			if o != NoPort && o != Full {
				t.Errorf("create gives no entry, outcome %d", o)
			}
			return
		}
	}
	if k := tab.Entry(r).Tuple(); k != f.Client {
		t.Errorf("entry of %v has key %v", f.Client, k)
	}
	switch rng.IntN(7) {
	case 0:
		w.Delete(r)
	case 5:
		w.Supersede(r) // of those in TIME_WAIT: others take their ports over meanwhile
	case 1:
		tab.TrackTCP(r,
			&tcp.Segment{Flags: tcp.FlagRST, Seq: atomic.LoadUint32(&tab.Conn(r).clientNext)}, tick)
	case 2:
		tab.TrackTCP(r.Other(),
			&tcp.Segment{Flags: tcp.FlagSYN | tcp.FlagACK, Ack: atomic.LoadUint32(&tab.Conn(r).clientNext)}, tick)
		tab.TrackTCP(r,
			&tcp.Segment{Flags: tcp.FlagACK, Seq: atomic.LoadUint32(&tab.Conn(r).clientNext), Ack: 1}, tick)
	case 3:
		tab.TrackTCP(r.Other(),
			&tcp.Segment{Flags: tcp.FlagFIN | tcp.FlagACK, Seq: 1, Ack: atomic.LoadUint32(&tab.Conn(r).clientNext)}, tick)
		tab.TrackTCP(r,
			&tcp.Segment{Flags: tcp.FlagFIN | tcp.FlagACK, Seq: atomic.LoadUint32(&tab.Conn(r).clientNext), Ack: 2}, tick)
		tab.TrackTCP(r.Other(),
			&tcp.Segment{Flags: tcp.FlagACK, Seq: 2, Ack: atomic.LoadUint32(&tab.Conn(r).clientNext)}, tick)
	case 4:
		settleBy(tab, r, [2]uint64{uint64(tick+1) << 32, uint64(tick+2) << 32})
		tab.Entry(r).Touch(tick)
		w.CountPacket(r, 100)
	}
}

// All workers insert the same connections at the same time; each time exactly one
// creates it and all get the same entry and so the same SNAT port.
func TestWorkersThatCreateOneConnectionAgreeOnIt(t *testing.T) {
	const workers, rounds = 4, 300
	tab := openHeap(t, Config{MaxFlows: 4096, Workers: workers, MaxEndpoints: 8})
	var refs [workers]Ref
	var created atomic.Int32
	start := make([]chan int, workers)
	var wg sync.WaitGroup
	for i := range workers {
		start[i] = make(chan int)
		go func() {
			w := tab.Worker(i)
			for round := range start[i] {
				w.Online()
				r, o := w.Create(natFlow(round))
				if o == Created {
					created.Add(1)
				}
				refs[i] = r
				w.Offline()
				wg.Done()
			}
		}()
	}
	for round := range rounds {
		created.Store(0)
		wg.Add(workers)
		for i := range workers {
			start[i] <- round
		}
		wg.Wait()
		if created.Load() != 1 {
			t.Fatalf("round %d: %d workers created it", round, created.Load())
		}
		for i := range workers {
			if refs[i] != refs[0] || refs[i] == 0 {
				t.Fatalf("round %d: workers got %v", round, refs)
			}
		}
	}
	for i := range start {
		close(start[i])
	}
	checkTable(t, tab)
	checkFree(t, tab)
}
