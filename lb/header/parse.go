package header

import "encoding/binary"

// Problem says why a frame is not a packet that can be balanced.
type Problem uint8

// Problems, in the order in which Parse looks for them.
const (
	OK           Problem = iota
	NotIP                // neither IPv4 nor IPv6, or more than two VLAN tags
	Truncated            // a length points outside the frame
	BadIPHeader          // version, header length or IPv4 header checksum
	IsFragment           // a fragment, with as much of p as it holds: L4 and Flags in the first only
	NotTransport         // neither TCP, UDP nor SCTP
	BadTransport         // TCP data offset, UDP length or first SCTP chunk out of bounds
	Martian              // an address that must not be on a wire
	BadExtension         // an IPv6 extension header out of bounds or place, or too many of them
	SourceRouted         // a source route or routing header with segments left
	BadFragment          // an impossible fragment
	TinyFragment         // a fragment whose transport header is cut
)

// Packet is the result of Parse. Offsets are from the frame's start, in bytes.
type Packet struct {
	Family uint8 // 4 or 6, valid when Problem is neither NotIP nor BadIPHeader
	Proto  uint8 // valid with OK and BadTransport
	L3     uint8 // offset of the IP header: 14, and 4 more for each VLAN tag
	L4     uint8 // offset of the TCP, UDP or SCTP header
	TTL    uint8
	Flags  uint8 // TCP flags, type of the first SCTP chunk, 0 for UDP
	// Frag is 0, or in a fragment the offset of the IPv4 header or the IPv6 fragment
	// header.
	Frag uint8
	Len  uint16 // length of the IP packet, behind Ethernet header and tags
	// Partial is true when the transport checksum field holds the pseudo
	// header's sum only, to be completed at transmission (CHECKSUM_PARTIAL of veth and
	// virtio). A complete checksum that equals it by chance is taken for a partial
	// checksum, and completing it is then right as well. For SCTP it is a CRC of 0.
	Partial bool
}

// L4Len is the length of the transport header and the payload.
func (p *Packet) L4Len() int { return int(p.Len) - int(p.L4-p.L3) }

// Parse reads the headers in the frame's first buffer; total is the length of the whole
// frame over all buffers. The buffer must hold all headers.
func Parse(frame []byte, total int, p *Packet) Problem {
	p.L3, p.Frag = EthernetLen, 0
	if len(frame) < EthernetLen {
		return NotIP
	}
	t := binary.BigEndian.Uint16(frame[12:])
	if isTag(t) {
		t = skipTags(frame, p)
	}
	if t != EtherTypeIPv4 && t != EtherTypeIPv6 {
		return NotIP
	}
	if len(frame) < int(p.L3)+IPv4Len {
		return Truncated
	}
	if t == EtherTypeIPv4 {
		return parse4(frame, total, p)
	}
	return parse6(frame, total, p)
}

func isTag(t uint16) bool { return t == EtherTypeVLAN || t == EtherTypeQinQ }

// skipTags moves p.L3 behind the VLAN tags, at most two, and returns the EtherType
// found there, 0 when there is none.
func skipTags(frame []byte, p *Packet) uint16 {
	t := uint16(EtherTypeVLAN)
	for n := 0; n < 2 && isTag(t); n++ {
		if len(frame) < int(p.L3)+TagLen {
			return 0
		}
		t = binary.BigEndian.Uint16(frame[p.L3+2:])
		p.L3 += TagLen
	}
	return t
}

