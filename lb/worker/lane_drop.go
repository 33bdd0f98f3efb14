package worker

import (
	"math/bits"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/xsk"
)

// dropLane drops packet i of b, which has no flow, if it is valid and only a flow could have
// given it the destination port. Most packets of a flood that guesses SNAT ports are such. It
// does what the slow path would do (see onNoMatch and reject). It leaves to that all packets
// that are punted or answered, and a SYN. It also leaves packets of which a sample or a record
// is due. Preconditions: no connection was begun in this batch.
func (w *admission) dropLane(b *batch, i int) bool {
	i &= batchSize - 1
	if b.lanes()>>i&1 == 0 || w.node.Draining || w.obs != nil {
		return false
	}
	h, d := &b.head[i], &b.first[i]
	f := w.heads.At(d.Addr)
	var (
		source        uint64
		offset, flags uint8 // of TCP
		proto         uint8
		n             uint32 // bytes behind the IP header
		ok            bool
	)
	if b.lanes4>>i&1 != 0 {
		proto, source, offset, flags = uint8(h.ip>>56), h.addrs&0xffffffff, f[46], f[47]
		n, ok = payload4(f, h, d.Len)
	} else {
		proto, source, offset, flags = uint8(h.ip>>48), b.addr6[i][0], f[66], f[67]
		n, ok = payload6(&b.addr6[i], h.ip, d.Len)
	}
	reason := DropNoConntrackEntry
	switch {
	case !ok:
		return false
	case proto == header.ProtoTCP:
		if !hasTCPHeader(offset, n) {
			return false
		}
		if flags&header.RST == 0 && (f[0]|f[6])&1 == 0 { // to be answered, see mayReject
			if flags&header.SYN != 0 || !w.resets.Refuses(w.sourceHash(source), w.tick) {
				return false
			}
			reason = DropReplyLimit
		}
	case proto != header.ProtoUDP || !plainUDP(h.l4, n):
		return false
	}
	if w.samples[reason].due(w.tick) {
		return false
	}
	key := b.laneKey(i)
	to := table.DestinationKey(&key.W)
	owned, shared := w.node.Owns(&to)
	if !owned || shared || w.snapshot.Lookup(&to) != nil {
		return false
	}
	w.drops[reason]++
	w.free.push(d.Addr &^ w.frameMask)
	return true
}

// payload4 returns the length of the data behind the header of an IPv4 packet with these
// words in the lane. It is negative if the packet is shorter than the header. It reports
// false for what [header.ParseFast4] does not take. size is the frame's length.
func payload4(f *xsk.Head, h *laneHead, size uint32) (n uint32, ok bool) {
	length := uint32(bits.ReverseBytes16(uint16(h.ip)))
	return length - header.IPv4Len, h.ip&laneFragment == 0 && length+header.EthernetLen <= size && validSum4(f, h.ip, h.addrs) &&
		!header.Martians4(h.addrs)
}

// payload6 is payload4 of an IPv6 packet with addresses a.
func payload6(a *[4]uint64, ip uint64, size uint32) (n uint32, ok bool) {
	n = uint32(bits.ReverseBytes16(uint16(ip >> 32)))
	return n, n+header.IPv6Len+header.EthernetLen <= size && !header.Martians6(a[0], a[1], a[2], a[3])
}
