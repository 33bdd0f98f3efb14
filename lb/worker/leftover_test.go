package worker

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/weirlb/weir/lb/header"
)

// The endpoint of a half-open flow whose SNAT port another gets holds the handshake: a
// RST with the number that it expects goes before the new SYN, from the same port.
func TestAPortTakenOverIsClearedAtTheEndpoint(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v6=%v", v6), func(t *testing.T) {
			b := newBench(t)
			b.fewPorts(1)
			first := request(v6, header.ProtoTCP)
			f := b.one(portClient, first.build(t), portServer)
			var p header.Packet
			header.Parse(f, len(f), &p)
			port := binary.BigEndian.Uint16(f[p.L4:])
			snat, ep := snat4, endpoint4
			if v6 {
				snat, ep = snat6, endpoint6
			}
			b.one(portServer, packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(ep, 8080), dst: ap(snat, port),
				proto: header.ProtoTCP, flags: header.SYN | header.ACK, seq: 5000, ack: first.seq + 1, df: true}.build(t), portClient)

			second := first
			second.src, second.seq, second.mss = ap(first.src.Addr(), 41000), 99_000, 1000
			b.give(portClient, second.build(t))
			got := b.round()[portServer]
			if len(got) != 2 {
				t.Fatalf("%d packets go to the endpoint, want RST and SYN (drops %v)", len(got), b.drops())
			}
			for n, want := range []struct {
				flags uint8
				seq   uint32
			}{{header.RST, first.seq + 1}, {header.SYN, second.seq}} {
				g := got[n]
				if problem := header.Parse(g, len(g), &p); problem != header.OK {
					t.Fatalf("packet %d does not parse: %v", n, problem)
				}
				pseudo := header.PseudoSum4(g[p.L3:], p.Proto, p.L4Len())
				if v6 {
					pseudo = header.PseudoSum6(g[p.L3:], p.Proto, p.L4Len())
				}
				if header.Checksum(pseudo, g[p.L4:]) != 0 || !v6 && header.Checksum(0, g[p.L3:p.L4]) != 0 {
					t.Errorf("packet %d has a wrong checksum", n)
				}
				if l4 := header.TCP(g[p.L4:]); p.Flags != want.flags || l4.Seq() != want.seq || binary.BigEndian.Uint16(l4) != port {
					t.Errorf("packet %d has flags %#x, number %d, port %d; want %#x, %d, %d",
						n, p.Flags, l4.Seq(), binary.BigEndian.Uint16(l4), want.flags, want.seq, port)
				}
			}
			b.framesHome()
		})
	}
}
