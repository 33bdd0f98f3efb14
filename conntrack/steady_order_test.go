package conntrack

import (
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// A reader that sees a connection in another state than the steady state finds no steady entry:
// changeState clears the next hops before. So a process that is killed between two steps leaves
// none.
func TestNextHopsAreClearedBeforeTheStateChanges(t *testing.T) {
	rounds := uint32(300_000)
	if testing.Short() {
		rounds /= 10
	}
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r := settled(t, tab, w, 1)
	c := tab.Changing(r)
	var round atomic.Uint32 // odd from before the connection leaves the state until it comes back
	var stop atomic.Bool
	early := make(chan int)
	go func() {
		found := 0
		for !stop.Load() {
			n := round.Load()
			if n&1 == 0 || c.State() == flowstate.Established {
				tab.NextHop(r.Other()) // keeps the line here: the store of the other worker takes longer
				continue
			}
			hops := tab.NextHop(r) | tab.NextHop(r.Other())
			if hops>>32 != 0 && round.Load() == n {
				found++
			}
		}
		early <- found
	}()
	for n := range rounds {
		s := atomic.LoadUint32(&c.state)
		round.Store(2*n + 1)
		if !tab.setState(c, s, s&^flowstate.Mask|uint32(flowstate.FinWait)) {
			t.Error("the state has changed")
			break
		}
		for range n % 128 {
			c.State()
		}
		round.Store(2*n + 2)
		s = atomic.LoadUint32(&c.state)
		tab.setState(c, s, s&^(flowstate.Mask|flowstate.Slow)|uint32(flowstate.Established))
		settle(tab, r)
	}
	stop.Store(true)
	if n := <-early; n != 0 {
		t.Errorf("%d times the state had changed while an entry was steady", n)
	}
}
