package conntrack

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// aWord is a next-hop word as the caller makes them.
const aWord = 7<<32 | 1500<<16 | 3

// settled makes an established connection whose entries are steady.
func settled(t *testing.T, tab *Table, w *Worker, i int) Ref {
	t.Helper()
	r := establish(t, tab, w, i)
	c := tab.Conn(r)
	atomic.AndUint32(&c.state, ^uint32(flowstate.Young|flowstate.Slow)) // as after freshTicks
	settle(tab, r)
	for _, d := range []Ref{r, r.Other()} {
		if tab.NextHop(d) != aWord {
			t.Fatalf("direction %d of an established connection is not steady", (d-1)&1)
		}
	}
	return r
}

// A worker that makes an entry steady may stop between any two of its steps. So may a
// worker whose packet takes the connection out of its steady state.
func TestNoInterleavingLeavesAnEntrySteady(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r := settled(t, tab, w, 1)
	c, hop := tab.Conn(r), tab.nextHop(r)
	const established, after = flowstate.Published | uint32(flowstate.Established), flowstate.Published | uint32(flowstate.FinWait)
	for _, tt := range []struct {
		before uint32
		may    func(s uint32) bool
	}{
		{established, func(s uint32) bool { return flowstate.IsSteadyIn(s, 0) }},
		{established | flowstate.Slow | flowstate.Young, flowstate.IsFollowed},
	} {
		for _, first := range []uint64{aWord, 5} {
			interleave(nil, [3]int{3, 3, 3}, func(order []int) {
				atomic.StoreUint32(&c.state, tt.before)
				atomic.StoreUint64(hop, first)
				var step [3]int
				var was [2]uint64
				var may [2]bool
				for _, i := range order {
					switch n := step[i]; {
					case i == 2 && n == 0:
						if !atomic.CompareAndSwapUint32(&c.state, tt.before, established|flowstate.Slow) {
							t.Fatal("the state has changed")
						}
					case i == 2 && n == 1:
						tab.unsettle(r.Conn())
					case i == 2:
						atomic.StoreUint32(&c.state, after)
					case n == 0:
						was[i] = atomic.LoadUint64(hop)
					case n == 1:
						may[i] = tt.may(atomic.LoadUint32(&c.state))
					case may[i]:
						atomic.CompareAndSwapUint64(hop, was[i], aWord)
					}
					step[i]++
					if atomic.LoadUint32(&c.state) == after && atomic.LoadUint64(hop)>>32 != 0 {
						t.Fatalf("order %v: steady after the state has changed", order)
					}
				}
			})
		}
	}
}

// Others than the workers may forward packets of a shared table's connection as soon as it is
// established; the workers follow each of its segments until it has lasted for a while.
func TestSharedConnectionIsFollowedAtFirst(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	tab.nextHops = 1 << 12 // as in memory that is shared
	w := tab.Worker(0)
	w.Online()
	for _, end := range []bool{false, true} {
		r := establish(t, tab, w, 1)
		c := tab.Conn(r)
		words := func(want uint64) {
			t.Helper()
			for _, d := range []Ref{r, r.Other()} {
				if got := tab.NextHop(d); got != want && (want>>32 != 0 || got>>32 != 0) {
					t.Errorf("direction %d has the next hop %#x, want %#x", (d-1)&1, got, want)
				}
			}
		}
		words(0)
		settle(tab, r)
		words(aWord | Followed)
		if end {
			client, endpoint, _ := c.numbers()
			tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagFIN | tcp.FlagACK, Seq: client, Ack: endpoint}, 6)
			words(0)
			settle(tab, r)
			words(0)
			continue
		}
		tab.endFollowing(r.Conn(), c.Created()+tcp.FreshTicks)
		words(aWord | Followed)
		tab.endFollowing(r.Conn(), c.Created()+tcp.FreshTicks+1)
		words(aWord)
		w.Delete(r)
	}
}

