package worker

import (
	"testing"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
)

// rewired has a worker carry out a change of one port.
func (b *bench) rewired(slot int, p Port, frames ...uint64) {
	b.t.Helper()
	b.w.Update(&PortUpdate{Ports: []PortChange{{slot, p}}, Devices: 3, Frames: frames})
	b.w.Round()
	if !b.w.Updated() {
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
	first.w.Round()
	for i := range 20 {
		ask(first, 3000+i)
	}
	first.w.beginRound()
	first.w.receive()
	first.w.flush() // sent, and not taken back yet
	first.w.conntrack.Quiesce()
	if len(gone.Done) != 20 {
		t.Fatalf("%d packets sent", len(gone.Done))
	}
	ask(second, 4000)
	second.w.Round() // hands it over

	first.rewired(portServer, Port{})
	first.q[portServer] = nil
	ask(first, 5000)
	first.w.Round()
	if n := first.drops()[DropHandoffFull.String()]; n != 2 {
		t.Errorf("%d packets dropped for want of the queue, want 2: %v", n, first.drops())
	}
	frames := append([]uint64(nil), gone.Empty...)
	for _, a := range gone.Done {
		frames = append(frames, l.memory.Base(a))
	}
	first.rewired(portServer, Port{}, frames...)
	account(t, l, workers)

	first.q[portServer] = &lbtest.Memory{}
	first.rewired(portServer, Port{Queue: first.q[portServer], Ring: 512})
	another := &lbtest.Memory{}
	first.rewired(portHost+1, Port{Queue: another, Ring: 64})
	ask(first, 5000)
	ask(second, 4000)
	second.w.Round()
	first.w.Round()
	if n := len(first.q[portServer].Out); n != 2 {
		t.Errorf("%d packets left by the new queue (drops %v)", n, first.drops())
	}
	if len(another.Empty) != 64 {
		t.Errorf("the queue of the new port got %d frames to receive into", len(another.Empty))
	}
	first.rewired(portHost+1, Port{}, another.Empty...)
	account(t, l, workers)
}

// A port keeps its queue when another worker gets one: the frames that the kernel has through it
// come back.
func TestAPortThatKeepsItsQueueGetsItsFramesBack(t *testing.T) {
	first, second := pair(t)
	queue := first.q[portServer]
	first.w.Round()
	req := request(false, header.ProtoUDP)
	req.src = ap(client4, 3000)
	first.give(portClient, req.build(t))
	first.w.beginRound()
	first.w.receive()
	first.w.flush() // sent, and not taken back yet
	first.w.conntrack.Quiesce()
	if len(queue.Done) != 1 {
		t.Fatalf("%d packets sent", len(queue.Done))
	}
	first.rewired(portServer, first.w.ports[portServer].Port)
	first.w.Round()
	if len(queue.Done) != 0 {
		t.Error("a frame that was sent has not come back")
	}
	account(t, first.lb, []*bench{first, second})
}
