package worker

import (
	"math/bits"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// Packets in lanes cost no allocation, whatever the mode, the family and the protocol. In every
// round the clock goes on, so that TCP numbers are noted.
func TestNoAllocationInLanes(t *testing.T) {
	for _, mode := range []conntrack.Mode{conntrack.ModeNAT, conntrack.ModeL2DSR, conntrack.ModeIPIP, conntrack.ModeGUE} {
		for i := range 4 {
			k := laneKind{mode, i&1 != 0, header.ProtoUDP}
			if i&2 != 0 {
				k.proto = header.ProtoTCP
			}
			if k.v6 && mode >= conntrack.ModeIPIP {
				continue // without a lane
			}
			b := newBench(t)
			f, x := k.steady(t, b)[0], &b.w.batch
			rounds, lanes := 0, 0
			n := testing.AllocsPerRun(200, func() {
				for range 3 {
					b.give(portClient, f)
				}
				b.w.beginRound()
				b.ahead++
				b.w.tick += b.ahead
				b.w.ports[portClient].filled -= b.w.take(x, portClient, b.q[portClient])
				b.w.process(x)
				lanes += bits.OnesCount64(x.lanes())
				rounds++
				b.w.endRound()
				for _, q := range b.q {
					q.Out = q.Out[:0]
				}
			})
			if n != 0 || lanes != 3*rounds {
				t.Errorf("%v: %v allocations per round, %d packets of %d in lanes", k, n, lanes, 3*rounds)
			}
			b.framesHome()
		}
	}
}
