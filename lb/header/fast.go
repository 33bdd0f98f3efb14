package header

import (
	"encoding/binary"
	"math/bits"
)

// EtherTypes as little-endian loads.
const (
	leIPv4 = EtherTypeIPv4>>8 | EtherTypeIPv4&0xff<<8
	leIPv6 = EtherTypeIPv6>>8 | EtherTypeIPv6&0xff<<8
	leVLAN = EtherTypeVLAN>>8 | EtherTypeVLAN&0xff<<8
	leQinQ = EtherTypeQinQ>>8 | EtherTypeQinQ&0xff<<8
)

// ParseFast reads nearly every packet: TCP or UDP right behind an IPv4 header without
// options or an IPv6 header, valid, no fragment, with or without VLAN tags. It fills p as
// [Parse] does. If it returns false, Parse must read the packet, and p is not valid.
func ParseFast(frame []byte, total int, p *Packet) bool {
	if _, _, ok := ParseFast4(frame, total, p); ok {
		return true
	}
	return ParseFastOther(frame, total, p)
}

// ParseFast4 is [ParseFast] of untagged IPv4 alone, and returns the 8 bytes of the addresses
// and the 4 of the ports as little-endian loads. It makes no call: each would cost as much
// as its body.
func ParseFast4(frame []byte, total int, p *Packet) (addrs uint64, ports uint32, ok bool) {
	if len(frame) < EthernetLen+IPv4Len+UDPLen {
		return 0, 0, false
	}
	ip := frame[EthernetLen:]
	_ = ip[IPv4Len+UDPLen-1]
	w0 := binary.LittleEndian.Uint64(ip)     // version to fragment
	w1 := binary.LittleEndian.Uint64(ip[8:]) // TTL to source
	addrs = binary.LittleEndian.Uint64(ip[12:])
	ports = binary.LittleEndian.Uint32(ip[20:])
	n := int(bits.ReverseBytes16(uint16(w0 >> 16)))
	sum := w0>>32 + w0&0xffffffff + w1>>32 + w1&0xffffffff + addrs>>32
	if binary.LittleEndian.Uint16(frame[12:]) != leIPv4 || uint8(w0) != 0x45 || w0&anyFragment != 0 ||
		EthernetLen+n > total || sum%0xffff != 0 || Martians4(addrs) {
		return 0, 0, false
	}
	proto := uint8(w1 >> 8)
	p.Family, p.Proto, p.L3, p.L4, p.TTL, p.Frag, p.Len = 4, proto, EthernetLen, EthernetLen+IPv4Len, uint8(w1), 0, uint16(n)
	n -= IPv4Len
	pseudo := addrs>>32 + addrs&0xffffffff + uint64(proto)<<8 + uint64(bits.ReverseBytes16(uint16(n)))
	if proto == ProtoUDP {
		w2 := binary.LittleEndian.Uint32(ip[24:]) // length, checksum
		u := int(bits.ReverseBytes16(uint16(w2)))
		p.Flags = 0
		p.Partial = u == n && sameSum(pseudo, uint16(w2>>16))
		return addrs, ports, u >= UDPLen && u <= n
	}
	l4 := ip[IPv4Len:]
	if proto != ProtoTCP || n < TCPLen || len(l4) < TCPLen {
		return 0, 0, false
	}
	off := TCP(l4).DataOffset()
	p.Flags = TCP(l4).Flags()
	p.Partial = sameSum(pseudo, binary.LittleEndian.Uint16(l4[16:]))
	return addrs, ports, off >= TCPLen && off <= n && off <= len(l4)
}

// anyFragment are the bits of an IPv4 header's first eight bytes that no whole packet
// has: more fragments, and an offset.
const anyFragment = 0xff3f << 48

// ParseFastOther is [ParseFast] of all but untagged IPv4.
func ParseFastOther(frame []byte, total int, p *Packet) bool {
	if len(frame) < EthernetLen+IPv4Len+UDPLen {
		return false
	}
	l3 := EthernetLen
	t := binary.LittleEndian.Uint16(frame[12:])
	for range 2 {
		if t != leVLAN && t != leQinQ {
			break
		}
		t = binary.LittleEndian.Uint16(frame[l3+2:])
		l3 += TagLen
	}
	switch {
	case t == leIPv4 && len(frame) >= l3+IPv4Len+UDPLen:
		return fast4(frame, l3, total, p)
	case t == leIPv6 && len(frame) >= l3+IPv6Len+UDPLen:
		return fast6(frame, l3, total, p)
	}
	return false
}

