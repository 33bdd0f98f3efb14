package lb

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

// pair is two workers: both have a queue towards clients, only the first one
// has queues towards endpoints and of the host port.
func pair(t *testing.T) (first, second *bench) {
	t.Helper()
	first = newBenchOf(t, 2)
	w := first.lb.newWorker(1, 3)
	second = &bench{t: t, lb: first.lb, w: w}
	w.hostPort, w.hostMACs = first.w.hostPort, first.w.hostMACs
	second.q[portClient] = &Memory{}
	p := &w.ports[portClient]
	p.q, p.ring, p.metadata = second.q[portClient], 512, true
	for range 1024 { // its share of the frames
		a, _ := first.w.free.pop()
		w.free.push(a)
	}
	first.lb.workers = []*worker{first.w, w}
	first.lb.introduce()
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
	if n := second.w.shared.read().HandedOver; n != 200 {
		t.Fatalf("%d packets handed over (drops %v)", n, second.drops())
	}
	var sent [][]byte
	for range 4 {
		first.w.beginRound()
		first.w.takeHandedOver()
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
		second.w.takeHandedOver()
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
	second.w.peers[0].out = newHandoff(16)
	for i := range 64 {
		req := request(false, header.ProtoUDP)
		req.src = ap(client4, uint16(2000+i))
		second.give(portClient, req.build(t))
	}
	second.w.beginRound()
	second.w.receive()
	second.w.endRound()
	if c := second.w.shared.read(); c.HandedOver != 16 || c.Drops["handoff-ring-full"] != 48 {
		t.Errorf("handed over %d, drops %v", c.HandedOver, c.Drops)
	}
	if n := second.frames(); n != 1024-16 {
		t.Errorf("%d frames left, want %d", n, 1024-16)
	}
}

// Two goroutines pass frames both ways at once; run with -race.
func TestHandoffRingsBetweenGoroutines(t *testing.T) {
	there, back := newHandoff(64), newHandoff(64)
	const n = 20000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint64(0); i < n; {
			if s, ok := there.take(); ok {
				if s.desc.Addr != i || s.port != int32(i%7) {
					t.Errorf("slot %d holds %+v", i, s)
					return
				}
				for !back.put(xsk.Desc{Addr: s.desc.Addr}, returned) {
					time.Sleep(time.Microsecond)
				}
				i++
			}
		}
	})
	sent, got := uint64(0), uint64(0)
	for got < n {
		if sent < n && there.put(xsk.Desc{Addr: sent}, int32(sent%7)) {
			sent++
		}
		if s, ok := back.take(); ok {
			if s.desc.Addr != got || s.port != returned {
				t.Fatalf("returned %+v, want %d", s, got)
			}
			got++
		}
	}
	wg.Wait()
}

func TestExhaustedPortsNameTheEndpoint(t *testing.T) {
	b := newBench(t)
	p := *b.lb.plan.Load()
	p.lo, p.hi = 61000, 61003
	b.lb.plan.Store(&p)
	for i := range 6 {
		req := request(false, header.ProtoUDP)
		req.src = ap(client4, uint16(3000+i))
		b.give(portClient, req.build(t))
	}
	if got := b.round(); len(got[portServer]) != 4 {
		t.Errorf("%d flows got a port, want 4", len(got[portServer]))
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
