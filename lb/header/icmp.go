package header

import "encoding/binary"

// Message is the kind of an ICMP message, in either family.
type Message uint8

// Messages.
const (
	MessageOther     Message = iota // of no concern: informational, redirects, source quench
	MessageMalformed                // shorter than the header
	MessageEcho                     // an echo request
	MessageError                    // an error about a packet that it quotes
)

// ICMPMessage returns the kind of the message. p is of a packet whose protocol is ICMP
// or ICMPv6.
//
// Redirects are not translated: they are about the link of the sender.
// Source quench is to be ignored (RFC 6633).
func ICMPMessage(frame []byte, p *Packet) Message {
	if (p.Family == 6) != (p.Proto == ProtoICMPv6) {
		return MessageOther
	}
	if p.L4Len() < ICMPLen || len(frame) < int(p.L4)+ICMPLen {
		return MessageMalformed
	}
	switch typ := frame[p.L4]; {
	case p.Family == 4 && typ == ICMPEcho, p.Family == 6 && typ == ICMPv6Echo:
		return MessageEcho
	case p.Family == 4 && (typ == ICMPUnreachable || typ == ICMPTimeExceeded || typ == ICMPParameterProblem):
		return MessageError
	case p.Family == 6 && typ >= ICMPv6Unreachable && typ <= ICMPv6ParameterProblem:
		return MessageError
	}
	return MessageOther
}

// DestinationUnreachable reports whether an ICMP error says that the quoted packet did not reach
// its destination. The error about the size of a packet is another (RFC 1191).
func DestinationUnreachable(frame []byte, p *Packet) bool {
	const fragmentationNeeded = 4
	typ, code := frame[p.L4], frame[p.L4+1]
	if p.Family == 4 {
		return typ == ICMPUnreachable && code != fragmentationNeeded
	}
	return typ == ICMPv6Unreachable
}

// Quote is the packet that an ICMP error is about. Offsets are from the
// frame's start, in bytes.
type Quote struct {
	L3, L4 int
	End    int // end of the quoted bytes in the first buffer
	Proto  uint8
}

// ParseQuote finds the packet that the ICMP error in frame quotes: BadTransport if the
// quotation does not reach to the ports, IsFragment if the quoted fragment has none,
// NotTransport if the protocol has none.
func ParseQuote(frame []byte, p *Packet, q *Quote) Problem {
	q.L3 = int(p.L4) + ICMPLen
	q.End = min(len(frame), int(p.L3)+int(p.Len))
	if n := extendedLen(frame, p); n > 0 {
		q.End = min(q.End, q.L3+n)
	}
	if p.Family == 4 {
		return quote4(frame, q)
	}
	return quote6(frame, q)
}

// minExtended is the least number of bytes that are quoted where extensions
// follow (RFC 4884 section 3).
const minExtended = 128

// extendedLen is the length of the quoted packet where extensions may follow it
// (RFC 4884 section 4), 0 if nothing says so.
func extendedLen(frame []byte, p *Packet) int {
	n := int(frame[p.L4+5]) * 4
	if p.Family == 6 {
		if frame[p.L4] != ICMPv6Unreachable && frame[p.L4] != ICMPv6TimeExceeded {
			return 0
		}
		n = int(frame[p.L4+4]) * 8
	}
	if n < minExtended {
		return 0
	}
	return n
}

func quote4(frame []byte, q *Quote) Problem {
	if q.End < q.L3+IPv4Len {
		return BadTransport
	}
	ip := IPv4(frame[q.L3:q.End])
	if ip[0]>>4 != 4 || ip.HeaderLen() < IPv4Len {
		return BadTransport
	}
	q.Proto, q.L4 = ip.Protocol(), q.L3+ip.HeaderLen()
	if binary.BigEndian.Uint16(ip[6:])&0x1fff != 0 {
		return IsFragment
	}
	return q.ports()
}

