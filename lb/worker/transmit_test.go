package worker

import (
	"slices"
	"testing"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/xsk"
)

// congested is a queue with a transmit ring of a few descriptors. The device takes only
// some of them per Kick, as a device queue that is full does.
type congested struct {
	*lbtest.Memory
	size   int        // of the ring
	takes  int        // by the device, per Kick
	ring   []xsk.Desc // not taken yet
	tries  int        // calls of Transmit
	kicked int
}

func (c *congested) Transmit(d []xsk.Desc) int {
	c.tries++
	n := min(len(d), c.size-len(c.ring))
	c.ring = append(c.ring, d[:n]...)
	return n
}

func (c *congested) Kick() error {
	c.kicked++
	n := min(c.takes, len(c.ring))
	c.Memory.Transmit(c.ring[:n])
	c.ring = slices.Delete(c.ring, 0, n)
	return nil
}

// congest puts such a queue before the endpoints.
func (b *bench) congest(size, takes int) *congested {
	c := &congested{Memory: b.q[portServer], size: size, takes: takes}
	b.w.ports[portServer].Queue = c
	return c
}

// requests gives the worker n packets to the endpoint, each from a port of its own.
func (b *bench) requests(first, n int) {
	for i := range n {
		p := request(false, header.ProtoUDP)
		p.src = ap(client4, uint16(first+i))
		b.give(portClient, p.build(b.t))
	}
}

// turn is one round, of which what has left stays where it is.
func (b *bench) turn() {
	b.w.beginRound()
	b.w.receive()
	b.w.endRound()
}

// A full ring is emptied once, and what then does not fit is dropped: the next
// batch must not wait for a device that cannot keep up.
func TestAFullRingIsTriedOnceMore(t *testing.T) {
	b := newBench(t)
	c := b.congest(4, 3)
	b.requests(1000, 10)
	b.turn()
	if c.tries != 2 || c.kicked != 2 {
		t.Errorf("%d tries and %d kicks, want 2 (the second after the first kick) and 2 (the second at the end)", c.tries, c.kicked)
	}
	// 4 on the ring, 3 of them sent, 3 more on the ring.
	if sent, left, p := len(c.Out), len(c.ring), &b.w.ports[portServer]; sent != 6 || left != 1 || p.sending != left {
		t.Errorf("%d sent, %d on the ring, %d known to be being sent", sent, left, p.sending)
	}
	if n := b.drops()[DropTxFull.String()]; n != 3 {
		t.Errorf("%d dropped, want 3: %v", n, b.drops())
	}
	if n := b.w.published.read().Values[counter.TxPackets]; n != 7 {
		t.Errorf("%d packets counted as sent, want 7", n)
	}
	b.turn() // nothing is new: the rest is sent all the same
	if len(c.Out) != 7 || len(c.ring) != 0 {
		t.Errorf("%d sent, %d on the ring", len(c.Out), len(c.ring))
	}
	b.framesHome()
}

// While the device takes nothing, packets stay on the ring and the kernel is
// told once per round; when it takes some again each is sent, and once.
func TestWhatADeviceDoesNotTakeIsSentLater(t *testing.T) {
	b := newBench(t)
	c := b.congest(64, 0)
	b.requests(1000, 8)
	b.turn()
	idle := c.kicked
	for range 5 {
		b.turn()
	}
	if p := &b.w.ports[portServer]; c.kicked != idle+5 || c.tries != 1 || p.sending != 8 || p.txn != 0 {
		t.Errorf("%d kicks in 5 rounds, %d tries, %d being sent, %d gathered", c.kicked-idle, c.tries, p.sending, p.txn)
	}
	c.takes = 3
	b.requests(1008, 4)
	for range 4 {
		b.turn()
	}
	var ports []uint16
	for _, d := range c.Out {
		f := b.w.area[d.Addr : d.Addr+uint64(d.Len)]
		var p header.Packet
		if header.Parse(f, len(f), &p) != header.OK {
			t.Fatalf("broken: %x", f)
		}
		ports = append(ports, uint16(f[p.L4])<<8|uint16(f[p.L4+1]))
	}
	if slices.Sort(ports); len(slices.Compact(ports)) != 12 {
		t.Errorf("sent from ports %v, want 12 different ones", ports)
	}
	if b.w.ports[portServer].sending != 0 || len(b.drops()) != 0 {
		t.Errorf("%d still being sent, drops %v", b.w.ports[portServer].sending, b.drops())
	}
	b.framesHome()
}

// A device that takes nothing for long costs each round a single further try, and the
// ring's length in frames. Every further packet is dropped.
func TestAStuckDeviceCostsABoundedTry(t *testing.T) {
	b := newBench(t)
	c := b.congest(32, 0)
	const rounds = 20
	for i := range rounds {
		b.requests(1000+8*i, 8)
		b.turn()
	}
	if c.tries > 2*rounds || c.kicked > 2*rounds {
		t.Errorf("%d tries and %d kicks in %d rounds", c.tries, c.kicked, rounds)
	}
	if n := b.drops()[DropTxFull.String()]; n != 8*rounds-32 || b.w.ports[portServer].sending != 32 {
		t.Errorf("%d dropped, %d on the ring", n, b.w.ports[portServer].sending)
	}
	c.takes = 32
	b.turn()
	b.framesHome()
}

// A port of a load balancer with a single NIC and the host veth sends two whole rounds.
func TestTwoDevicesHaveFramesToSend(t *testing.T) {
	if n := sendShare(2); n < 2*txQueueLen {
		t.Errorf("a port may have %d frames on the way out, not even two rounds", n)
	}
}
