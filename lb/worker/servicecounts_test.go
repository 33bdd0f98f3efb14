package worker

import (
	"math"
	"testing"

	"github.com/weirlb/weir/lb/header"
)

// counted are the counters of the Service of the bench.
func (b *bench) counted() ServiceCounters {
	n, ok := b.lb.tables.ServiceNumber("ns/web")
	if !ok {
		b.t.Fatal("the Service has no number")
	}
	return b.lb.services.Read(n)
}

func TestServiceCounters(t *testing.T) {
	b := newBench(t)
	syn := request(false, header.ProtoTCP)
	f := b.one(portClient, syn.build(t), portServer)
	var p header.Packet
	if header.Parse(f, len(f), &p) != header.OK {
		t.Fatal("what was sent does not parse")
	}
	port := uint16(f[p.L4])<<8 | uint16(f[p.L4+1])
	answer := packet{
		srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), dst: ap(snat4, port), proto: header.ProtoTCP,
		flags: header.SYN | header.ACK, seq: 5000, ack: syn.seq + 1,
	}
	b.one(portServer, answer.build(t), portClient)
	b.one(portServer, answer.build(t), portClient) // sent again: not measured again

	b.one(portClient, syn.build(t), portServer) // sent again, too

	c := b.counted()
	if c.ResentSYNs != 1 || c.ResentSYNACKs != 1 || c.ResentFINs != 0 {
		t.Errorf("came again: %d SYNs, %d SYN-ACKs, %d FINs", c.ResentSYNs, c.ResentSYNACKs, c.ResentFINs)
	}
	if c.NewFlows != 1 || c.Answered != 1 || len(c.Drops()) != 0 {
		t.Errorf("after a handshake: %+v, drops %v", c, c.Drops())
	}
	var answers uint64
	for _, n := range c.Answers {
		answers += n
	}
	if answers != 1 || c.AnswerMicros == 0 {
		t.Errorf("times %v, sum %d us", c.Answers, c.AnswerMicros)
	}

	// Dropped without a flow, by the frontend, and with one.
	b.one(portClient, packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 40001), dst: ap(empty4, 81), proto: header.ProtoTCP, flags: header.SYN}.build(t), -1)
	last := syn
	last.flags, last.ttl = header.ACK, 1
	b.one(portClient, last.build(t), portClient)
	// Refused for no Service.
	b.one(portClient, packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 40001), dst: ap(snat4, 62000), proto: header.ProtoUDP}.build(t), -1)
	c = b.counted()
	if d := c.Drops(); len(d) != 2 || d["no-local-endpoint"] != 1 || d["ttl-exceeded"] != 1 {
		t.Errorf("drops %v", d)
	}
	before := c
	if since := b.counted().Since(&before); since.NewFlows != 0 || len(since.Drops()) != 0 {
		t.Errorf("since: %+v", since)
	}
	b.framesHome()
}

// Small batches are counted exactly as far as their packets are alike, and in large batches
// the sum of many is near the truth.
func TestTrafficIsEstimated(t *testing.T) {
	b := newBench(t)
	req := request(false, header.ProtoUDP)
	frame := req.build(t)
	b.one(portClient, frame, portServer)
	start := b.counted().Packets[0]
	for range 100 {
		b.one(portClient, frame, portServer)
	}
	if c := b.counted(); c.Packets[0]-start != 100 || c.Packets[1] != 0 || c.Bytes[0] < 100*uint64(len(frame)) {
		t.Errorf("small batches: %d packets, %d bytes of %d", c.Packets, c.Bytes, len(frame))
	}

	b = newBench(t)
	b.one(portClient, frame, portServer)
	start = b.counted().Packets[0]
	const batches = 400
	for range batches {
		for range batchSize {
			b.give(portClient, frame)
		}
		b.round()
	}
	got := float64(b.counted().Packets[0] - start)
	if want := float64(batches * batchSize); math.Abs(got-want) > 2*sampleEvery {
		t.Errorf("large batches: %.0f packets, want %.0f", got, want)
	}
}

// Ports take turns in a fixed order. A direction has the weight of its own packets, be its
// batches as large as the other's or much smaller.
func TestDirectionsAreEstimatedApart(t *testing.T) {
	const rounds = 1000
	for _, answers := range []int{batchSize, 2} {
		b := newBench(t)
		req := request(false, header.ProtoUDP)
		frame := req.build(t)
		f := b.one(portClient, frame, portServer)
		var p header.Packet
		if header.Parse(f, len(f), &p) != header.OK {
			t.Fatal("what was sent does not parse")
		}
		port := uint16(f[p.L4])<<8 | uint16(f[p.L4+1])
		answer := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), dst: ap(snat4, port), proto: header.ProtoUDP}
		back := answer.build(t)
		b.one(portServer, back, portClient)
		start := b.counted()
		for range rounds {
			for range batchSize {
				b.give(portClient, frame)
			}
			for range answers {
				b.give(portServer, back)
			}
			b.round()
		}
		c := b.counted()
		since := c.Since(&start)
		for dir, want := range []int{rounds * batchSize, rounds * answers} {
			// Five standard deviations of as many samples.
			samples := float64(want) / sampleEvery
			if got := float64(since.Packets[dir]); math.Abs(got-float64(want)) > float64(want)*5/math.Sqrt(samples) {
				t.Errorf("batches of %d and %d: %.0f packets in direction %d, want %d", batchSize, answers, got, dir, want)
			}
		}
	}
}

func TestServicesWithoutRoomAreNotCounted(t *testing.T) {
	s := NewServiceCounts(1)
	s.workers[0].add(5, serviceNewFlows, 1)
	s.workers[0].add(math.MaxUint32, serviceNewFlows, 1)
	if c := s.Read(5); c.NewFlows != 0 {
		t.Error("counted before there was room")
	}
	s.Grow(5)
	s.Grow(math.MaxUint32)
	s.workers[0].add(5, serviceNewFlows, 1)
	s.workers[0].add(mostServices-1, serviceNewFlows, 2)
	s.workers[0].add(mostServices, serviceNewFlows, 1)
	if a, b, c := s.Read(5), s.Read(mostServices-1), s.Read(mostServices); a.NewFlows != 1 || b.NewFlows != 2 || c.NewFlows != 0 {
		t.Errorf("%d, %d, %d", a.NewFlows, b.NewFlows, c.NewFlows)
	}
}
