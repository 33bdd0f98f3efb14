package worker

import (
	"encoding/binary"
	"math/bits"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/xsk"
)

// Bits of the 8 bytes of an IPv4 packet from the total length to the protocol, as a
// little-endian load.
const (
	laneFragment = 0xff3f << 32 // more fragments, and the offset: 0 of a whole packet
	laneTTL      = 0xfe << 48   // 0 if the TTL is 0 or 1
)

// takeLanes forwards packets of b that only need the rewrite or an outer header, from number
// from on, up to the first other packet, and returns its number, or to. That packet is
// unmodified. watch says of which protocols the endpoint may have been removed: their packets
// are left to the caller.
func (w *fastPath) takeLanes(b *batch, from, to int, watch protocols) int {
	for from < to {
		at := from
		if from = w.fastLanes(b, from, to, watch); from == to {
			break
		}
		if b.lanes6>>(from&(batchSize-1))&1 != 0 {
			from = w.fastLanes6(b, from, to, watch)
		} else {
			from = w.fastTunnels(b, from, to, watch)
		}
		if from == at {
			break
		}
	}
	return from
}

// fastLanes is takeLanes of IPv4 packets that get no outer header.
//
// These are nearly all packets: of a translated or l2dsr IPv4 flow that is steady (see
// conntrack.Table.NextHop), with the next hop up. The key has matched, and so the addresses
// are those of the flow's first packet, which were checked. All else that may be odd in a
// packet with a known tuple is checked: the lengths, fragments, the TTL, the header checksum,
// TCP flags and header length, and a checksum that is partial.
//
// No call and no bounds check is on this path; TestFastPathHasNeitherCallsNorBoundsChecks
// holds that.
func (w *fastPath) fastLanes(b *batch, from, to int, watch protocols) int {
	entries, adjacencies, ports, heads, tick := w.conns.Entries(), w.adjacencies, w.ports, w.heads, w.tick
	to = min(to, from+bits.TrailingZeros64(^(b.lanes4>>(from&(batchSize-1)))))
	for ; from < to; from++ {
		i := from & (batchSize - 1)
		n := uint(b.ref[i] - 1)
		if n >= uint(len(entries)) {
			break
		}
		e, d := &entries[n], &b.first[i]
		f := heads.At(d.Addr)
		addrs, ip, l4 := b.head[i].addrs, b.head[i].ip, b.head[i].l4
		proto := uint8(ip >> 56)
		if e.Key.W[0] != addrs || e.Key.W[4] != word4(4, uint32(l4), proto) {
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
		if uint32(hop>>32) != adj.Stamp() || state != route.Valid ||
			length > size || size > min(adj.MTU(), uint32(hop)>>16) {
			break
		}
		newAddrs := e.Addr4
		if kind := e.Kind(); kind > conntrack.KindDNAT {
			if kind != conntrack.KindL2DSR {
				break
			}
			newAddrs = addrs
		}
		sum, milestone := uint32(l4>>48), false
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
		*slot = xsk.Desc{Addr: d.Addr, Len: d.Len}
		binary.LittleEndian.PutUint64(f[0:], dst|src<<48)
		binary.LittleEndian.PutUint32(f[8:], uint32(src>>16))
		binary.LittleEndian.PutUint64(f[22:], nextHopWord(binary.LittleEndian.Uint64(f[22:]), newAddrs, uint32(e.AddrDelta)))
		binary.LittleEndian.PutUint32(f[30:], uint32(newAddrs>>32))
		if proto == header.ProtoTCP {
			binary.LittleEndian.PutUint32(f[34:], e.NewPorts)
			binary.LittleEndian.PutUint16(f[50:], uint16(update(sum, uint32(e.L4Delta))))
			continue
		}
		binary.LittleEndian.PutUint64(f[34:],
			uint64(e.NewPorts)|l4&(0xffff<<32)|uint64(updateUDP(sum, uint32(e.L4Delta)))<<48)
	}
	return from
}

// nextSlot takes the place for a packet that leaves by a port; nil if the port has no queue
// or no room.
func nextSlot(ports []port, out int) *xsk.Desc {
	if uint(out) >= uint(len(ports)) {
		return nil
	}
	p := &ports[uint(out)]
	k := uint(p.txn)
	if p.Queue == nil || k >= uint(len(p.tx)) {
		return nil
	}
	p.txn++
	return &p.tx[k]
}

// plainTCP reports whether a segment of n bytes, negative if the packet is shorter than the
// IP header, has a header of a possible length and neither SYN, FIN nor RST.
func plainTCP(offset, flags uint8, n uint32) bool {
	return hasTCPHeader(offset, n) && flags&(header.SYN|header.FIN|header.RST) == 0
}

// hasTCPHeader reports whether a segment of n bytes, as of plainTCP, has a header of a
// possible length.
func hasTCPHeader(offset uint8, n uint32) bool {
	end := uint32(offset) >> 2 & 0x3c
	return end >= header.TCPLen && int32(end) <= int32(n)
}

// plainUDP reports whether a datagram in n bytes, as of plainTCP, has a possible length.
func plainUDP(l4 uint64, n uint32) bool {
	length := uint32(bits.ReverseBytes16(uint16(l4 >> 32)))
	return length >= header.UDPLen && int32(length) <= int32(n)
}

// isPartial reports whether the checksum of a segment of n bytes is, or may be, the sum of
// the pseudo header. addrs is the sum of the addresses in words of 16 or 32 bits.
func isPartial(addrs uint64, proto uint8, n, sum uint32) bool {
	pseudo := addrs + uint64(proto)<<8 + uint64(bits.ReverseBytes16(uint16(n)))
	return (pseudo+0xffff-uint64(sum))%0xffff == 0 && sum != 0
}

// update is [header.Update] in 32 bits, of a single delta.
func update(sum, delta uint32) uint32 {
	s := sum ^ 0xffff + delta
	return ^(s>>16 + s) & 0xffff
}

// updateUDP is update of a UDP checksum: 0 stands for none (RFC 768).
func updateUDP(sum, delta uint32) uint32 {
	n := update(sum, delta)
	if n == 0 {
		n = 0xffff
	}
	if sum == 0 {
		n = 0
	}
	return n
}

// nextHopWord is [header.NextHopWord] in 32 bits.
func nextHopWord(word, addrs uint64, delta uint32) uint64 {
	s := ^uint32(word>>16)&0xffff + delta + header.TTLDelta
	s = s>>16 + s&0xffff // of three terms, which may carry twice
	s = ^(s>>16 + s) & 0xffff
	return (word-1)&0xffff | uint64(s)<<16 | addrs<<32
}

// protocols is a set of TCP and UDP, by number.
type protocols uint32

func (s protocols) has(proto uint8) bool { return s>>(proto&31)&1 != 0 }

// sampleOf is the sample of a segment of n bytes. numbers are the two numbers of the header
// as a little-endian load, offset the byte behind them.
func sampleOf(ref conntrack.Ref, numbers uint64, offset uint8, n uint32) tcpSample {
	seq := bits.ReverseBytes32(uint32(numbers))
	return tcpSample{ref, seq, seq + n - uint32(offset)>>2&0x3c, bits.ReverseBytes32(uint32(numbers >> 32))}
}

// add has a segment with ACK noted. Preconditions: there is room.
func (t *tcpSamples) add(s tcpSample) {
	if k := uint(t.n); k < uint(len(t.list)) {
		t.list[k] = s
		t.n++
	}
}

// prefetch asks for the lines of the connections of samples from number from on.
func (t *tcpSamples) prefetch(conns *conntrack.Table, from int) {
	for _, s := range t.list[min(from, t.n):t.n] {
		conns.PrefetchConn(s.ref)
	}
}
