package worker

import (
	"fmt"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// A record of a connection counts packets as they arrived: an outer header is Weir's own, on the slow path as
// on the fast.
func TestRecordsCountWhatArrived(t *testing.T) {
	for i, mode := range []conntrack.Mode{conntrack.ModeNAT, conntrack.ModeL2DSR, conntrack.ModeIPIP, conntrack.ModeGUE, conntrack.ModeGUE} {
		v6 := i == 4 // which needs a checksum: all packets take the slow path
		t.Run(fmt.Sprintf("%s/v6=%v", modeNames[mode], v6), func(t *testing.T) {
			b := newBenchWith(t, conntrack.Config{Workers: 1, RecordsPerSecond: 1000})
			switch {
			case v6:
				b.serveDirect(mode, endpoint6, nil)
			case mode != conntrack.ModeNAT:
				b.serveDirect(mode, endpoint4, nil)
			}
			req, want := request(v6, header.ProtoUDP), conntrack.Count{}
			for _, payload := range []int{10, 100, 200, 300} { // the first begins the flow
				req.payload = payload
				f := req.build(t)
				b.one(portClient, f, portServer)
				want.Packets, want.Bytes = want.Packets+1, want.Bytes+uint64(len(f)-header.EthernetLen)
			}
			var got conntrack.Count
			for _, c := range b.lb.flows.Counts() {
				got.Packets, got.Bytes = got.Packets+c.Packets, got.Bytes+c.Bytes
			}
			if got != want {
				t.Errorf("counted %+v, arrived %+v", got, want)
			}
		})
	}
}
