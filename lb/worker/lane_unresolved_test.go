package worker

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// A packet leaves the lane, and Weir keeps or refuses it, while the next hop of the flow has no MAC
// address. The stamp of an adjacency is the same then.
func TestLanesLeavePacketsWhoseNextHopIsUnresolved(t *testing.T) {
	for _, k := range []laneKind{
		{conntrack.ModeNAT, false, header.ProtoUDP}, {conntrack.ModeNAT, true, header.ProtoTCP},
		{conntrack.ModeL2DSR, false, header.ProtoTCP}, {conntrack.ModeL2DSR, true, header.ProtoUDP},
		{conntrack.ModeIPIP, false, header.ProtoTCP}, {conntrack.ModeGUE, false, header.ProtoUDP},
	} {
		for name, state := range map[string]route.State{"resolving": route.Resolving, "failed": route.Failed, "unresolved": route.Unresolved} {
			t.Run(k.String()+"/"+name, func(t *testing.T) {
				b := newBench(t)
				f := k.steady(t, b)[0]
				set := func(s route.State) {
					for _, hop := range []netip.Addr{endpoint4, endpoint6} {
						b.lb.router.SetState(portServer, hop, s)
					}
				}
				if out, lanes := b.through(portClient, [][]byte{f}, false); lanes != 1 || len(out) != 1 {
					t.Fatalf("before: %d in a lane, %d sent", lanes, len(out))
				}
				set(state)
				b.give(portClient, f)
				x := &b.w.batch
				b.w.beginRound()
				b.w.ports[portClient].filled -= b.w.take(x, portClient, b.q[portClient])
				b.w.process(x)
				if x.lanes() != 0 {
					t.Error("the packet stayed in the lane")
				}
				b.w.endRound()
				if n := len(b.q[portServer].Out); n != 0 {
					t.Errorf("%d packets were sent to the next hop", n)
				}
			})
		}
	}
}
