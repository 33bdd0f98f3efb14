package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// Transport checksum offsets.
const (
	tcpChecksum = 16
	udpChecksum = 6
)

// completeChecksum makes sure that a packet with a partial checksum leaves with a full
// checksum: by TX metadata if the egress port has it, else in software.
func (w *portIO) completeChecksum(p *pkt, out *port) {
	at := uint16(tcpChecksum)
	if p.Proto == header.ProtoUDP {
		at = udpChecksum
	}
	w.counts[counter.PartialChecksums]++
	d := &p.desc[0]
	// The kernel sums padding too, and some kernels sum wrongly over several buffers (6.18.15).
	if out.Metadata && p.n == 1 && p.Proto != header.ProtoSCTP && int(p.size) == int(p.L3)+int(p.Len) {
		w.memory.SetChecksum(d, uint16(p.L4), at)
		return
	}
	w.sumChecksum(p)
}

// sumChecksum completes the partial checksum of packet p in software.
func (w *frameMemory) sumChecksum(p *pkt) {
	if p.Proto == header.ProtoSCTP {
		w.completeCRC(p)
		return
	}
	at := tcpChecksum
	if p.Proto == header.ProtoUDP {
		at = udpChecksum
	}
	// The field contains the pseudo header's sum: CHECKSUM_PARTIAL means a sum over it.
	c := ^header.Fold(w.sum(p, 0, int(p.L4), int(p.L3)+int(p.Len)))
	if p.Proto == header.ProtoUDP && c == 0 {
		c = 0xffff
	}
	binary.LittleEndian.PutUint16(p.data[int(p.L4)+at:], c)
}

// sum adds the bytes of packet p from offset from, in the first buffer, up to offset end,
// over all buffers.
func (w *frameMemory) sum(p *pkt, initial uint64, from, end int) uint64 {
	f := p.data
	sum := header.Sum(initial, f[from:min(end, len(f))])
	done := len(f)
	for _, x := range p.desc[1:p.n] {
		if done >= end {
			break
		}
		part := w.area[x.Addr : x.Addr+uint64(x.Len)]
		part = part[:min(len(part), end-done)]
		s := uint64(header.Fold(header.Sum(0, part)))
		if done%2 != from%2 { // an odd start swaps the bytes of the sum (RFC 1071 2(B))
			s = s>>8 | s&0xff<<8
		}
		sum = uint64(header.Fold(sum)) + s
		done += len(part)
	}
	return sum
}

// completeCRC computes the CRC that was left to the device, over all of packet p.
func (w *frameMemory) completeCRC(p *pkt) {
	f := p.data
	field := f[int(p.L4)+header.SCTPChecksum:]
	binary.LittleEndian.PutUint32(field, 0)
	end := int(p.L3) + int(p.Len)
	crc := header.CRC(0, f[p.L4:min(end, len(f))])
	done := len(f)
	for _, x := range p.desc[1:p.n] {
		if done >= end {
			break
		}
		part := w.area[x.Addr : x.Addr+uint64(x.Len)]
		part = part[:min(len(part), end-done)]
		crc = header.CRC(crc, part)
		done += len(part)
	}
	binary.LittleEndian.PutUint32(field, crc)
}
