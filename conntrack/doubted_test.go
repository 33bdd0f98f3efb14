package conntrack

import "testing"

// Where no port is fresh, those of half-open flows pass on, and not those of connections
// that may be alive.
func TestAPortThatMayBeInUseIsTakenLast(t *testing.T) {
	const ports, silent = 128, 2 * deadTicks
	tab := openHeap(t, Config{MaxFlows: 1 << 12, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	flow := func(i int, tick uint32) *NewFlow {
		f := natFlow(i)
		f.PortHi, f.Tick = f.PortLo+ports-1, tick
		return f
	}
	var doubted []Ref
	for i := range ports {
		if i%8 == 0 {
			mustCreate(t, w, flow(i, silent))
			continue
		}
		r := mustCreate(t, w, flow(i, 1))
		talk(t, tab, r, 1, handshakeDone...)
		c := tab.Conn(r)
		c.state = watched(c.state | unconfirmed)
		doubted = append(doubted, r)
	}
	for i := range 200 {
		mustCreate(t, w, flow(1000+i, silent+uint32(i)/4))
		w.Quiesce()
	}
	dead := 0
	for _, r := range doubted {
		if tab.Conn(r).State() != StateEstablished {
			dead++
		}
	}
	if dead != 0 {
		t.Errorf("%d of %d connections that may be alive have lost their ports", dead, len(doubted))
	}
	// Without half-open ones they give way.
	tab.Range(func(r Ref) bool {
		if tab.Conn(r).State() == StateSynSent {
			tab.Conn(r).state = watched(uint32(StateEstablished) | published)
		}
		return true
	})
	mustCreate(t, w, flow(2000, silent+100))
}
