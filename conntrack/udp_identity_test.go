package conntrack

import (
	"testing"

	"github.com/weirlb/weir/conntrack/udp"
)

// ask has the client of flow i of few ports send a datagram at tick, and the endpoint answer.
// It returns what Create has.
func ask(tab *Table, w *Worker, i, ports int, tick uint32) (Ref, Outcome) {
	f := portFlow(i, ports)
	f.Client, f.Tick = MakeKey(client(i), vip, ProtoUDP), tick
	r, o := w.Create(f)
	if o == Created || o == Existed {
		tab.TrackUDP(r, tick)
		tab.TrackUDP(r.Other(), tick)
	}
	w.Quiesce()
	return r, o
}

// Two forged datagrams per flow, of which the first is answered, keep no honest flow from its
// port, nor a connection from its room.
func TestForgedDatagramsThatAreRepeatedHoldNoPort(t *testing.T) {
	const ports = 4536
	tab := openTest(t, Config{MaxFlows: 4 * ports})
	w := tab.Worker(0)
	w.Online()
	for i := range ports {
		r, _ := ask(tab, w, i, ports, 100)
		tab.TrackUDP(r, 100+udp.StreamAfter+2)
	}
	for _, after := range []uint32{1, 10, 60, 115} {
		refused := 0
		for i := range 200 {
			if _, o := ask(tab, w, 1<<16+i+int(after)<<10, ports, 100+udp.StreamAfter+2+after*TicksPerSecond); o != Created {
				refused++
			}
		}
		if refused > 10 {
			t.Errorf("after %d s %d of 200 honest flows are refused, %+v", after, refused, tab.Stats())
		}
	}
	checkTable(t, tab)
}

func TestForgedDatagramsThatAreRepeatedHoldNoRoom(t *testing.T) {
	const flows = 16384
	tab := openTest(t, Config{MaxFlows: flows})
	w := tab.Worker(0)
	w.Online()
	for i := range 15100 {
		f := natFlow(i)
		f.Client, f.PortLo, f.Tick = MakeKey(client(i), vip, ProtoUDP), 1024, 100
		r := mustCreate(t, w, f)
		tab.TrackUDP(r.Other(), 100)
		tab.TrackUDP(r, 100+udp.StreamAfter+2)
		w.Quiesce()
	}
	for _, after := range []int{5, 60, 110} {
		refused := 0
		for i := range 3000 {
			f := natFlow(1<<17 + 10000*after + i)
			f.PortLo, f.Tick = 1024, 100+uint32(after)*TicksPerSecond+uint32(i)/64
			r, o := w.Create(f)
			if o != Created {
				refused++
				continue
			}
			talk(t, tab, r, f.Tick, handshakeDone...)
			w.Quiesce()
		}
		if refused > 0 {
			t.Errorf("after %d s %d of 3000 TCP connections are refused, %+v", after, refused, tab.Stats())
		}
	}
	checkTable(t, tab)
}
