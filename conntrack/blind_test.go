package conntrack

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// An attacker who forges a client's segments, and sees none of the endpoint's answers,
// completes no handshake. He knows the numbers of his own SYNs, which are close to each
// other, and so are the endpoint's: of one tuple they grow with time. Segments overtake each
// other behind the table.
func TestABlindClientCompletesNoHandshake(t *testing.T) {
	const first = 1 << 30 // of the endpoint's numbers
	rapid.Check(t, func(rt *rapid.T) {
		x := newCrossing(rt, openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8}))
		x.isn, x.step = first, 100
		number := rapid.SampledFrom([]uint32{0, 1, 50, 51, 100, 101, 102, 1 << 20, 1<<20 + 1})
		forge := func(rt *rapid.T) {
			flags := []uint8{tcp.FlagSYN, tcp.FlagSYN, tcp.FlagRST, tcp.FlagRST | tcp.FlagACK, tcp.FlagACK, tcp.FlagFIN | tcp.FlagACK, tcp.FlagPSH | tcp.FlagACK}
			x.pass(wire{
				fromClient: true, flags: rapid.SampledFrom(flags).Draw(rt, "flags"),
				seq: number.Draw(rt, "seq"), ack: number.Draw(rt, "ack"),
				length: rapid.SampledFrom([]uint32{0, 0, 1, 50}).Draw(rt, "length"),
			})
		}
		steps := map[string]func(*rapid.T){
			"forge": forge, "forge again": forge,
			"arrive": func(rt *rapid.T) {
				if n := len(x.flying); n > 0 {
					i := rapid.IntRange(0, n-1).Draw(rt, "which")
					if g := x.flying[i]; !g.fromClient {
						x.flying = append(x.flying[:i], x.flying[i+1:]...) // the client is silent
						return
					}
					x.deliver(i)
				}
			},
			"answer": func(rt *rapid.T) { // the client has no connection
				for i, g := range x.flying {
					if !g.fromClient {
						x.deliver(i)
						return
					}
				}
			},
			"send again": func(*rapid.T) {
				if g, ok := x.ends[1].unacknowledged(); ok {
					x.pass(g)
				}
			},
			"give up": func(*rapid.T) {
				if x.ends[1].phase == synReceived {
					x.ends[1].phase = closed
				}
			},
			"a while": func(rt *rapid.T) { x.idle(rapid.SampledFrom([]uint32{1, 3, 16, 40, 200}).Draw(rt, "ticks")) },
			"": func(rt *rapid.T) {
				if r := x.tab.lookup(natFlow(1).Client); r != 0 && x.tab.Conn(r).State() == flowstate.Established {
					rt.Fatal("established")
				}
				if n := x.tab.ServiceOpen(natFlow(1).ServiceID); n != 0 {
					rt.Fatalf("%d connections count as open", n)
				}
			},
		}
		rt.Repeat(steps)
	})
}
