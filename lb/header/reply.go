package header

import "encoding/binary"

// ICMP types and codes used by Weir (RFC 792, RFC 1191, RFC 4443).
const (
	ICMPEchoReply        = 0
	ICMPUnreachable      = 3
	ICMPEcho             = 8
	ICMPTimeExceeded     = 11
	ICMPParameterProblem = 12

	ICMPCodeHost       = 1
	ICMPCodePort       = 3
	ICMPCodeFragNeeded = 4

	ICMPv6Unreachable      = 1
	ICMPv6TooBig           = 2
	ICMPv6TimeExceeded     = 3
	ICMPv6ParameterProblem = 4
	ICMPv6Echo             = 128
	ICMPv6EchoReply        = 129

	ICMPv6CodeAddress = 3
	ICMPv6CodePort    = 4
)

// Error is an ICMP error in the terms of both families.
type Error uint8

// Errors that Weir sends.
const (
	PortUnreachable Error = iota
	HostUnreachable
	TimeExceeded
	TooBig
)

// quote limits: RFC 1812 section 4.3.2.3 (576-byte datagrams) and RFC 4443
// section 2.4(c) (the minimum MTU).
const (
	maxICMP4 = 576
	maxICMP6 = 1280
)

const replyTTL = 64

// Reset turns the TCP packet in frame into the RST that refuses it
// (RFC 9293 section 3.10.7.1) and returns the new frame's length. The MAC addresses are
// swapped: the RST leaves by the ingress port.
func Reset(frame []byte, p *Packet) int {
	swapMACs(frame)
	l4 := TCP(frame[p.L4:])
	var seq, ack uint32
	flags := uint8(RST)
	if p.Flags&ACK != 0 {
		seq = l4.Ack()
	} else {
		flags |= ACK
		ack = l4.Seq() + uint32(p.L4Len()-l4.DataOffset())
		if p.Flags&SYN != 0 {
			ack++
		}
		if p.Flags&FIN != 0 {
			ack++
		}
	}
	return answerTCP(frame, p, seq, ack, flags)
}

// Challenge turns the SYN in frame into an ACK with the numbers given, a challenge ACK
// (RFC 5961 section 4), and returns the new frame's length. It leaves as Reset does.
func Challenge(frame []byte, p *Packet, seq, ack uint32) int {
	swapMACs(frame)
	return answerTCP(frame, p, seq, ack, ACK)
}

// answerTCP turns the TCP packet in frame into an empty segment without options for the
// sender, and returns the new frame's length.
func answerTCP(frame []byte, p *Packet, seq, ack uint32, flags uint8) int {
	l4 := frame[p.L4:]
	sport, dport := binary.LittleEndian.Uint16(l4[0:]), binary.LittleEndian.Uint16(l4[2:])
	off := reverseIP(frame, p, ProtoTCP, TCPLen)
	t := frame[off : off+TCPLen]
	binary.LittleEndian.PutUint16(t[0:], dport)
	binary.LittleEndian.PutUint16(t[2:], sport)
	binary.BigEndian.PutUint32(t[4:], seq)
	binary.BigEndian.PutUint32(t[8:], ack)
	binary.BigEndian.PutUint64(t[12:], uint64(TCPLen/4<<4)<<56|uint64(flags)<<48)
	sealL4(frame, p, ProtoTCP, off, TCPLen, 16)
	return off + TCPLen
}

// Unreachable turns the packet in frame into the ICMP error about it, with the longest
// quotation that fits, and returns the new frame's length. frame[:have] holds the
// packet's first buffer; frame must be long enough for the error too
// (22 + 1280 bytes will do for every case). mtu is used by TooBig.
// The error's source is the packet's own destination, so that a client sees
// no address but the frontend's.
func Unreachable(frame []byte, have int, p *Packet, e Error, mtu int) int {
	swapMACs(frame)
	quote := min(have-int(p.L3), int(p.Len))
	if p.Family == 4 {
		return unreachable4(frame, p, quote, e, mtu)
	}
	return unreachable6(frame, p, quote, e, mtu)
}

