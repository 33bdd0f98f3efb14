package worker

import (
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// runPackets drives the worker with batches of 64 frames, made by next, from
// receive to transmit. The cost of copying each frame in is part of it.
func runPackets(b *testing.B, l *bench, next func(i int) []byte) {
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += batchSize {
		for i := range batchSize {
			l.give(portClient, next(done+i))
		}
		l.w.beginRound()
		l.w.receive()
		l.w.endRound()
		for _, q := range l.q {
			q.Out = q.Out[:0]
		}
	}
}

func BenchmarkEstablished(b *testing.B) {
	for _, flows := range []int{1, 4096} {
		for _, proto := range []uint8{header.ProtoUDP, header.ProtoTCP} {
			name := map[uint8]string{header.ProtoUDP: "udp", header.ProtoTCP: "tcp"}[proto]
			b.Run(name+"/flows="+map[int]string{1: "1", 4096: "4096"}[flows], func(b *testing.B) {
				l := newBench(b)
				frames := make([][]byte, flows)
				for i := range frames {
					p := request(false, proto)
					p.src = ap(client4, uint16(1024+i))
					l.one(portClient, p.build(b), portServer)
					p.flags = header.ACK
					p.seq++
					frames[i] = p.build(b)
				}
				runPackets(b, l, func(i int) []byte { return frames[i%flows] })
			})
		}
	}
}

func BenchmarkNewFlow(b *testing.B) {
	l := newBench(b)
	frames := make([][]byte, 4096)
	for i := range frames {
		p := request(false, header.ProtoUDP)
		p.src = ap(client4, uint16(1024+i))
		frames[i] = p.build(b)
	}
	runPackets(b, l, func(i int) []byte {
		if i%4096 == 0 {
			b.StopTimer()
			l.forgetFlows()
			b.StartTimer()
		}
		return frames[i%4096]
	})
}

// forgetFlows empties the flow table.
func (b *bench) forgetFlows() {
	b.lb.flows.Range(func(r conntrack.Ref) bool { b.lb.flows.Delete(r); return true })
	b.w.conntrack.Quiesce()
}

func BenchmarkDrop(b *testing.B) {
	l := newBench(b)
	f := request(false, header.ProtoUDP).build(b)
	f[24] ^= 1 // the IPv4 header checksum
	runPackets(b, l, func(int) []byte { return f })
}
