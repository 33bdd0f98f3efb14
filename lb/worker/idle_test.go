package worker

import (
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// old makes n flows, all within one tick, of which there was nothing for a day. Ticks
// in between would begin to age the first of them.
func (b *bench) old(t *testing.T, n int) {
	t.Helper()
	b.w.beginRound()
	for i := range n {
		p := request(false, header.ProtoUDP)
		p.src = ap(client4, uint16(1024+i))
		b.give(portClient, p.build(t))
		if out := b.roundAtTheSameTime(); len(out[portServer]) != 1 {
			t.Fatalf("flow %d: drops %v", i, b.drops())
		}
	}
	b.w.tick = b.lb.flows.Tick() + 24*3600*secondTicks
}

func TestAWorkerWithoutPacketsAgesWhatIsDue(t *testing.T) {
	b := newBench(t)
	const n = 200
	b.old(t, n)
	b.give(portClient, request(false, header.ProtoUDP).build(t))
	if !b.w.sleeper.age() {
		t.Fatal("it goes to sleep though a packet waits")
	}
	if left := b.lb.flows.Flows(); left < n/2 || left == n {
		t.Errorf("%d of %d flows are left after one step", left, n)
	}
	b.q[portClient].In = nil
	if b.w.sleeper.age() {
		t.Error("it does not go to sleep")
	}
	if left := b.lb.flows.Flows(); left != 0 {
		t.Errorf("%d flows are left", left)
	}
}

// A worker that never sleeps ages as it goes round; nobody else does here.
func TestAWorkerAgesInItsRounds(t *testing.T) {
	b := newBench(t)
	const n = 200
	b.old(t, n)
	for rounds := 0; b.lb.flows.Flows() > 0; rounds++ {
		before := b.lb.flows.Flows()
		b.w.finish()
		if rounds > n || before-b.lb.flows.Flows() > n/2 {
			t.Fatalf("round %d: %d flows, then %d", rounds, before, b.lb.flows.Flows())
		}
	}
	b.lb.flows.Range(func(r conntrack.Ref) bool { t.Errorf("flow %d is listed", r); return true })
	b.w.Round() // and goes on as if nothing had been
	b.one(portClient, request(false, header.ProtoUDP).build(t), portServer)
}