// sameSum reports whether a one's complement sum, not 0, folds to the value, where 0 stands
// for nothing: 2^16 is 1 modulo 0xffff, so that the remainder of a sum is
// that of its folded words, and a division by a constant is a multiplication.
func sameSum(sum uint64, value uint16) bool {
	return value != 0 && (sum+0xffff-uint64(value))%0xffff == 0
}

// fast4 is ParseFast of the IPv4 header at l3. The frame holds 28 bytes there.
func fast4(frame []byte, l3, total int, p *Packet) bool {
	ip := frame[l3:]
	_ = ip[IPv4Len+UDPLen-1]
	w0 := binary.LittleEndian.Uint64(ip)     // version to fragment
	w1 := binary.LittleEndian.Uint64(ip[8:]) // TTL to source
	addrs := binary.LittleEndian.Uint64(ip[12:])
	n := int(bits.ReverseBytes16(uint16(w0 >> 16)))
	sum := w0>>32 + w0&0xffffffff + w1>>32 + w1&0xffffffff + addrs>>32
	if uint8(w0) != 0x45 || w0&anyFragment != 0 || l3+n > total || sum%0xffff != 0 ||
		Martians4(addrs) {
		return false
	}
	proto := uint8(w1 >> 8)
	p.Family, p.Proto, p.L3, p.L4, p.TTL, p.Frag, p.Len = 4, proto, uint8(l3), uint8(l3+IPv4Len), uint8(w1), 0, uint16(n)
	pseudo := addrs>>32 + addrs&0xffffffff + uint64(proto)<<8
	return fastL4(ip[IPv4Len:], n-IPv4Len, pseudo, p)
}

// fast6 is ParseFast of the IPv6 header at l3. The frame holds 48 bytes there.
func fast6(frame []byte, l3, total int, p *Packet) bool {
	ip := IPv6(frame[l3:])
	_ = ip[IPv6Len+UDPLen-1]
	n := ip.PayloadLen()
	if ip[0]>>4 != 6 || l3+IPv6Len+n > total || IPv6Len+n > 0xffff || martian6(ip) {
		return false
	}
	proto := ip.NextHeader()
	p.Family, p.Proto, p.L3, p.L4, p.TTL, p.Frag, p.Len = 6, proto, uint8(l3), uint8(l3+IPv6Len), ip.HopLimit(), 0, uint16(IPv6Len+n)
	pseudo := uint64(proto) << 8
	for i := 8; i < 40; i += 8 {
		w := binary.LittleEndian.Uint64(ip[i:])
		pseudo += w>>32 + w&0xffffffff
	}
	return fastL4(ip[IPv6Len:], n, pseudo, p)
}

// fastL4 is ParseFast of the transport header of a segment of n bytes. l4 holds at
// least a UDP header. pseudo is the pseudo header's sum but for the length.
func fastL4(l4 []byte, n int, pseudo uint64, p *Packet) bool {
	pseudo += uint64(bits.ReverseBytes16(uint16(n)))
	if p.Proto == ProtoUDP {
		_ = l4[UDPLen-1]
		u := int(binary.BigEndian.Uint16(l4[4:]))
		p.Flags = 0
		p.Partial = u == n && sameSum(pseudo, binary.LittleEndian.Uint16(l4[6:]))
		return u >= UDPLen && u <= n
	}
	if p.Proto != ProtoTCP || n < TCPLen || len(l4) < TCPLen {
		return false
	}
	off := TCP(l4).DataOffset()
	p.Flags = TCP(l4).Flags()
	p.Partial = sameSum(pseudo, binary.LittleEndian.Uint16(l4[16:]))
	return off >= TCPLen && off <= n && off <= len(l4)
}

// Martians4 is martian4 of the addresses in a little-endian load.
func Martians4(addrs uint64) bool {
	return martianOctet[uint8(addrs)] || martianOctet[uint8(addrs>>32)]
}

// martianOctet are the first octets of IPv4 addresses that martian4 refuses.
var martianOctet = func() (m [256]bool) {
	for i := range m {
		m[i] = i == 0 || i == 127 || i >= 224
	}
	return m
}()