// Two workers change the state at the same time. The first may succeed by the bit slow that
// the second has set, after a third has removed it and has made the entry steady. When the
// second is done no entry is steady.
func TestTwoChangesOfStateLeaveNoEntrySteady(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r := settled(t, tab, w, 1)
	c, hop := tab.Conn(r), tab.nextHop(r)
	const before = flowstate.Published | uint32(flowstate.Established)
	after := [2]uint32{flowstate.Published | uint32(flowstate.FinWait), flowstate.Published | uint32(flowstate.Close)}
	swap := func(from, to uint32) bool { return atomic.CompareAndSwapUint32(&c.state, from, to) }

	interleave(nil, [3]int{3, 3, 4}, func(order []int) {
		atomic.StoreUint32(&c.state, before)
		atomic.StoreUint64(hop, aWord)
		var step [3]int
		var began [2]bool
		var was uint64
		var may bool
		for _, i := range order {
			switch n := step[i]; {
			case i < 2 && n == 0:
				began[i] = swap(before, before|flowstate.Slow)
			case i < 2 && n == 1 && began[i]:
				tab.unsettle(r.Conn())
			case i < 2 && n == 2 && began[i]:
				swap(before|flowstate.Slow, after[i])
			case i < 2:
			case n == 0:
				swap(before|flowstate.Slow, before)
			case n == 1:
				was = atomic.LoadUint64(hop)
			case n == 2:
				may = c.Steady(0)
			case may:
				atomic.CompareAndSwapUint64(hop, was, aWord)
			}
			step[i]++
		}
		if s := c.State(); s != flowstate.Established && atomic.LoadUint64(hop)>>32 != 0 {
			t.Fatalf("order %v: steady in state %v", order, s)
		}
	})
}

