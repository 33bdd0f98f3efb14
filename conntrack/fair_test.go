package conntrack

import (
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// honestSYNs counts how many of n new TCP connections, one per tick from tick on,
// are made at once.
func honestSYNs(tab *Table, w *Worker, n int, tick uint32) (made int) {
	for i := range n {
		f := natFlow(1<<20 + i)
		f.Endpoint, f.Tick = netipAddrPort(i), tick+uint32(i)
		if _, o := w.Create(f); o == Created {
			made++
		}
		w.Quiesce()
	}
	return made
}

// Two packets from nowhere make an established flow where the endpoint's answers do
// not pass.
func TestBlindPacketsOfDSRFlowsDoNotKeepRoomFromOthers(t *testing.T) {
	const max = 4096
	tab := openTest(t, Config{MaxFlows: max})
	w := tab.Worker(0)
	w.Online()
	for i := range max {
		f := natFlow(i)
		f.Mode, f.Established = ModeL2DSR, true
		r, o := w.Create(f)
		if o != Created {
			break
		}
		talk(t, tab, r, 0, "> ACK", "> ACK")
		w.Quiesce()
	}
	if made := honestSYNs(tab, w, 200, 3600*TicksPerSecond); made != 200 {
		t.Errorf("%d of 200 connections are made an hour later, %+v", made, tab.Stats())
	}
	checkTable(t, tab)
	checkFree(t, tab)
}

func TestAnsweredQueriesDoNotKeepRoomFromOthers(t *testing.T) {
	const max = 4096
	tab := openTest(t, Config{MaxFlows: max})
	w := tab.Worker(0)
	w.Online()
	for i := range max {
		f := natFlow(i)
		f.Client, f.Endpoint = MakeKey(client(i), vip, ProtoUDP), netipAddrPort(i)
		r, o := w.Create(f)
		if o != Created {
			break
		}
		tab.TrackUDP(r.Other(), 0)
		w.Quiesce()
	}
	if made := honestSYNs(tab, w, 200, 20*TicksPerSecond); made != 200 {
		t.Errorf("%d of 200 connections are made 20 seconds later, %+v", made, tab.Stats())
	}
	checkTable(t, tab)
}

// One look of the hand at the whole table takes connections in the order of their
// classes.
func TestConnectionsGoInTheOrderOfTheirClasses(t *testing.T) {
	const tick = 1000
	kinds := []struct {
		name          string
		class         evictionClass
		state         uint32
		created, seen uint32
	}{
		{"SYN, unanswered for a second", evictHalfOpen, uint32(flowstate.SynSent), tick - 16, tick - 16},
		{"SYN-ACK, a second ago", evictHalfOpen, uint32(flowstate.SynRecv), tick - 16, tick - 16},
		{"query, unanswered", evictHalfOpen, uint32(flowstate.Unreplied), tick - 16, tick - 16},
		{"SCTP cookie", evictHalfOpen, uint32(flowstate.SCTPCookieEchoed), tick - 16, tick - 16},
		{"one-way, first packet", evictHalfOpen, flowstate.ClientOnly | uint32(flowstate.SynSent), tick - 16, tick - 16},
		{"reset", evictEnded, uint32(flowstate.Close), tick - 50, tick},
		{"closed by both", evictEnded, uint32(flowstate.TimeWait), tick - 50, tick - 20},
		{"one-way, two packets at once", evictBrief, flowstate.ClientOnly | uint32(flowstate.Established), tick - 100, tick - 100},
		{"query, answered", evictBrief, uint32(flowstate.Replied), tick - 50, tick - 49},
		{"one-way, half an hour", evictIdle, flowstate.ClientOnly | uint32(flowstate.Established), 0, tick - 16},
		{"one-way SCTP", evictIdle, flowstate.ClientOnly | uint32(flowstate.SCTPEstablished), 0, tick - 16},
		{"SYN, just now", evictYoung, uint32(flowstate.SynSent), tick - 1, tick - 1},
		{"query, answered just now", evictUnproven, uint32(flowstate.Replied), tick - 1, tick},
		{"one-way, busy", evictUnproven, flowstate.ClientOnly | uint32(flowstate.Established), 0, tick - 1},
		{"established", evictNever, uint32(flowstate.Established), 0, 0},
		{"half closed", evictNever, uint32(flowstate.FinWait) | flowstate.FinClient, 0, 0},
		{"UDP, for two seconds", evictBrief, uint32(flowstate.Stream), tick - 48, tick - 17},
		{"UDP, for an hour", evictNever, uint32(flowstate.Stream) | flowstate.Heard, 0, tick - 1},
		{"UDP, silent for 10 s", evictSilent10, uint32(flowstate.Stream) | flowstate.Heard, 0, tick - flowstate.SilentTicks},
		{"UDP, silent for 60 s", evictSilent40, uint32(flowstate.Stream) | flowstate.Heard, 0, tick - 60*TicksPerSecond},
		{"SCTP association", evictNever, uint32(flowstate.SCTPEstablished), 0, 0},
		{"SCTP shutdown", evictNever, uint32(flowstate.SCTPShutdown), 0, 0},
	}
	const each = 4
	tab := openHeap(t, Config{MaxFlows: 128, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	kindOf := map[uint32]int{}
	for i := range each * len(kinds) { // mixed
		k := &kinds[i%len(kinds)]
		f := natFlow(i)
		f.Tick, f.PortLo = k.created, 1024
		r := mustCreate(t, w, f)
		kindOf[r.Conn()] = i % len(kinds)
		c := tab.Conn(r)
		tab.setState(c, c.state, flowstate.Published|k.state)
		c.lastSeen = k.seen
		tab.Entry(r).seen, tab.Entry(r.Other()).seen = k.seen, k.seen
	}
	tab.look = 128
	left := len(kindOf)
	for left > 0 {
		before := left
		tab.evictAll(w, tick, 1)
		for conn, k := range kindOf {
			if tab.conns[conn].state&flowstate.Published != 0 {
				continue
			}
			for other, o := range kindOf {
				if tab.conns[other].state&flowstate.Published != 0 && kinds[o].class < kinds[k].class {
					t.Fatalf("%q goes before %q", kinds[k].name, kinds[o].name)
				}
			}
			delete(kindOf, conn)
			left--
		}
		if left == before {
			break
		}
	}
	for _, k := range kindOf {
		if kinds[k].class != evictNever {
			t.Errorf("%q does not go", kinds[k].name)
		}
	}
	if want := 5 * each; left != want {
		t.Errorf("%d are left, want %d", left, want)
	}
	checkTable(t, tab)
}

// evictAll is one eviction of want connections.
func (t *Table) evictAll(w *Worker, tick, want uint32) {
	bound := t.bound.Load()
	looked, last, part := w.survey(0, bound, want, tick)
	w.evictUpTo(0, bound, looked, last, part, tick)
}
