package worker

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/handoff"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/xsk"
)

// pair is two workers: both have a queue towards clients, only the first one
// has queues towards endpoints and of the host veth.
func pair(t *testing.T) (first, second *bench) {
	t.Helper()
	first = newBenchOf(t, 2)
	w := first.lb.newWorker(1, 3)
	second = &bench{t: t, lb: first.lb, w: w}
	w.hostVeth, w.hostVethMACs = first.w.hostVeth, first.w.hostVethMACs
	second.q[portClient] = &lbtest.Memory{}
	p := &w.ports[portClient]
	p.Queue, p.Ring, p.Metadata = second.q[portClient], 512, true
	for range 1024 { // its share of the frames
		a, _ := first.w.free.pop()
		w.free.push(a)
	}
	Connect([]*Worker{first.w, w})
	return first, second
}

// frames counts the frames that a bench's worker, queues and rings hold.
func (b *bench) frames() int {
	n := len(b.w.free.addr)
	for _, q := range b.q {
		if q != nil {
			n += len(q.Empty) + len(q.Done) + len(q.In)
		}
	}
	return n
}

func TestAPacketIsHandedToTheOwnerOfItsWayOut(t *testing.T) {
	first, second := pair(t)
	total := first.frames() + second.frames()
	for i := range 200 {
		req := request(false, header.ProtoUDP)
		req.src = ap(client4, uint16(2000+i))
		second.give(portClient, req.build(t))
	}
	second.w.beginRound()
	for second.w.receive() > 0 {
	}
	second.w.endRound()
	if n := second.w.published.read().Values[counter.Handoff]; n != 200 {
		t.Fatalf("%d packets handed over (drops %v)", n, second.drops())
	}
	var sent [][]byte
	for range 4 {
		first.w.beginRound()
		first.w.receiveHandoffs()
		first.w.endRound()
		for _, d := range first.q[portServer].Out {
			sent = append(sent, bytes.Clone(first.w.area[d.Addr:d.Addr+uint64(d.Len)]))
		}
		first.q[portServer].Out = nil
	}
	if len(sent) != 200 {
		t.Fatalf("%d packets sent by the owner", len(sent))
	}
	for _, f := range sent {
		var p header.Packet
		if header.Parse(f, len(f), &p) != header.OK || !bytes.Equal(f[0:6], macServer) {
			t.Fatalf("handed-over packet is broken: %x", f)
		}
	}
	// Frames come back, as many as were lent.
	for range 4 {
		second.w.beginRound()
		second.w.receiveHandoffs()
		second.w.endRound()
	}
	if got := first.frames() + second.frames(); got != total {
		t.Errorf("%d frames, want %d", got, total)
	}
	if n := second.frames(); n != 1024 {
		t.Errorf("the lender has %d frames, want 1024", n)
	}
}

func TestAFullHandoffRingDropsOnlyWhatDoesNotFit(t *testing.T) {
	_, second := pair(t)
	second.w.links[0].out = handoff.New(16)
	for i := range 64 {
		req := request(false, header.ProtoUDP)
		req.src = ap(client4, uint16(2000+i))
		second.give(portClient, req.build(t))
	}
	second.w.beginRound()
	second.w.receive()
	second.w.endRound()
	if c := second.w.published.read(); c.Values[counter.Handoff] != 16 || c.Drops["handoff-ring-full"] != 48 {
		t.Errorf("handed over %d, drops %v", c.Values[counter.Handoff], c.Drops)
	}
	if n := second.frames(); n != 1024-16 {
		t.Errorf("%d frames left, want %d", n, 1024-16)
	}
}

func TestExhaustedPortsNameTheEndpoint(t *testing.T) {
	b := newBench(t)
	b.lb.node.Store(benchNode(61000, 61003))
	got := b.newFlows(6, 3000, header.ProtoUDP)
	if n := len(got); n != 4 {
		t.Errorf("%d flows got a port, want 4", n)
	}
	if b.drops()["snat-ports-exhausted"] != 2 {
		t.Errorf("drops %v", b.drops())
	}
	var named []string
	b.w.exhausted.each(func(endpoint netip.AddrPort, source netip.Addr) {
		named = append(named, endpoint.String()+" from "+source.String())
	})
	if len(named) == 0 || named[0] != "10.1.0.5:8080 from 10.1.0.1" {
		t.Errorf("named %v", named)
	}
	b.framesHome()
}

