package worker

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/header"
)

// A datagram's fragments may arrive at any worker; one deals with all of them.
func TestFragmentsAtOtherWorkersAreBroughtTogether(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for client := range byte(8) { // datagrams of either worker
			first, second := pair(t)
			total := first.frames() + second.frames()
			req := long(v6)
			a := req.src.Addr().AsSlice()
			a[len(a)-1] += client
			from, _ := netip.AddrFromSlice(a)
			req.src = ap(from, 40000)
			var got [][]byte
			round := func() {
				for _, b := range []*bench{first, second} {
					b.w.beginRound()
					b.w.receive()
					b.w.receiveHandoffs()
					b.w.releaseQueued()
					b.w.endRound()
				}
				for _, d := range first.q[portServer].Out {
					got = append(got, bytes.Clone(first.w.area[d.Addr:d.Addr+uint64(d.Len)]))
				}
				first.q[portServer].Out = nil
			}
			f := cut(t, req.build(t), 9, pieces...)
			first.give(portClient, f[1])
			second.give(portClient, f[0])
			first.giveBuffers(portClient, f[2], 500, 300)
			second.give(portClient, f[3])
			for range 4 {
				round()
			}
			if n := len(got); n != 6 { // one in three buffers
				t.Fatalf("%d buffers sent (drops %v, %v)", n, first.drops(), second.drops())
			}
			ids := map[uint32]bool{}
			for _, x := range got {
				var p header.Packet
				if header.Parse(x, 4096, &p) == header.IsFragment {
					ids[p.Fragment(x).ID] = true
				}
			}
			if len(ids) != 1 {
				t.Errorf("identifications %v", ids)
			}
			if n := first.frames() + second.frames(); n != total {
				t.Errorf("%d frames, want %d", n, total)
			}
		}
	}
}
