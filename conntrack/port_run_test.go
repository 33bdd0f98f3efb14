package conntrack

import "testing"

// Connections that stay have consecutive ports. New ones pass over them, however many there are.
func TestALongRunOfUsedPortsIsPassedOver(t *testing.T) {
	const run, ports = 3 * scanFresh / 2, 40000
	tab := openTest(t, Config{MaxFlows: 2 * run})
	w := tab.Worker(0)
	w.Online()
	flow := func(i int) *NewFlow {
		f := natFlow(i)
		f.PortLo, f.PortHi, f.Tick, f.Keep = 1024, 1024+ports-1, 100, KeepStreams
		return f
	}
	f := flow(0)
	for i := range run {
		f = flow(i)
		talk(t, tab, mustCreate(t, w, f), 100, handshakeDone...)
		w.Quiesce()
	}
	c := tab.ports.cursor(f.prefetched.group)
	c.at.Store(c.at.Load() - run + ports) // once round
	refused := 0
	for i := range 100 {
		f := flow(run + i)
		_, o := w.Create(f)
		for o == NoPort && f.TakeMore() {
			_, o = w.Create(f)
		}
		if o != Created {
			refused++
		}
		w.Quiesce()
	}
	if refused > 0 {
		t.Errorf("%d of 100 connections refused while %d ports are free, %+v", refused, ports-run-100+refused, tab.Stats())
	}
}
