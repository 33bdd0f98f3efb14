package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// Transport checksum offsets.
const (
	tcpChecksum = 16
	udpChecksum = 6
)

// translate rewrites packet p by the recipe of its flow entry: addresses,
// ports, TTL and checksums. output writes the MAC addresses.
func (w *forwarder) translate(p *pkt, e *conntrack.Entry) {
	w.translateAddresses(p, e)
	l4 := p.data[p.L4:]
	if p.Proto == header.ProtoSCTP {
		translateSCTP(l4, &p.Packet, e.NewPorts)
		return
	}
	binary.LittleEndian.PutUint32(l4, e.NewPorts)
	at := tcpChecksum
	if p.Proto == header.ProtoUDP {
		at = udpChecksum
	}
	c := binary.LittleEndian.Uint16(l4[at:])
	switch {
	case p.Partial:
		// The field holds the folded pseudo header's sum, not complemented:
		// only the addresses count in it.
		c = header.Fold(uint64(c) + uint64(e.AddrDelta))
	case p.Proto == header.ProtoUDP && c == 0:
		// No checksum (RFC 768): none after translation either.
	default:
		c = header.Update(c, uint64(e.L4Delta))
		if p.Proto == header.ProtoUDP && c == 0 {
			c = 0xffff
		}
	}
	binary.LittleEndian.PutUint16(l4[at:], c)
}

// translateAddresses is translate without a transport header.
func (w *forwarder) translateAddresses(p *pkt, e *conntrack.Entry) {
	ip := p.data[p.L3:]
	if p.Family == 4 {
		header.RewriteIPv4(ip, e.Addr4, uint64(e.AddrDelta))
		return
	}
	src, dst := w.conns.NewAddrs6(p.ref)
	header.RewriteIPv6(ip, src, dst)
}

// completeChecksum makes sure that a packet with a partial checksum leaves with a full
// checksum: by TX metadata if the egress port has it, else in software.
func (w *portIO) completeChecksum(p *pkt, out *port) {
	at := uint16(tcpChecksum)
	if p.Proto == header.ProtoUDP {
		at = udpChecksum
	}
	w.counts[counter.PartialChecksums]++
	d := &p.desc[0]
	if out.Metadata && p.Proto != header.ProtoSCTP && int(p.size) == int(p.L3)+int(p.Len) { // it sums padding too
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

// translateSCTP writes new ports into an SCTP packet, and updates the CRC if there is one.
func translateSCTP(l4 []byte, p *header.Packet, ports uint32) {
	changed := binary.LittleEndian.Uint32(l4) ^ ports
	binary.LittleEndian.PutUint32(l4, ports)
	if p.Partial || p.Frag != 0 {
		return
	}
	crc := l4[header.SCTPChecksum:]
	binary.LittleEndian.PutUint32(crc, binary.LittleEndian.Uint32(crc)^header.CRCDelta(changed, p.L4Len()))
}
