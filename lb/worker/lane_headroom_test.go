package worker

import (
	"bytes"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// A packet in a frame without room for the outer header is not sent from a lane either: the header
// would be in the frame before.
func TestATunnelLaneWritesOnlyToTheFrameOfThePacket(t *testing.T) {
	const end = 64 // bytes of the frame before: more than an outer header
	for _, mode := range []conntrack.Mode{conntrack.ModeIPIP, conntrack.ModeGUE} {
		b := newBench(t)
		f := laneKind{mode, false, header.ProtoUDP}.steady(t, b)[0]
		length := header.IPv4Len
		if mode == conntrack.ModeGUE {
			length += header.UDPLen + header.GUELen
		}
		for _, room := range []int{0, length - 1, length} {
			b.give(portClient, f)
			q := b.q[portClient]
			d := &q.In[len(q.In)-1]
			d.Addr = d.Addr&^b.w.frameMask + uint64(room)
			copy(b.w.area[d.Addr:], f)
			start := d.Addr - uint64(room)
			if start == 0 {
				t.Fatal("there is no frame before")
			}
			before := bytes.Clone(b.w.area[start-end : start])
			sent := len(b.round()[portServer])
			if want := room / length; sent != want || !bytes.Equal(b.w.area[start-end:start], before) {
				t.Errorf("%s, room for %d bytes: %d packets sent, want %d, frame before %x", modeNames[mode], room, sent, want, b.w.area[start-end:start])
			}
		}
		b.framesHome()
	}
}