func quote6(frame []byte, q *Quote) Problem {
	if q.End < q.L3+IPv6Len || frame[q.L3]>>4 != 6 {
		return BadTransport
	}
	q.Proto, q.L4 = IPv6(frame[q.L3:]).NextHeader(), q.L3+IPv6Len
	for range maxExtensions {
		n := 8
		switch q.Proto {
		case protoFragment, protoHopByHop, protoRouting, protoDestOptions:
		default:
			return q.ports()
		}
		if q.End < q.L4+8 {
			return BadTransport
		}
		ext := frame[q.L4 : q.L4+8]
		if q.Proto == protoFragment {
			if binary.BigEndian.Uint16(ext[2:])&0xfff8 != 0 {
				return IsFragment
			}
		} else {
			n += 8 * int(ext[1])
		}
		q.Proto, q.L4 = ext[0], q.L4+n
	}
	return BadTransport
}

func (q *Quote) ports() Problem {
	switch q.Proto {
	case ProtoTCP, ProtoUDP, ProtoSCTP:
	default:
		return NotTransport
	}
	if q.End < q.L4+4 {
		return BadTransport
	}
	return OK
}

// ErrorTranslation has the new fields of an ICMP error past a translator, as they lie in
// the packet (little-endian loads); an IPv4 packet takes the first word of the addresses.
type ErrorTranslation struct {
	Outer  [4]uint64 // source and destination of the error
	Quoted [4]uint64 // source and destination of the packet that it quotes
	Ports  uint32    // source and destination port of the packet that it quotes
}

// TranslateError rewrites an ICMP error and the packet that it quotes (RFC 5508
// section 4.2) and decrements the TTL. The checksums, those in the quotation as far as it
// reaches, are updated and not made anew: a wrong checksum stays wrong.
// All else stays: type, code, the MTU, the quote's TTL and length, extensions.
func TranslateError(frame []byte, p *Packet, q *Quote, t *ErrorTranslation) {
	var delta uint64 // over the bytes that the ICMP checksum covers
	ip := frame[q.L3:q.End]
	if p.Family == 4 {
		addr := put64(ip[12:], t.Quoted[0])
		delta = addr + put16(ip[10:], Update(binary.LittleEndian.Uint16(ip[10:]), addr))
		delta += t.quotedTransport(frame, p, q, addr)

		outer := frame[p.L3:]
		outer[8]--
		addr = put64(outer[12:], t.Outer[0])
		binary.LittleEndian.PutUint16(outer[10:], Update(binary.LittleEndian.Uint16(outer[10:]), addr+TTLDelta))
	} else {
		addr := putAddrs6(ip, &t.Quoted)
		delta = addr + t.quotedTransport(frame, p, q, addr)

		outer := frame[p.L3:]
		outer[7]--
		delta += putAddrs6(outer, &t.Outer) // ICMPv6 sums the pseudo header too
	}
	sum := frame[p.L4+2:]
	binary.LittleEndian.PutUint16(sum, Update(binary.LittleEndian.Uint16(sum), delta))
}

// quotedTransport rewrites the quoted transport header, of which the ports are
// there, and returns the change of the header's sum.
func (t *ErrorTranslation) quotedTransport(frame []byte, p *Packet, q *Quote, addr uint64) uint64 {
	l4, proto := frame[q.L4:q.End], q.Proto
	if proto == ProtoSCTP {
		return t.quotedSCTP(l4, q.sctpLen(frame, p))
	}
	ports := put16(l4, uint16(t.Ports)) + put16(l4[2:], uint16(t.Ports>>16))
	at := 16
	if proto == ProtoUDP {
		at = 6
	}
	if len(l4) < at+2 {
		return ports
	}
	c := binary.LittleEndian.Uint16(l4[at:])
	if proto == ProtoUDP && c == 0 {
		return ports // was sent without
	}
	c = Update(c, addr+ports)
	if proto == ProtoUDP && c == 0 {
		c = 0xffff
	}
	return ports + put16(l4[at:], c)
}

