package worker

import (
	"encoding/binary"
	"math/bits"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/xsk"
)

// fastTunnels is takeLanes of IPv4 packets that get an outer IPv4 header, of ipip or gue. It
// checks what fastLanes checks, and that the packet has room for the header and fits the
// path with it. The header is that of [header.Encap.Put].
func (w *fastPath) fastTunnels(b *batch, from, to int, watch protocols) int {
	entries, adjacencies, ports, heads, tick := w.conns.Entries(), w.adjacencies, w.ports, w.heads, w.tick
	to = min(to, from+bits.TrailingZeros64(^(b.lanes4>>(from&(batchSize-1)))))
	for ; from < to; from++ {
		i := from & (batchSize - 1)
		n := uint(b.ref[i] - 1)
		if n >= uint(len(entries)) {
			break
		}
		e, d := &entries[n], &b.first[i]
		addrs, ip, l4 := b.head[i].addrs, b.head[i].ip, b.head[i].l4
		proto := uint8(ip >> 56)
		if e.Key.W[0] != addrs || e.Key.W[4] != word4(4, uint32(l4), proto) {
			break
		}
		outer, next := uint32(header.IPv4Len), uint64(header.ProtoIPIP)
		if kind := e.Kind(); kind == conntrack.KindGUE {
			outer, next = header.IPv4Len+header.UDPLen+header.GUELen, header.ProtoUDP
		} else if kind != conntrack.KindIPIP {
			break
		}
		hop := e.NextHop4()
		h := uint(hop & 0xffff)
		if h >= uint(len(adjacencies)) || ip&laneFragment != 0 || ip&laneTTL == 0 || watch.has(proto) {
			break
		}
		adj := &adjacencies[h]
		dst, state := adj.Dst()
		length := uint32(bits.ReverseBytes16(uint16(ip)))
		size := d.Len - header.EthernetLen // as far as the frame goes; huge if it is shorter
		if uint32(hop>>32) != adj.Stamp() || state != route.Valid || length > size || int32(size) < 0 ||
			length+outer > min(adj.MTU(), uint32(hop)>>16) || d.Addr&w.frameMask < uint64(outer) {
			break
		}
		f, sum, milestone := heads.At(d.Addr), uint32(l4>>48), false
		if proto == header.ProtoTCP {
			if !plainTCP(f[46], f[47], length-header.IPv4Len) || w.tcpSamples.n == len(w.tcpSamples.list) {
				break
			}
			sum = uint32(binary.LittleEndian.Uint16(f[50:]))
			milestone = conntrack.Milestone(binary.BigEndian.Uint32(f[38:]), length)
		} else if proto != header.ProtoUDP || !plainUDP(l4, length-header.IPv4Len) {
			break
		}
		if !validSum4(f, ip, addrs) || b.partial && isPartial(addrs>>32+addrs&0xffffffff, proto, length-header.IPv4Len, sum) {
			break
		}
		src, out := adj.Src()
		slot := nextSlot(ports, out)
		if slot == nil {
			break
		}

		adj.Touch(tick)
		if first := e.Touch(tick); (first || milestone) && proto == header.ProtoTCP && f[47]&header.ACK != 0 {
			if s := sampleOf(b.ref[i], binary.LittleEndian.Uint64(f[38:]), f[46], length-header.IPv4Len); e.Note(s.end, s.ack) {
				w.tcpSamples.add(s)
			}
		}
		at := d.Addr - uint64(outer)
		*slot = xsk.Desc{Addr: at, Len: header.EthernetLen + outer + length} // padding would end up inside
		w.ipID += uint16(len(w.links))                                       // no two workers use the same
		word := binary.LittleEndian.Uint32(f[22:])
		binary.LittleEndian.PutUint32(f[22:], (word-1)&0xffff|update(word>>16, header.TTLDelta)<<16)

		g := heads.At(at)
		binary.LittleEndian.PutUint64(g[0:], dst|src<<48)
		binary.LittleEndian.PutUint32(g[8:], uint32(src>>16))
		binary.LittleEndian.PutUint16(g[12:], header.EtherTypeIPv4>>8)
		start, ttl := outerStart(f[15], ip, length+outer, w.ipID), header.EncapTTL|next<<8
		binary.LittleEndian.PutUint64(g[14:], start)
		binary.LittleEndian.PutUint64(g[22:], ttl|uint64(outerSum(start, ttl, e.Addr4))<<16|e.Addr4<<32)
		binary.LittleEndian.PutUint32(g[30:], uint32(e.Addr4>>32))
		if next == header.ProtoUDP {
			binary.LittleEndian.PutUint64(g[34:], gueHeader(b.hash[i], length))
			binary.LittleEndian.PutUint32(g[42:], header.ProtoIPIP<<8)
		}
	}
	return from
}

// validSum4 reports whether the header checksum of an IPv4 packet with these words in the
// lane is right. The outer header has a right sum: a router on the path would not find a
// wrong sum inside.
func validSum4(f *xsk.Head, ip, addrs uint64) bool {
	sum := uint64(binary.LittleEndian.Uint16(f[14:])) + uint64(binary.LittleEndian.Uint16(f[24:])) +
		ip>>32 + ip&0xffffffff + addrs>>32 + addrs&0xffffffff
	return sum%0xffff == 0
}

// outerStart is the first 8 bytes of the outer header of an IPv4 packet with these words in
// the lane: TOS and DF are the packet's, and only without DF there is an identification.
func outerStart(tos uint8, ip uint64, length uint32, id uint16) uint64 {
	start := 0x45 | uint64(tos)<<8 | uint64(bits.ReverseBytes16(uint16(length)))<<16
	if ip>>32&0x40 != 0 {
		return start | 0x40<<48
	}
	return start | uint64(bits.ReverseBytes16(id))<<32
}

// outerSum is the checksum of an IPv4 header of these words. ttl has two bytes.
func outerSum(start, ttl, addrs uint64) uint16 {
	return ^header.Fold(start>>32 + start&0xffffffff + ttl + addrs>>32 + addrs&0xffffffff)
}

// gueHeader is the UDP header of GUE, without a checksum, of a flow of the hash and an inner
// packet of length bytes.
func gueHeader(hash uint64, length uint32) uint64 {
	port := bits.ReverseBytes16(0xc000 | uint16(hash>>32))
	return uint64(port) | uint64(header.GUEPort>>8|header.GUEPort&0xff<<8)<<16 |
		uint64(bits.ReverseBytes16(uint16(header.UDPLen+header.GUELen+length)))<<32
}
