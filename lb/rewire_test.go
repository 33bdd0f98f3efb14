package lb

import (
	"testing"

	"github.com/weirlb/weir/lb/header"
)

// rewired has a worker carry out a change of one port.
func (b *bench) rewired(slot int, p *port, frames ...uint64) {
	b.t.Helper()
	b.w.change.Store(&rewiring{ports: []rewired{{slot, p}}, sendMax: b.w.sendMax, frames: frames})
	b.w.round()
	if b.w.change.Load() != nil {
		b.t.Fatal("the worker has not said that it is done")
	}
}

// A queue goes while packets are on its rings, in the other worker's hands and
// on their way to it; its frames come back; another queue comes in its place,
// and one more at a port that there was not.
func TestQueuesGoAndComeWhilePacketsAreOnTheirWay(t *testing.T) {
	first, second := pair(t)
	workers := []*bench{first, second}
	first.w.ports = append(make([]port, 0, 8), first.w.ports...)
	l := first.lb
	ask := func(b *bench, port int) {
		req := request(false, header.ProtoUDP)
		req.src = ap(client4, uint16(port))
		b.give(portClient, req.build(t))
	}
	gone := first.q[portServer]
	first.w.round()
	for i := range 20 {
		ask(first, 3000+i)
	}
	first.w.beginRound()
	first.w.receive()
	first.w.flush() // sent, and not taken back yet
	first.w.ct.Quiesce()
	if len(gone.Done) != 20 {
		t.Fatalf("%d packets sent", len(gone.Done))
	}
	ask(second, 4000)
	second.w.round() // hands it over

	first.rewired(portServer, &port{})
	first.q[portServer] = nil
	ask(first, 5000)
	first.w.round()
	if n := first.drops()[DropHandoffFull.String()]; n != 2 {
		t.Errorf("%d packets dropped for want of the queue, want 2: %v", n, first.drops())
	}
	frames := append([]uint64(nil), gone.Empty...)
	for _, a := range gone.Done {
		frames = append(frames, l.memory.Base(a))
	}
	first.rewired(portServer, &port{}, frames...)
	account(t, l, workers)

	first.q[portServer] = &Memory{}
	first.rewired(portServer, &port{q: first.q[portServer], ring: 512})
	another := &Memory{}
	first.rewired(portHost+1, &port{q: another, ring: 64})
	ask(first, 5000)
	ask(second, 4000)
	second.w.round()
	first.w.round()
	if n := len(first.q[portServer].Out); n != 2 {
		t.Errorf("%d packets left by the new queue (drops %v)", n, first.drops())
	}
	if len(another.Empty) != 64 {
		t.Errorf("the queue of the new port got %d frames to receive into", len(another.Empty))
	}
	first.rewired(portHost+1, &port{}, another.Empty...)
	account(t, l, workers)
}
