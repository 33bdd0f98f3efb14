package worker

import (
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// dropLane drops packet i of b, which has no flow, if it is a valid datagram to a port that
// only a flow could have given it: most packets of a flood that guesses SNAT ports. It does
// what the slow path would do (see onNoMatch), and leaves all others to that, also those of
// which a sample or a record is due. Preconditions: no connection was begun in this batch.
func (w *flows) dropLane(b *batch, i int) bool {
	i &= batchSize - 1
	h, d := &b.head[i], &b.first[i]
	if b.lanes4>>i&1 == 0 || uint8(h.ip>>56) != header.ProtoUDP || w.node.Draining || w.obs != nil {
		return false
	}
	if s := &w.samples[DropNoConntrackEntry]; s.tick != w.tick || s.taken < samplesPerTick {
		return false
	}
	key := [5]uint64{0: h.addrs, 4: word4(4, uint32(h.l4), header.ProtoUDP)}
	to := table.DestinationKey(&key)
	owned, shared := w.node.Owns(&to)
	if !owned || shared || w.snapshot.Lookup(&to) != nil {
		return false
	}
	var p header.Packet
	if _, _, ok := header.ParseFast4(w.area[d.Addr:][:d.Len], int(d.Len), &p); !ok {
		return false
	}
	w.drops[DropNoConntrackEntry]++
	w.free.push(d.Addr &^ w.frameMask)
	return true
}
