package conntrack

import (
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// ageAll has a worker look at the whole table at tick, as if a sweep had gone by.
func ageAll(tab *Table, w *Worker, tick uint32) {
	tab.progress.at.Store(uint64(tick-sweepTicks) << 32)
	for w.Age(tick) {
		w.Quiesce()
	}
}

// halfOpen creates n connections with a SYN each at tick 0, and returns the tick at
// which they have just expired.
func halfOpen(t *testing.T, tab *Table, w *Worker, n int) (expired uint32) {
	for i := range n {
		f := natFlow(i)
		f.Endpoint, f.ServiceID = netipAddrPort(i), NoID // not too many of any Service
		mustCreate(t, w, f)
		w.Quiesce()
	}
	for w.Age(0) { // what it has made it need not clear up at once
		w.Quiesce()
	}
	timeouts, _ := flowstate.Timeouts{}.Ticks()
	return timeouts[flowstate.SynSent] + 1
}

func TestATurnOfAgeingIsSpreadOverItsTime(t *testing.T) {
	const n = 2048
	tab := openTest(t, Config{MaxFlows: 2 * n})
	w := tab.Worker(0)
	w.Online()
	tick := halfOpen(t, tab, w, n)
	ageAll(tab, w, tick-1)
	if tab.Flows() != n {
		t.Fatalf("%d of %d flows are left before they expire", tab.Flows(), n)
	}
	tab.progress.at.Store(uint64(tick) << 32)
	for i := range sweepTicks {
		for w.Age(tick + uint32(i)) {
			w.Quiesce()
		}
		if want := n - n/sweepTicks*(i+1); tab.Flows() != want {
			t.Fatalf("after %d ticks %d flows are left, want %d", i+1, tab.Flows(), want)
		}
	}
	if tab.Stats().Expired != n {
		t.Errorf("%+v", tab.Stats())
	}
	checkTable(t, tab)
	checkFree(t, tab)
}

// However much is due, a round is not held up for long.
func TestAWorkerAgesInBoundedSteps(t *testing.T) {
	const n = 2048
	tab := openTest(t, Config{MaxFlows: 2 * n})
	w := tab.Worker(0)
	w.Online()
	tick := halfOpen(t, tab, w, n)
	tab.progress.at.Store(uint64(tick-sweepTicks) << 32)
	made := 0
	for i := n; tab.Stats().Expired < n; i += made {
		made = i / 16 % 3 * 40
		for j := range made {
			f := natFlow(i + j)
			f.Endpoint, f.Tick = netipAddrPort(i+j), tick
			mustCreate(t, w, f)
		}
		before := tab.Stats().Expired
		if !w.Age(tick) {
			t.Fatalf("nothing is due with %d expired of %d", before, n)
		}
		if got := int(tab.Stats().Expired - before); got > stepExpire*(1+made/stepExpire) {
			t.Fatalf("%d connections deleted at once, %d were made", got, made)
		}
		w.Quiesce()
	}
}

// A worker that goes to sleep for ever in the middle of a chunk delays ageing by a single
// sweep. Others do the work of those that are asleep.
func TestWorkersAgeForOthers(t *testing.T) {
	const n = 4096
	tab := openTest(t, Config{MaxFlows: 2 * n, Workers: 3})
	stuck, a, b := tab.Worker(0), tab.Worker(1), tab.Worker(2)
	a.Online()
	tick := halfOpen(t, tab, a, n)
	tab.progress.at.Store(uint64(tick-sweepTicks) << 32)
	stuck.Online()
	if !stuck.Age(tick) || !stuck.ageing() {
		t.Fatal("the chunk ends in one step")
	}
	stuck.Offline()
	b.Online()
	for moved := true; moved; {
		moved = a.Age(tick)
		moved = b.Age(tick) || moved
		a.Quiesce()
		b.Quiesce()
	}
	if left := tab.Flows(); left == 0 || left > chunkLen {
		t.Errorf("%d flows are left of a chunk of %d", left, chunkLen)
	}
	b.Offline()
	ageAll(tab, a, tick)
	if tab.Flows() != 0 {
		t.Errorf("%d flows are left a sweep later", tab.Flows())
	}
	a.Offline()
	checkTable(t, tab)
	checkFree(t, tab)
}

func TestWhatWorkersLeaveForTooLongIsAged(t *testing.T) {
	const n = 2048
	tab := openTest(t, Config{MaxFlows: 2 * n})
	w := tab.Worker(0)
	w.Online()
	tick := halfOpen(t, tab, w, n)
	w.Offline()
	tab.progress.at.Store(uint64(tick) << 32)
	for i := range uint32(sweepTicks + lateTicks) {
		tab.sweep(tick+i, lateTicks, lateLeast)
		if due := (int(i) - lateTicks + 1) * n / sweepTicks; n-tab.Flows() != max(due, n/sweepTicks) {
			t.Fatalf("after %d ticks %d are gone, due were %d", i, n-tab.Flows(), due)
		}
	}
	if tab.Flows() != 0 {
		t.Errorf("%d flows are left", tab.Flows())
	}
}

func TestTheStateCountsAreThoseOfAWholeSweep(t *testing.T) {
	tab := openTest(t, Config{Workers: 2})
	a, b := tab.Worker(0), tab.Worker(1)
	a.Online()
	b.Online()
	for i := range 1000 {
		if r := establish(t, tab, a, i); i < 300 {
			talk(t, tab, r, 7, "> RST")
		}
	}
	for tick := uint32(0); tick <= 2*sweepTicks; tick++ {
		for moved := true; moved; {
			moved = a.Age(tick)
			moved = b.Age(tick) || moved
		}
	}
	s := tab.Stats().ByState
	if s[flowstate.Established] != 700 || s[flowstate.Close] != 300 {
		t.Errorf("stateCounts %v", s)
	}
}

// What is due in a tick is bounded: a sweep of a very large table takes longer.
func TestALargeTableIsAgedAtABoundedRate(t *testing.T) {
	tab := openTest(t, Config{MaxFlows: 64})
	w := tab.Worker(0)
	const n = 16 << 20
	tab.bound.Store(n) // of which nothing is looked at here
	defer tab.bound.Store(0)
	tab.progress.at.Store(1000 << 32)
	for tick := range uint32(n / mostDue) {
		taken := uint32(0)
		for w.takeChunk(1000+tick, 0, chunkLen) {
			taken += w.chunk.end - w.chunk.next
		}
		if taken != mostDue {
			t.Fatalf("%d connections are due in tick %d", taken, tick)
		}
	}
	if w.takeChunk(1000+n/mostDue-1, 0, chunkLen) {
		t.Error("the sweep goes on")
	}
	w.chunk = sweepChunk{}
}