// Packets of several buffers reach the owner's ring whole, however many of
// them there are: half of one would be taken for a packet.
func TestPacketsOfSeveralBuffersAreHandedOverWhole(t *testing.T) {
	first, second := pair(t)
	const packets = 130 // 390 buffers: more than one round takes
	for i := range packets {
		req := request(false, header.ProtoUDP)
		req.src, req.payload = ap(client4, uint16(2000+i)), 1000
		second.giveBuffers(portClient, req.build(t), 500, 300)
	}
	second.w.beginRound()
	for second.w.receive() > 0 {
	}
	second.w.endRound()
	// The gather queue of the way out is nearly full already, and the ring
	// behind it takes a number that three does not divide.
	whole := 0
	for range 6 {
		first.w.beginRound()
		for i := range 20 {
			req := request(false, header.ProtoUDP)
			req.src = ap(client4, uint16(9000+i))
			first.give(portClient, req.build(t))
		}
		first.w.receive()
		first.w.receiveHandoffs()
		first.w.endRound()
		whole += wholePackets(t, first, first.q[portServer].Out)
		first.q[portServer].Out = nil
	}
	if want := packets + 6*20; whole != want {
		t.Errorf("%d packets sent, want %d (drops %v)", whole, want, first.drops())
	}
}

// wholePackets counts the packets in a list of descriptors, each of which must
// have its first buffer and as many bytes as it says.
func wholePackets(t *testing.T, b *bench, out []xsk.Desc) int {
	t.Helper()
	n, size, start := 0, 0, 0
	for i, d := range out {
		size += int(d.Len)
		if d.Options&xsk.Continued != 0 {
			continue
		}
		first := out[start]
		var p header.Packet
		f := b.w.area[first.Addr : first.Addr+uint64(first.Len)]
		if problem := header.Parse(f, size, &p); problem != header.OK || size != header.EthernetLen+int(p.Len) {
			t.Fatalf("packet of %d buffers and %d bytes is not whole (problem %d)", i-start+1, size, problem)
		}
		n, size, start = n+1, 0, i+1
	}
	if size != 0 {
		t.Fatal("the last packet has no end")
	}
	return n
}

func TestATransmitRingTakesWholePacketsOnly(t *testing.T) {
	b := newBench(t)
	b.q[portServer].Room = 4
	for i := range 5 {
		req := request(false, header.ProtoUDP)
		req.src, req.payload = ap(client4, uint16(1000+i)), 1000
		b.giveBuffers(portClient, req.build(t), 500, 300)
	}
	b.w.beginRound()
	b.w.receive()
	b.w.endRound()
	n := wholePackets(t, b, b.q[portServer].Out)
	if n == 0 || b.drops()["transmit-ring-full"] != uint64(5-n) {
		t.Errorf("%d sent, drops %v", n, b.drops())
	}
	b.framesHome()
}

func TestAPacketOfTooManyBuffersIsDroppedWhole(t *testing.T) {
	b := newBench(t)
	req := request(false, header.ProtoUDP)
	req.payload = 1000
	b.giveBuffers(portClient, req.build(t), 300, 200, 200, 200)
	b.give(portClient, request(false, header.ProtoUDP).build(t))
	if got := b.round(); len(got[portServer]) != 1 {
		t.Errorf("%d sent", len(got[portServer]))
	}
	if b.drops()["larger-than-mtu"] != 1 {
		t.Errorf("drops %v", b.drops())
	}
	b.framesHome()
}

// giveBuffers is give of a frame in several buffers: cuts are the lengths of
// all but the last.
func (b *bench) giveBuffers(port int, frame []byte, cuts ...int) {
	q := b.q[port]
	for _, n := range append(cuts, len(frame)) {
		n = min(n, len(frame))
		b.give(port, frame[:n])
		frame = frame[n:]
		if len(frame) > 0 {
			q.In[len(q.In)-1].Options = xsk.Continued
		}
	}
}
