package worker

import (
	"encoding/binary"
	"math/bits"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/xsk"
)

// fastLanes6 is takeLanes of IPv6 packets that get no outer header. It checks what fastLanes
// checks, and reads two lines of the flow: the new addresses are in the entry of the other
// direction (see conntrack.Table.NewKey6).
func (w *fastPath) fastLanes6(b *batch, from, to int, watch protocols) int {
	entries, adjacencies, ports, heads, tick := w.conns.Entries(), w.adjacencies, w.ports, w.heads, w.tick
	to = min(to, from+bits.TrailingZeros64(^(b.lanes6>>(from&(batchSize-1)))))
	for ; from < to; from++ {
		i := from & (batchSize - 1)
		n := uint(b.ref[i] - 1)
		if n >= uint(len(entries)) || n^1 >= uint(len(entries)) {
			break
		}
		e, other, d, a := &entries[n], &entries[n^1], &b.first[i], &b.addr6[i]
		f := heads.At(d.Addr)
		ip, l4 := b.head[i].ip, b.head[i].l4
		proto := uint8(ip >> 48)
		if !isKey6(&e.Key, a, word4(6, uint32(l4), proto)) {
			break
		}
		kind, hop := e.Kind(), e.NextHop6()
		s0, s1, d0, d1 := other.Key.W[2], other.Key.W[3], other.Key.W[0], other.Key.W[1]
		if kind > conntrack.KindDNAT {
			if kind != conntrack.KindL2DSR6 && kind != conntrack.KindL2DSR {
				break
			}
			s0, s1, d0, d1 = a[0], a[1], a[2], a[3]
			hop = other.NextHop6()
		}
		h := uint(hop & 0xffff)
		if h >= uint(len(adjacencies)) || ip>>57 == 0 || watch.has(proto) { // hop limit 0 or 1
			break
		}
		adj := &adjacencies[h]
		dst, state := adj.Dst()
		length := uint32(bits.ReverseBytes16(uint16(ip >> 32)))
		size := d.Len - header.EthernetLen // as far as the frame goes; huge if it is shorter
		if uint32(hop>>32) != adj.Stamp() || state != route.Valid ||
			length+header.IPv6Len > size || size > min(adj.MTU(), uint32(hop)>>16) {
			break
		}
		sum, sampled := uint32(l4>>48), false
		if proto == header.ProtoTCP {
			if !plainTCP(f[66], f[67], length) || w.tcpSamples.n == len(w.tcpSamples.list) {
				break
			}
			sum = uint32(binary.LittleEndian.Uint16(f[70:]))
			sampled = conntrack.Milestone(binary.BigEndian.Uint32(f[58:]), length+header.IPv6Len)
		} else if !plainUDP(l4, length) {
			break
		}
		if b.partial && isPartial(sumOf(a), proto, length, sum) {
			break
		}
		src, out := adj.Src()
		slot := nextSlot(ports, out)
		if slot == nil {
			break
		}

		sampled = e.Touch(tick) || sampled
		adj.Touch(tick)
		if sampled && proto == header.ProtoTCP && f[67]&header.ACK != 0 {
			w.tcpSamples.add(sampleOf(b.ref[i], binary.LittleEndian.Uint64(f[58:]), f[66], length))
		}
		*slot = xsk.Desc{Addr: d.Addr, Len: d.Len}
		binary.LittleEndian.PutUint64(f[0:], dst|src<<48)
		binary.LittleEndian.PutUint32(f[8:], uint32(src>>16))
		f[21]-- // the hop limit
		binary.LittleEndian.PutUint64(f[22:], s0)
		binary.LittleEndian.PutUint64(f[30:], s1)
		binary.LittleEndian.PutUint64(f[38:], d0)
		binary.LittleEndian.PutUint64(f[46:], d1)
		if proto == header.ProtoTCP {
			binary.LittleEndian.PutUint32(f[54:], e.NewPorts)
			binary.LittleEndian.PutUint16(f[70:], uint16(update(sum, uint32(e.L4Delta))))
			continue
		}
		binary.LittleEndian.PutUint64(f[54:],
			uint64(e.NewPorts)|l4&(0xffff<<32)|uint64(updateUDP(sum, uint32(e.L4Delta)))<<48)
	}
	return from
}

// isKey6 reports whether k is the key of these words. It reads the words first that no entry
// changes: those of an IPv4 entry may.
func isKey6(k *conntrack.Key, a *[4]uint64, w4 uint64) bool {
	return k.W[4] == w4 && k.W[0] == a[0] && k.W[1] == a[1] && k.W[2] == a[2] && k.W[3] == a[3]
}

// sumOf adds the addresses of a pseudo header in words of 32 bits.
func sumOf(a *[4]uint64) uint64 {
	const low = 1<<32 - 1
	return a[0]>>32 + a[0]&low + a[1]>>32 + a[1]&low + a[2]>>32 + a[2]&low + a[3]>>32 + a[3]&low
}