// Workers make the entries of a connection steady as often as they can. None is steady once
// the tracker has taken the connection out of its steady state.
func TestEntriesAreNotSteadyOnceTheStateHasChanged(t *testing.T) {
	const settlers = 3
	rounds := 20_000
	if testing.Short() {
		rounds = 2000
	}
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r := settled(t, tab, w, 1)
	c := tab.Conn(r)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range settlers {
		wg.Go(func() {
			for !stop.Load() {
				tab.Settle(r, aWord)
			}
		})
	}
	was := 0
	for range rounds {
		s := atomic.LoadUint32(&c.state)
		if tab.NextHop(r)>>32 != 0 {
			was++
		}
		if !tab.setState(c, s, s&^flowstate.Mask|uint32(flowstate.FinWait)) {
			t.Error("the state has changed")
			break
		}
		for range 8 {
			if a, b := tab.NextHop(r), tab.NextHop(r.Other()); a>>32|b>>32 != 0 {
				t.Errorf("next-hop words %#x and %#x in state %v", a, b, c.State())
			}
		}
		s = atomic.LoadUint32(&c.state)
		tab.setState(c, s, s&^(flowstate.Mask|flowstate.Slow)|uint32(flowstate.Established))
		for range 20 {
			if tab.NextHop(r)>>32 != 0 {
				break
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	if was == 0 {
		t.Error("the connection was never steady")
	}
}

// Whatever ends a connection, or has its packets looked at, clears the words of both
// directions.
func TestWhatEndsASteadyFlowClearsItsNextHops(t *testing.T) {
	for name, end := range map[string]func(tab *Table, w *Worker, r Ref){
		"delete": func(_ *Table, w *Worker, r Ref) { w.Delete(r) },
		"abort":  func(tab *Table, _ *Worker, r Ref) { tab.Abort(r, 5) },
		"doubt": func(tab *Table, _ *Worker, r Ref) {
			tab.TrackTCP(r.Other(),
				&tcp.Segment{Flags: tcp.FlagRST, Seq: atomic.LoadUint32(&tab.Conn(r).endpointNext) + 1000}, 5)
		},
		"end": func(tab *Table, _ *Worker, r Ref) {
			c := tab.Conn(r)
			tab.TrackTCP(r,
				&tcp.Segment{Flags: tcp.FlagFIN | tcp.FlagACK, Seq: atomic.LoadUint32(&c.clientNext), Ack: atomic.LoadUint32(&c.endpointNext)}, 5)
		},
		"age": func(tab *Table, w *Worker, _ Ref) { ageAll(tab, w, 1<<30) },
	} {
		t.Run(name, func(t *testing.T) {
			tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
			w := tab.Worker(0)
			w.Online()
			r := settled(t, tab, w, 1)
			end(tab, w, r)
			if a, b := tab.NextHop(r), tab.NextHop(r.Other()); a>>32|b>>32 != 0 {
				t.Errorf("next-hop words %#x and %#x", a, b)
			}
		})
	}
}

// The next-hop word lies where neither the key nor the recipe has anything.
func TestNextHopsDoNotChangeKeysAndRecipes(t *testing.T) {
	for name, f := range map[string]*NewFlow{
		"nat 4": natFlow(1), "nat 6": natFlow6(1),
		"l2dsr 4": dsrFlow(ModeL2DSR, false, false), "l2dsr 6": dsrFlow(ModeL2DSR, true, true),
		"l2dsr 4 to 6": dsrFlow(ModeL2DSR, false, true), "l2dsr 6 to 4": dsrFlow(ModeL2DSR, true, false),
		"ipip 4": dsrFlow(ModeIPIP, false, false), "ipip 6": dsrFlow(ModeIPIP, true, true),
		"gue 4 to 6": dsrFlow(ModeGUE, false, true), "gue 6 to 4": dsrFlow(ModeGUE, true, false),
	} {
		t.Run(name, func(t *testing.T) {
			f.Established = f.Mode.DSR()
			tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
			w := tab.Worker(0)
			w.Online()
			r := mustCreate(t, w, f)
			c := tab.Conn(r)
			refs := []Ref{r, r.Other()}[:2]
			if f.Mode.DSR() {
				refs = refs[:1]
			}
			atomic.StoreUint32(&c.state, atomic.LoadUint32(&c.state)&^(flowstate.Mask|flowstate.Slow)|uint32(flowstate.Established))
			look := func() (out []any) {
				for _, d := range refs {
					out = append(out, tab.Entry(d).Tuple(), tab.NewSrc(d), tab.NewDst(d), tab.lookup(tab.Entry(d).Tuple()))
				}
				return out
			}
			before := look()
			for _, d := range refs {
				tab.Settle(d, aWord+uint64(d)<<32)
			}
			for _, d := range refs {
				if tab.NextHop(d) != aWord+uint64(d)<<32 {
					t.Fatalf("next-hop word %#x", tab.NextHop(d))
				}
			}
			after := look()
			for i := range before {
				if before[i] != after[i] {
					t.Errorf("%v, was %v", after[i], before[i])
				}
			}
		})
	}
}

func natFlow6(i int) *NewFlow {
	f := natFlow(i)
	f.Client, f.Endpoint, f.SNAT = MakeKey(ap("[2001:db8::1]:999"), vip6, ProtoTCP), ep6, snat6
	return f
}

func dsrFlow(m Mode, client6, endpoint6 bool) *NewFlow {
	f := natFlow(1)
	f.Mode, f.SNAT = m, netip.Addr{}
	if client6 {
		f.Client = MakeKey(ap("[2001:db8::1]:999"), vip6, ProtoTCP)
	}
	if endpoint6 {
		f.Endpoint = ep6
	}
	return f
}

// A connection whose packets take the fast path does not age, and is as old as the later
// direction's last packet.
func TestPacketsOnTheFastPathKeepAConnection(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	busy, idle := settled(t, tab, w, 1), settled(t, tab, w, 2)
	end := tab.timeouts[flowstate.Established] + 100
	tab.Entry(busy.Other()).Touch(end - 50)
	tab.Entry(busy).Touch(end - 60)
	if tab.Entry(busy).Touch(end - 60) {
		t.Error("two packets of a tick are both its first")
	}
	ageAll(tab, w, end)
	if tab.Conn(idle).State() != flowstate.None {
		t.Error("a silent connection has not expired")
	}
	if c := tab.Conn(busy); c.State() != flowstate.Established || c.LastSeen() != end-50 {
		t.Errorf("%v since %d, want established since %d", c.State(), c.LastSeen(), end-50)
	}
}

// A process that was killed leaves next-hop words that mean nothing to the next.
func TestNextHopsOfTheProcessBeforeAreForgotten(t *testing.T) {
	cfg := fileConfig(t)
	tab := open(t, cfg)
	w := tab.Worker(0)
	w.Online()
	flows := []*NewFlow{natFlow(1), natFlow6(1), dsrFlow(ModeL2DSR, true, true), dsrFlow(ModeL2DSR, false, true)}
	flows[2].Client = MakeKey(ap("[2001:db8::2]:999"), vip6, ProtoTCP)
	flows[3].Client = MakeKey(client(2), vip, ProtoTCP)
	for _, f := range flows {
		r := mustCreate(t, w, f)
		c := tab.Conn(r)
		atomic.StoreUint32(&c.state, atomic.LoadUint32(&c.state)&^(flowstate.Mask|flowstate.Slow)|uint32(flowstate.Established))
		for _, d := range []Ref{r, r.Other()} {
			if d == r || !f.Mode.DSR() {
				tab.Settle(d, aWord)
				tab.Entry(d).Touch(tab.Tick())
			}
		}
		if tab.NextHop(r) != aWord {
			t.Fatal("not steady")
		}
	}
	w.Offline()
	tab.Close()
	tab = open(t, cfg)
	defer tab.Close()
	if a := tab.Restoration(); a.Flows != len(flows) || a.Discarded != 0 {
		t.Fatalf("restoration %+v", a)
	}
	for _, f := range flows {
		r := tab.lookup(f.Client)
		if r == 0 || tab.NextHop(r) != 0 || !f.Mode.DSR() && tab.NextHop(r.Other()) != 0 {
			t.Errorf("entry %d has a next hop", r)
		}
		if got := tab.NewDst(r); got.Addr() != f.Endpoint.Addr() {
			t.Errorf("endpoint %v, was %v", got, f.Endpoint)
		}
	}
}