// put16 stores v and returns by how much the sum over it has changed.
func put16(b []byte, v uint16) uint64 {
	old := binary.LittleEndian.Uint16(b)
	if old == v {
		return 0 // not the other zero of one's complement
	}
	binary.LittleEndian.PutUint16(b, v)
	return uint64(^old) + uint64(v)
}

func put64(b []byte, v uint64) uint64 {
	return put16(b, uint16(v)) + put16(b[2:], uint16(v>>16)) + put16(b[4:], uint16(v>>32)) + put16(b[6:], uint16(v>>48))
}

// putAddrs6 stores both addresses of an IPv6 header.
func putAddrs6(ip []byte, addrs *[4]uint64) uint64 {
	var delta uint64
	for i, v := range addrs {
		delta += put64(ip[8+8*i:], v)
	}
	return delta
}

// RaiseMTU makes mtu, at most 65,535, the MTU of an error of which [TooBigMTU] reports
// true. A checksum that was wrong stays wrong.
func RaiseMTU(frame []byte, p *Packet, mtu uint16) {
	icmp := frame[p.L4:]
	delta := put16(icmp[6:], mtu<<8|mtu>>8)
	if p.Family == 6 {
		delta += put16(icmp[4:], 0)
	}
	binary.LittleEndian.PutUint16(icmp[2:], Update(binary.LittleEndian.Uint16(icmp[2:]), delta))
}

// EchoReply turns the echo request in frame into the reply, with the payload, and returns
// by how many bytes it has become shorter: IPv4 options and IPv6 extension headers are left
// out, for which all of the packet must be in frame. The MAC addresses are swapped: the
// reply leaves by the ingress port. A wrong checksum stays wrong.
func EchoReply(frame []byte, p *Packet) int {
	swapMACs(frame)
	icmp := frame[p.L4:]
	typ := uint16(ICMPEchoReply)
	if p.Family == 6 {
		typ = ICMPv6EchoReply
	}
	delta := put16(icmp, uint16(icmp[1])<<8|typ)
	binary.LittleEndian.PutUint16(icmp[2:], Update(binary.LittleEndian.Uint16(icmp[2:]), delta))

	ip := frame[p.L3:]
	size := IPv4Len
	if p.Family == 6 {
		size = IPv6Len
	}
	extra := int(p.L4-p.L3) - size
	if extra > 0 {
		copy(ip[size:], ip[size+extra:p.Len])
		p.L4 -= uint8(extra)
		p.Len -= uint16(extra)
	}
	if p.Family == 6 {
		swap(ip[8:24], ip[24:40])
		binary.BigEndian.PutUint16(ip[4:], p.Len-IPv6Len)
		ip[6], ip[7] = ProtoICMPv6, replyTTL
		return extra
	}
	swap(ip[12:16], ip[16:20])
	ip[0], ip[8] = 0x45, replyTTL
	binary.BigEndian.PutUint16(ip[2:], p.Len)
	ip[10], ip[11] = 0, 0
	binary.LittleEndian.PutUint16(ip[10:], Checksum(0, ip[:IPv4Len]))
	return extra
}

// EchoReplyFragment turns a fragment of an echo request into a fragment of the reply, with
// the same identification; the first has the ICMP header. There must be
// neither IPv4 options nor IPv6 extension headers but the fragment's own.
func EchoReplyFragment(frame []byte, p *Packet, first bool) {
	swapMACs(frame)
	ip := frame[p.L3:]
	typ := uint16(ICMPEchoReply)
	if p.Family == 6 {
		typ = ICMPv6EchoReply
		swap(ip[8:24], ip[24:40])
		ip[7] = replyTTL
	} else {
		swap(ip[12:16], ip[16:20])
		ip[8], ip[10], ip[11] = replyTTL, 0, 0
		binary.LittleEndian.PutUint16(ip[10:], Checksum(0, ip[:IPv4Len]))
	}
	if first {
		icmp := frame[p.L4:]
		delta := put16(icmp, uint16(icmp[1])<<8|typ)
		binary.LittleEndian.PutUint16(icmp[2:], Update(binary.LittleEndian.Uint16(icmp[2:]), delta))
	}
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}
