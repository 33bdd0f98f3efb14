package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

// resetLeftover resets the endpoint's half-open connection whose SNAT port the flow of entry
// ref has taken over. The endpoint then accepts packet p, the new flow's SYN. Otherwise it
// answers with a challenge ACK, and the client loses a second.
func (w *flows) resetLeftover(p *pkt, ref conntrack.Ref) {
	seq, ok := w.conntrack.Leftover(ref)
	if !ok || p.Proto != header.ProtoTCP || p.Frag != 0 || p.n != 1 {
		return
	}
	a, ok := w.free.pop()
	if !ok {
		return // all frames are in transmission: the SYN may have to be sent again
	}
	syn := *p
	n := int(p.L4) + header.TCPLen
	f := w.area[a+xsk.Headroom:][:n]
	copy(f, p.data)
	putRST(f, &p.Packet, seq)
	p.desc[0], p.size, p.data = xsk.Desc{Addr: a + xsk.Headroom, Len: uint32(n)}, uint32(n), f
	p.Flags, p.Partial = header.RST, false
	p.Len = uint16(n - int(p.L3))
	p.state = untracked
	v := w.forwardSlow(p, ref)
	if v == sent {
		w.counts[counter.Resets]++
	}
	w.act(p, v)
	*p = syn
}

// putRST makes the TCP segment whose headers f has a RST with sequence number seq.
func putRST(f []byte, p *header.Packet, seq uint32) {
	ip, l4 := f[p.L3:], f[p.L4:]
	binary.BigEndian.PutUint32(l4[4:], seq)
	clear(l4[8:])
	l4[12], l4[13] = header.TCPLen/4<<4, header.RST
	var sum uint64
	if p.Family == 4 {
		headers := ip[:p.L4-p.L3]
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		ip[10], ip[11] = 0, 0
		binary.LittleEndian.PutUint16(ip[10:], header.Checksum(0, headers))
		sum = header.PseudoSum4(ip, header.ProtoTCP, header.TCPLen)
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-header.IPv6Len))
		sum = header.PseudoSum6(ip, header.ProtoTCP, header.TCPLen)
	}
	binary.LittleEndian.PutUint16(l4[tcpChecksum:], header.Checksum(sum, l4))
}