func parse4(frame []byte, total int, p *Packet) Problem {
	ip := IPv4(frame[p.L3:])
	ihl := ip.HeaderLen()
	if ip[0]>>4 != 4 || ihl < IPv4Len {
		return BadIPHeader
	}
	n := ip.TotalLen()
	if n < ihl || int(p.L3)+n > total || len(ip) < ihl {
		return Truncated
	}
	if Fold(Sum(0, ip[:ihl])) != 0xffff {
		return BadIPHeader
	}
	p.Family, p.Len, p.TTL, p.Proto = 4, uint16(n), ip.TTL(), ip.Protocol()
	p.L4 = p.L3 + uint8(ihl)
	if martian4(ip) {
		return Martian
	}
	if ihl != IPv4Len {
		if problem := options4(ip[IPv4Len:ihl]); problem != OK {
			return problem
		}
	}
	if ip.Fragment() {
		return parseFragment4(frame, p)
	}
	return parseL4(frame, p, PseudoSum4(ip, p.Proto, n-ihl))
}

func parse6(frame []byte, total int, p *Packet) Problem {
	ip := IPv6(frame[p.L3:])
	if ip[0]>>4 != 6 {
		return BadIPHeader
	}
	if len(ip) < IPv6Len {
		return Truncated
	}
	n := IPv6Len + ip.PayloadLen()
	if int(p.L3)+n > total || n > 0xffff {
		return Truncated
	}
	p.Family, p.Len, p.TTL, p.Proto = 6, uint16(n), ip.HopLimit(), ip.NextHeader()
	p.L4 = p.L3 + IPv6Len
	if martian6(ip) {
		return Martian
	}
	if p.Proto != ProtoTCP && p.Proto != ProtoUDP {
		return parseExtensions(frame, p)
	}
	return parseL4(frame, p, PseudoSum6(ip, p.Proto, n-IPv6Len))
}

func parseL4(frame []byte, p *Packet, pseudo uint64) Problem {
	l4 := frame[p.L4:]
	n := p.L4Len()
	switch p.Proto {
	case ProtoTCP:
		if n < TCPLen || len(l4) < TCPLen {
			return BadTransport
		}
		if off := TCP(l4).DataOffset(); off < TCPLen || off > n || off > len(l4) {
			return BadTransport
		}
		p.Flags = TCP(l4).Flags()
		p.Partial = binary.LittleEndian.Uint16(l4[16:]) == Fold(pseudo)
	case ProtoUDP:
		if n < UDPLen || len(l4) < UDPLen {
			return BadTransport
		}
		if u := int(binary.BigEndian.Uint16(l4[4:])); u < UDPLen || u > n {
			return BadTransport
		}
		p.Flags = 0
		// A local stack that leaves the checksum to the device never pads.
		p.Partial = binary.LittleEndian.Uint16(l4[6:]) == Fold(pseudo) &&
			int(binary.BigEndian.Uint16(l4[4:])) == n
	case ProtoSCTP:
		return p.sctp(l4, n)
	default:
		return NotTransport
	}
	return OK
}

// martian4 reports source addresses that must not be on a wire (RFC 1812
// section 5.3.7): 0/8, loopback, multicast, class E and broadcast; and
// destinations that are not unicast.
func martian4(ip IPv4) bool {
	s, d := ip[12], ip[16]
	return s == 0 || s == 127 || s >= 224 || d == 0 || d == 127 || d >= 224
}

// martian6 is the same for IPv6: unspecified, loopback and multicast, and
// IPv4-mapped addresses, which stand for other hosts than they look like.
func martian6(ip IPv6) bool {
	_ = ip[IPv6Len-1]
	return Martians6(binary.LittleEndian.Uint64(ip[8:]), binary.LittleEndian.Uint64(ip[16:]),
		binary.LittleEndian.Uint64(ip[24:]), binary.LittleEndian.Uint64(ip[32:]))
}

// Martians6 is martian6 of the addresses in four little-endian loads.
func Martians6(s0, s1, d0, d1 uint64) bool {
	return uint8(s0) == 0xff || uint8(d0) == 0xff || s0 == 0 && neverOnWire(s1) || d0 == 0 && neverOnWire(d1)
}

// neverOnWire is of the last eight bytes of an address that begins with zeros.
func neverOnWire(low uint64) bool {
	return low == 0 || low == 1<<56 || uint32(low) == 0xffff0000
}
