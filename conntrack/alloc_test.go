package conntrack

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

func TestWorkersDoNotAllocate(t *testing.T) {
	tab := openTest(t, Config{MaxFlows: 1 << 14, RecordsPerSecond: 1 << 20})
	w := tab.Worker(0)
	w.Online()
	for i := range 64 {
		establish(t, tab, w, i)
	}
	var h [64]uint64
	var k [64]Key
	var out [64]Ref
	options := tsOption(5)
	i, tick := 1000, uint32(0)
	f := natFlow(0)
	f6 := &NewFlow{Endpoint: ep6, SNAT: snat6, PortLo: 1024, PortHi: 65535, Mode: ModeNAT}
	for name, step := range map[string]func(){
		"look-up": func() {
			for j := range k {
				k[j] = MakeKey(client(j*2), vip, ProtoTCP)
				h[j] = tab.Hash(&k[j])
			}
			w.LookupBatch(h[:], k[:], out[:])
			if w.Lookup(h[0], &k[0]) != out[0] || out[0] == 0 {
				t.Fatal("flow is not found")
			}
		},
		"life of a connection": func() {
			i++
			f.Client = MakeKey(client(i), vip, ProtoTCP)
			r, _ := w.Create(f)
			for _, flags := range []uint8{tcp.FlagACK, tcp.FlagFIN | tcp.FlagACK, tcp.FlagACK} {
				g := tcp.Segment{Flags: flags, Seq: 1, Length: 1, Options: options}
				g.Ack = tab.Conn(r).endpointNext
				tab.TrackTCP(r, &g, 1)
				g.Flags, g.Ack = flags|tcp.FlagSYN, tab.Conn(r).clientNext
				tab.TrackTCP(r.Other(), &g, 1)
			}
			w.Delete(r)
			w.Quiesce()
		},
		"refused for want of ports": func() {
			i++
			g := *f
			g.Client = MakeKey(client(i), vip, ProtoTCP)
			g.PortHi = g.PortLo
			w.Create(&g)
		},
		"IPv6 and UDP": func() {
			i++
			f6.Client = MakeKey(netip.AddrPortFrom(ep6.Addr(), uint16(i)), vip6, ProtoUDP)
			r, _ := w.Create(f6)
			tab.TrackUDP(r.Other(), 3)
			w.Delete(r)
			w.Offline()
			w.Online()
		},
		"eviction": func() {
			for range 64 {
				i++
				f.Client = MakeKey(client(i), vip, ProtoTCP)
				f.Endpoint = netipAddrPort(i)
				w.Create(f)
			}
			w.Quiesce()
		},
		"sweep": func() { tab.Sweep(1, 1000) },
		"ageing": func() {
			for range 64 {
				i++
				f.Client = MakeKey(client(i), vip, ProtoTCP)
				f.Endpoint, f.Tick = netipAddrPort(i), tick
				w.Create(f)
			}
			tick += 2000
			for w.Age(tick) {
				w.Quiesce()
			}
		},
	} {
		if n := testing.AllocsPerRun(300, step); n != 0 {
			t.Errorf("%s allocates %.0f times", name, n)
		}
	}
}

func TestRunAgesUntilItsContextEnds(t *testing.T) {
	tab := openTest(t, Config{Timeouts: flowstate.Timeouts{SynSent: time.Millisecond, Close: time.Hour}})
	w := tab.Worker(0)
	w.Online()
	f := natFlow(1)
	f.Tick = tab.Tick()
	mustCreate(t, w, f)
	w.Offline()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	done := make(chan struct{})
	go func() { tab.Run(ctx, time.Tick(time.Millisecond)); close(done) }()
	for tab.Flows() != 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if tab.Flows() != 0 {
		t.Error("the flow does not expire")
	}
	cancel()
	<-done
}

func TestAClosedTableIsEmpty(t *testing.T) {
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	r := establish(t, tab, w, 1)
	w.Offline()
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for _, f := range []func(){
		func() { tab.Run(ctx, time.Tick(time.Millisecond)) },
		func() {
			for ctx.Err() == nil {
				tab.Range(func(r Ref) bool {
					tab.Range(func(Ref) bool { return false })
					return !tab.Delete(r + 2)
				})
			}
		},
		func() {
			for ctx.Err() == nil {
				tab.Sweep(1, 100)
				tab.Stats()
				tab.EndpointFlows(3)
			}
		},
	} {
		wg.Add(1)
		go func() { defer wg.Done(); f() }()
	}
	time.Sleep(5 * time.Millisecond) // let them be somewhere inside
	if err := tab.Close(); err != nil {
		t.Fatal(err)
	}
	if tab.Delete(r) || tab.Sweep(1<<20, 10) != 0 || tab.Synchronize(ctx) == nil {
		t.Error("a closed table does something")
	}
	tab.Range(func(Ref) bool { t.Error("a closed table lists a flow"); return true })
	cancel()
	wg.Wait()
}

func TestSynchronizeWaitsForEveryOnlineWorker(t *testing.T) {
	tab := openTest(t, Config{Workers: 3})
	a, b := tab.Worker(0), tab.Worker(1)
	a.Online()
	b.Online()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	a.Quiesce()
	if err := tab.Synchronize(ctx); err == nil {
		t.Fatal("returns though no worker has passed a batch")
	}
	done := make(chan error, 1)
	go func() { done <- tab.Synchronize(t.Context()) }()
	for {
		a.Quiesce()
		b.Quiesce()
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			a.Offline()
			b.Offline()
			if err := tab.Synchronize(t.Context()); err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

// What Range's function may do.
func TestRangeMayDeleteAndListInside(t *testing.T) {
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	for i := range 1000 {
		establish(t, tab, w, i)
	}
	w.Offline()
	n := 0
	tab.Range(func(r Ref) bool {
		n++
		if !tab.Delete(r) || tab.Delete(r) {
			t.Fatal("a listed flow is deleted once")
		}
		tab.Range(func(Ref) bool { return false })
		return n < 600
	})
	if tab.Flows() != 400 || tab.EndpointFlows(3) != 400 {
		t.Fatalf("%d flows are left", tab.Flows())
	}
	checkTable(t, tab)
	checkFree(t, tab)
	for tab.Sweep(0, 5000); tab.Stats().ByState[flowstate.Established] != 400; tab.Sweep(0, 5000) {
		if tab.Stats().Flows != 400 {
			t.Fatalf("stats %+v", tab.Stats())
		}
	}
}
