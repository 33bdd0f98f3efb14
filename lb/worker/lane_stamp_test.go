package worker

import (
	"bytes"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// A packet leaves the lane if the next-hop word of the flow is not that of the adjacency any more:
// after a change of the routes, when the number is another next hop's, or in another state of the
// connection. The slow path finds the next hop again.
func TestLanesLeavePacketsWhoseNextHopIsStale(t *testing.T) {
	for _, k := range []laneKind{
		{conntrack.ModeNAT, false, header.ProtoUDP}, {conntrack.ModeNAT, true, header.ProtoTCP},
		{conntrack.ModeL2DSR, false, header.ProtoTCP}, {conntrack.ModeL2DSR, true, header.ProtoUDP},
		{conntrack.ModeIPIP, false, header.ProtoTCP}, {conntrack.ModeGUE, false, header.ProtoUDP},
	} {
		t.Run(k.String(), func(t *testing.T) {
			b := newBench(t)
			f, flows := k.steady(t, b)[0], b.lb.flows
			want, _ := b.through(portClient, [][]byte{f}, false)
			r := request(k.v6, k.proto)
			key := conntrack.MakeKey(r.src, r.dst, k.proto)
			ref := b.w.conntrack.Lookup(flows.Hash(&key), &key)
			for name, spoil := range map[string]func(){
				"stamp of another generation": func() {
					word := flows.NextHop(ref)
					flows.Resettle(ref, word, word^1<<40)
				},
				"no word": func() { flows.Unsettle(ref) },
			} {
				spoil()
				for lanes := range 2 { // the slow path notes the next hop
					out, n := b.through(portClient, [][]byte{f}, false)
					if n != lanes || len(out) != 1 || !bytes.Equal(out[0][:header.EthernetLen], want[0][:header.EthernetLen]) {
						t.Errorf("%s: packet %d: %d in a lane, sent %x, want %x", name, lanes, n, out, want)
					}
				}
			}
			b.framesHome()
		})
	}
}
