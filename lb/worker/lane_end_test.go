package worker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirlb/weir/lb/header"
)

// The end of a connection in the middle of a batch affects the packets behind it as in a batch
// of its own. Lanes see a state that another packet of the batch has changed.
func TestConnectionsThatEndInABatch(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for seed := range uint64(20) {
			var want string
			for _, size := range []int{1, 64} {
				b := newBench(t)
				req, ans := steadyConnection(t, b, v6)
				random := rand.New(rand.NewPCG(seed, 0))
				in := random.IntN(2)
				p := []packet{req, ans}[in]
				p.payload = 0
				var frames [][]byte
				for range 10 {
					s := p
					s.flags = []uint8{
						header.ACK, header.ACK, header.ACK, header.ACK | header.FIN, header.ACK | header.RST, header.RST,
						header.SYN, header.SYN | header.ACK, header.FIN | header.RST, 0, header.ACK | 0x20 | 0xc0,
					}[random.IntN(11)]
					if s.flags == header.ACK {
						s.payload = random.IntN(100)
					}
					p.seq += uint32(s.payload)
					frames = append(frames, s.build(t))
				}
				var sent []string
				before := b.drops()
				for batch := range slices.Chunk(frames, size) {
					for _, f := range batch {
						b.give(in, f)
					}
					b.w.beginRound()
					b.w.tick += b.ahead
					for port, out := range b.roundAtTheSameTime() {
						for _, f := range out {
							var q header.Packet
							header.Parse(f, len(f), &q)
							sent = append(sent, fmt.Sprint(port, q.Len, q.Flags, q.TTL))
						}
					}
				}
				slices.Sort(sent) // a batch sends by port
				got := fmt.Sprint(sent, b.drops(), before, b.states())
				if size == 1 {
					want = got
				} else if got != want {
					t.Errorf("IPv6 %v, seed %d:\nin a batch %s\nsingly     %s", v6, seed, got, want)
				}
				b.framesHome()
			}
		}
	}
}
