package worker

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// A datagram of a flow whose packets take lanes is not sent to an endpoint that is gone, whatever
// the kind of lane.
func TestLanesSendNothingToAGoneEndpoint(t *testing.T) {
	for _, k := range []laneKind{
		{conntrack.ModeNAT, false, header.ProtoUDP}, {conntrack.ModeNAT, true, header.ProtoUDP},
		{conntrack.ModeL2DSR, false, header.ProtoUDP}, {conntrack.ModeL2DSR, true, header.ProtoUDP},
		{conntrack.ModeIPIP, false, header.ProtoUDP}, {conntrack.ModeGUE, false, header.ProtoUDP},
	} {
		t.Run(k.String(), func(t *testing.T) {
			b := newBench(t)
			b.w.removed.graceTicks = 0
			f := k.steady(t, b)[0]
			out, lanes := b.through(portClient, [][]byte{f}, false)
			if len(out) != 1 || lanes != 1 {
				t.Fatalf("%d packets sent, %d in a lane", len(out), lanes)
			}
			b.serve(netip.Addr{}, netip.Addr{})
			if out, _ := b.through(portClient, [][]byte{f, f}, false); len(out) != 0 {
				t.Errorf("%d packets sent to an endpoint that is gone: %x", len(out), out)
			}
			b.framesHome()
		})
	}
}