func unreachable4(frame []byte, p *Packet, quote int, e Error, mtu int) int {
	quote = min(quote, maxICMP4-IPv4Len-ICMPLen)
	at := int(p.L3) + IPv4Len + ICMPLen
	copy(frame[at:at+quote], frame[p.L3:])
	off := reverseIP(frame, p, ProtoICMP, ICMPLen+quote)
	icmp := frame[off : off+ICMPLen]
	clear(icmp)
	icmp[0] = ICMPUnreachable
	switch e {
	case PortUnreachable:
		icmp[1] = ICMPCodePort
	case HostUnreachable:
		icmp[1] = ICMPCodeHost
	case TimeExceeded:
		icmp[0] = ICMPTimeExceeded
	case TooBig:
		icmp[1] = ICMPCodeFragNeeded
		binary.BigEndian.PutUint16(icmp[6:], uint16(min(mtu, 0xffff)))
	}
	c := Checksum(0, frame[off:off+ICMPLen+quote])
	binary.LittleEndian.PutUint16(icmp[2:], c)
	return off + ICMPLen + quote
}

func unreachable6(frame []byte, p *Packet, quote int, e Error, mtu int) int {
	quote = min(quote, maxICMP6-IPv6Len-ICMPLen)
	at := int(p.L3) + IPv6Len + ICMPLen
	copy(frame[at:at+quote], frame[p.L3:])
	off := reverseIP(frame, p, ProtoICMPv6, ICMPLen+quote)
	icmp := frame[off : off+ICMPLen]
	clear(icmp)
	icmp[0] = ICMPv6Unreachable
	switch e {
	case PortUnreachable:
		icmp[1] = ICMPv6CodePort
	case HostUnreachable:
		icmp[1] = ICMPv6CodeAddress
	case TimeExceeded:
		icmp[0] = ICMPv6TimeExceeded
	case TooBig:
		icmp[0] = ICMPv6TooBig
		binary.BigEndian.PutUint32(icmp[4:], uint32(mtu))
	}
	sealL4(frame, p, ProtoICMPv6, off, ICMPLen+quote, 2)
	return off + ICMPLen + quote
}

func swapMACs(frame []byte) {
	var mac [6]byte
	copy(mac[:], frame[0:6])
	copy(frame[0:6], frame[6:12])
	copy(frame[6:12], mac[:])
}

// reverseIP writes a fresh IP header without options from the packet's
// destination back to its source, and returns the offset of the payload.
func reverseIP(frame []byte, p *Packet, proto uint8, payload int) int {
	ip := frame[p.L3:]
	if p.Family == 6 {
		var a [16]byte
		copy(a[:], ip[8:24])
		copy(ip[8:24], ip[24:40])
		copy(ip[24:40], a[:])
		binary.BigEndian.PutUint32(ip[0:], 6<<28)
		binary.BigEndian.PutUint16(ip[4:], uint16(payload))
		ip[6], ip[7] = proto, replyTTL
		return int(p.L3) + IPv6Len
	}
	src, dst := binary.LittleEndian.Uint32(ip[12:]), binary.LittleEndian.Uint32(ip[16:])
	clear(ip[:12])
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(IPv4Len+payload))
	ip[6] = 0x40 // DF: an atomic datagram needs no identification (RFC 6864)
	ip[8], ip[9] = replyTTL, proto
	binary.LittleEndian.PutUint32(ip[12:], dst)
	binary.LittleEndian.PutUint32(ip[16:], src)
	binary.LittleEndian.PutUint16(ip[10:], Checksum(0, ip[:IPv4Len]))
	return int(p.L3) + IPv4Len
}

// sealL4 computes the checksum at l4[at:] over pseudo header and payload.
func sealL4(frame []byte, p *Packet, proto uint8, off, n, at int) {
	l4 := frame[off : off+n]
	l4[at], l4[at+1] = 0, 0
	ip := frame[p.L3:]
	sum := PseudoSum4
	if p.Family == 6 {
		sum = PseudoSum6
	}
	binary.LittleEndian.PutUint16(l4[at:], Checksum(sum(ip, proto, n), l4))
}
