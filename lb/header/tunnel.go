package header

import "encoding/binary"

// TooBigMTU is the MTU that an ICMP error says a packet was too big for; ok is
// false if it says something else. p is of a packet that is a MessageError.
func TooBigMTU(frame []byte, p *Packet) (mtu uint32, ok bool) {
	icmp := frame[p.L4 : p.L4+ICMPLen]
	if p.Family == 6 {
		return binary.BigEndian.Uint32(icmp[4:]), icmp[0] == ICMPv6TooBig
	}
	return uint32(binary.BigEndian.Uint16(icmp[6:])), icmp[0] == ICMPUnreachable && icmp[1] == ICMPCodeFragNeeded
}

// Inner finds the inner packet, with the family, if an ICMP error quotes a tunnel packet of
// [Encap]. Problems are those of ParseQuote, and NotTransport if the quoted packet is not
// of a tunnel.
func (q *Quote) Inner(frame []byte, in *Quote) (family uint8, problem Problem) {
	proto, at := q.Proto, q.L4
	if proto == ProtoUDP {
		if q.End < at+UDPLen+GUELen {
			return 0, BadTransport
		}
		gue := frame[at+UDPLen:]
		if binary.BigEndian.Uint16(frame[at+2:]) != GUEPort || gue[0] != 0 {
			return 0, NotTransport
		}
		proto, at = gue[1], at+UDPLen+GUELen
	}
	in.L3, in.End = at, q.End
	switch proto {
	case ProtoIPIP:
		return 4, quote4(frame, in)
	case ProtoIPv6:
		return 6, quote6(frame, in)
	}
	return 0, NotTransport
}

// PacketLen is the length of the quoted packet by its header.
func (q *Quote) PacketLen(frame []byte) uint32 {
	ip := frame[q.L3:]
	if ip[0]>>4 == 6 {
		return IPv6Len + uint32(binary.BigEndian.Uint16(ip[4:]))
	}
	return uint32(binary.BigEndian.Uint16(ip[2:]))
}

// TunnelTooBig turns the ICMP error in frame, about a tunnel packet, into an error about
// the inner packet, in, as [Unreachable] would have made it: mtu is the inner MTU of the
// tunnel. It returns the new frame's length. frame must be as long as
// for Unreachable.
func TunnelTooBig(frame []byte, p *Packet, in *Quote, mtu int) int {
	l3, size := int(p.L3), in.PacketLen(frame)
	have := l3 + copy(frame[l3:], frame[in.L3:in.End])
	etherType := uint16(EtherTypeIPv4)
	if p.Family = frame[l3] >> 4; p.Family == 6 {
		etherType = EtherTypeIPv6
	}
	binary.BigEndian.PutUint16(frame[l3-2:], etherType)
	p.Len = uint16(min(size, 0xffff))
	return Unreachable(frame, have, p, TooBig, mtu)
}
