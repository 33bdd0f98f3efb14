package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

// An IPv4 packet without DF that does not fit the MTU leaves in fragments (RFC 791 section
// 3.2, RFC 1812 section 4.2.2.7). Each has a separate frame: a fragment may be smaller than
// the MTU. Fragments are divided likewise. In a tunnel each fragment gets an outer header:
// the endpoint decapsulates first and reassembles the client's packet then (RFC 4459
// section 3.4).

// maxFragments of a packet: those of full buffers with the MTU that every host accepts, 576
// bytes.
const maxFragments = (maxBuffers*xsk.FrameSize)/((576-header.IPv4Len)&^7) + 1

// moreFragments is MF in the flags and offset of an IPv4 header.
const moreFragments = 0x2000

// canFragment reports whether packet p makes at most maxFragments of at most mtu bytes.
func (w *frameMemory) canFragment(p *header.Packet, mtu uint32) bool {
	step := w.fragmentPayload(p, mtu)
	return step > 0 && int(p.Len)-ipv4Len(p) <= step*maxFragments
}

// fragmentPayload is how many bytes of packet p's payload a fragment of at most mtu bytes
// has, 0 for none: as many as fit a frame that starts where every packet of Weir's does.
func (w *frameMemory) fragmentPayload(p *header.Packet, mtu uint32) int {
	room := int(w.frameMask) + 1 - xsk.Headroom - int(p.L3)
	return max(min(int(mtu), room)-ipv4Len(p), 0) &^ 7
}

// ipv4Len is the length of packet p's IPv4 header with options.
func ipv4Len(p *header.Packet) int { return int(p.L4 - p.L3) }

// makeFragment writes the fragment with n bytes from offset at of packet p's payload on
// into the frame at address a.
func (w *frameMemory) makeFragment(p *pkt, a uint64, at, n int) xsk.Desc {
	f := p.data
	l3, head := int(p.L3), int(p.L4)
	a += xsk.Headroom
	g := w.area[a : a+uint64(head+n)]
	copy(g, f[:head])
	w.gather(g[head:], p, head+at)
	ip := g[l3:]
	field := binary.BigEndian.Uint16(ip[6:]) + uint16(at/8)
	if at+n < int(p.Len)-ipv4Len(&p.Packet) {
		field |= moreFragments
	}
	if at > 0 {
		header.KeepCopiedOptions(ip[header.IPv4Len : head-l3])
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[6:], field)
	ip[10], ip[11] = 0, 0
	binary.LittleEndian.PutUint16(ip[10:], header.Checksum(0, ip[:head-l3]))
	return xsk.Desc{Addr: a, Len: uint32(len(g))}
}

// gather copies bytes of packet p, from an offset on, over all buffers.
func (w *frameMemory) gather(to []byte, p *pkt, from int) {
	for _, d := range p.desc[:p.n] {
		if from >= int(d.Len) {
			from -= int(d.Len)
			continue
		}
		to = to[copy(to, w.area[d.Addr+uint64(from):d.Addr+uint64(d.Len)]):]
		from = 0
	}
}
