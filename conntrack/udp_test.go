package conntrack

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
)

func udpFlow(i int, mode Mode) *NewFlow {
	f := natFlow(i)
	f.Mode, f.Client = mode, MakeKey(client(i), vip, ProtoUDP)
	return f
}

// settle lets the flow of r take the fast path, as far as it is steady.
func settle(tab *Table, r Ref) { settleBy(tab, r, [2]uint64{aWord, aWord}) }

// settleBy is settle by a word for each direction.
func settleBy(tab *Table, r Ref, words [2]uint64) {
	tab.Settle(forwardRef(r.Conn()), words[0])
	if !tab.Entry(r).Mode.DSR() {
		tab.Settle(reverseRef(r.Conn()), words[1])
	}
}

// After the first answer both directions of a UDP flow take the fast path. It becomes a
// stream all the same when it goes on: for listings, for ageing and for eviction. A late
// answer alone does not make it go on.
func TestUDPFlowGoesOnOnTheFastPath(t *testing.T) {
	for _, tt := range []struct {
		name   string
		mode   Mode
		answer uint32 // 0: none
		packet uint32 // on the fast path
		want   flowstate.State
	}{
		{"an answer alone", ModeNAT, 3, 0, flowstate.Replied},
		{"a packet within two seconds", ModeNAT, 3, 32, flowstate.Replied},
		{"a packet after two seconds", ModeNAT, 3, 33, flowstate.Stream},
		{"a late answer", ModeNAT, 100, 0, flowstate.Replied},
		{"a late answer of two packets", ModeNAT, 100, 100, flowstate.Replied},
		{"a packet after a late answer", ModeNAT, 100, 101, flowstate.Stream},
		{"DSR within two seconds", ModeGUE, 0, 32, flowstate.Unreplied},
		{"DSR after two seconds", ModeL2DSR, 0, 33, flowstate.Stream},
	} {
		for look, state := range map[string]func(*Table, *Worker, Ref) flowstate.State{
			"listing": func(tab *Table, _ *Worker, r Ref) flowstate.State { return tab.Conn(r).State() },
			"ageing": func(tab *Table, w *Worker, r Ref) flowstate.State {
				ageAll(tab, w, 40*TicksPerSecond) // beyond the timeout of a query
				return flowstate.Of(atomic.LoadUint32(&tab.conns[r.Conn()].state))
			},
			"eviction": func(tab *Table, _ *Worker, r Ref) flowstate.State {
				tab.evictionOf(r.Conn(), 200)
				return flowstate.Of(atomic.LoadUint32(&tab.conns[r.Conn()].state))
			},
		} {
			t.Run(tt.name+"/"+look, func(t *testing.T) {
				tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
				w := tab.Worker(0)
				w.Online()
				r := mustCreate(t, w, udpFlow(1, tt.mode))
				last := []Ref{r, r.Other()}
				if tt.mode.DSR() {
					last = last[:1]
				} else {
					tab.TrackUDP(r.Other(), tt.answer)
				}
				settle(tab, r)
				for _, d := range last {
					if tab.NextHop(d)>>32 == 0 {
						t.Fatalf("entry %d is not on the fast path", d)
					}
				}
				if tt.packet != 0 {
					tab.Entry(last[len(last)-1]).Touch(tt.packet)
				}
				want := tt.want
				if look == "ageing" && want != flowstate.Stream {
					want = flowstate.None // expired
				}
				if got := state(tab, w, r); got != want {
					t.Errorf("state %v, want %v", got, want)
				}
			})
		}
	}
}

// Workers forward packets of UDP flows by either path, while the flows are answered, deleted
// and made anew, aged, listed and renumbered: the counters stay right, no entry is steady of
// a flow that is gone, and flows that are left and go on are streams.
func TestUDPFlowsOnTheFastPathBesideChanges(t *testing.T) {
	const workers, flows = 3, 24
	steps := 20_000
	if testing.Short() {
		steps = 4000
	}
	tab := openHeap(t, Config{MaxFlows: 256, Workers: workers, MaxEndpoints: 8})
	var tick atomic.Uint32
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			w := tab.Worker(i)
			w.Online()
			defer w.Offline()
			rng := rand.New(rand.NewPCG(2, uint64(i)))
			for step := range steps {
				stepUDP(tab, w, rng, flows, tick.Load())
				if step%8 == 0 {
					w.Age(tick.Load())
					w.Quiesce()
				}
			}
		})
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
			tab.SetIDs(r, uint32(tab.Conn(r).Created()%8), 1)
			return true
		})
	}
	now := tick.Add(3 * TicksPerSecond)
	tab.Range(func(r Ref) bool {
		if s := tab.Conn(r).State(); s == flowstate.Replied {
			tab.Entry(r).Touch(now)
			if s := tab.Conn(r).State(); s != flowstate.Stream {
				t.Errorf("a flow that goes on is %v", s)
			}
		}
		return true
	})
	checkTable(t, tab)
	checkFree(t, tab)
}

func stepUDP(tab *Table, w *Worker, rng *rand.Rand, flows int, tick uint32) {
	i := rng.IntN(flows)
	f := udpFlow(i, ModeNAT)
	if i%4 == 0 {
		f = udpFlow(i, ModeIPIP)
	}
	f.Tick, f.EndpointID = tick, uint32(i%8)
	r, _ := w.Create(f)
	if r == 0 {
		return
	}
	d := r
	if !f.Mode.DSR() && rng.IntN(2) == 0 {
		d = r.Other()
	}
	switch {
	case rng.IntN(64) == 0:
		w.Delete(r)
	case tab.NextHop(d)>>32 != 0:
		tab.Entry(d).Touch(tick)
	default:
		tab.TrackUDP(d, tick)
		settle(tab, r)
	}
}
