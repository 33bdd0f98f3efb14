package worker

import (
	"fmt"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// After a start without a flow table a SNAT port may be one that the endpoint still has
// a connection for, in TIME_WAIT or open. The endpoint answers the SYN with an ACK of
// that connection, the client resets it (RFC 9293, section 3.10.7.3) and sends its SYN
// again. Only from the same port does that SYN find the endpoint's state cleared.
func TestASYNThatIsSentAgainKeepsItsSNATPort(t *testing.T) {
	for name, flags := range map[string]uint8{"challenge ACK": header.ACK, "last FIN": header.FIN | header.ACK} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			var port uint16
			toEndpoint := func(p packet) packet {
				t.Helper()
				f := b.one(portClient, p.build(t), portServer)
				got := uint16(f[34])<<8 | uint16(f[35])
				if port != 0 && got != port {
					t.Fatalf("the packet leaves from port %d, the first SYN left from %d", got, port)
				}
				port = got
				return p
			}
			fromEndpoint := func(flags uint8, seq, ack uint32) {
				t.Helper()
				p := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), dst: ap(snat4, port),
					proto: header.ProtoTCP, flags: flags, seq: seq, ack: ack, df: true}
				b.one(portServer, p.build(t), portClient)
			}
			syn := toEndpoint(request(false, header.ProtoTCP))
			for range 3 { // the endpoint's RST may be lost on the way, or rate limited
				fromEndpoint(flags, 700_000, 900_000)
				rst := syn
				rst.flags, rst.seq = header.RST, 900_000
				toEndpoint(rst)
				toEndpoint(syn)
			}
			fromEndpoint(header.SYN|header.ACK, 4_000_000, syn.seq+1)
			ack := syn
			ack.flags, ack.seq, ack.ack = header.ACK, syn.seq+1, 4_000_001
			toEndpoint(ack)
			if n := b.states()[flowstate.Established]; n != 1 {
				t.Errorf("flows in states %v, want one that is established", b.states())
			}
			b.framesHome()
		})
	}
}

// The SYN that begins a connection is no SYN that came again, by whichever stage it leaves.
func TestTheFirstSYNCountsAsNoSYNThatCameAgain(t *testing.T) {
	for _, mode := range []conntrack.Mode{conntrack.ModeNAT, conntrack.ModeDNAT, conntrack.ModeL2DSR, conntrack.ModeIPIP, conntrack.ModeGUE} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/next hop late %t", modeNames[mode], late), func(t *testing.T) {
				b, out, hop := newBench(t), portServer, endpoint4
				if mode == conntrack.ModeDNAT {
					b, out, hop = newHostBench(t), portHost, hop4[1]
					b.serveMode(mode, pod4)
				} else {
					b.serveAt(table.Pool{}, mode, endpoint4)
				}
				if late {
					b.lb.router.SetState(out, hop, route.Resolving)
				}
				send := func(seq uint32) {
					p := request(false, header.ProtoTCP)
					p.seq = seq
					b.give(portClient, p.build(t))
					b.w.Round()
				}
				again := func(want uint64) {
					t.Helper()
					if n := b.counted().ResentSYNs; n != want {
						t.Errorf("%d SYNs came again, want %d", n, want)
					}
				}
				send(7000)
				again(0)
				b.lb.router.SetState(out, hop, route.Valid)
				b.w.releaseQueued()
				b.w.Round()
				again(0)
				if n := len(b.q[out].Out); n != 1 {
					t.Fatalf("%d packets left (drops %v)", n, b.drops())
				}
				send(7000)
				again(1)
			})
		}
	}
}
