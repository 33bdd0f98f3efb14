package header

import (
	"encoding/binary"
	"math/bits"
)

// Protocol numbers of IP in IP: RFC 2003, RFC 2473.
const (
	ProtoIPIP = 4  // an IPv4 packet follows, in either outer family
	ProtoIPv6 = 41 // an IPv6 packet follows (RFC 4213, RFC 2473)
)

// Generic UDP Encapsulation, variant 0 (draft-ietf-intarea-gue-09 section 3.2):
// four bytes of header without options, then the inner packet. Linux' fou
// module sends the same; Katran sends variant 1, which has no header at all
// (section 4).
const (
	GUEPort = 6080
	GUELen  = 4
)

// MaxEncapLen is the longest outer header: IPv6, UDP and GUE.
const MaxEncapLen = IPv6Len + UDPLen + GUELen

// EncapTTL is the outer header's TTL or hop limit.
const EncapTTL = 64

// Encap has the parts of an outer header.
type Encap struct {
	V6  bool // the outer header is IPv6
	GUE bool // UDP and GUE between outer and inner header; else IP in IP
	// Addr4 or Addr6 are the outer source and destination as they lie in
	// the header (little-endian loads).
	Addr4 uint64
	Addr6 [4]uint64
	// Flow distinguishes flows for devices that spread them by the outer header: the
	// UDP source port of GUE, and the flow label of IPv6 (RFC 6438).
	Flow uint32
	ID   uint16 // identification of an IPv4 packet that may be fragmented
}

// Len is the length of the outer header in bytes.
func (e *Encap) Len() int {
	n := IPv4Len
	if e.V6 {
		n = IPv6Len
	}
	if e.GUE {
		n += UDPLen + GUELen
	}
	return n
}

// Put writes the outer header into b[:e.Len()] for the IP packet of innerLen
// bytes that begins at b[e.Len():]; of it at least the IP header must be there.
// A UDP checksum is left 0: see [Encap.UDPSum].
//
// Traffic class and TOS, that is DSCP and ECN, are the inner packet's: RFC 6040
// section 4.1, normal mode, and RFC 2983's uniform model. DF is the inner
// packet's (RFC 2003 section 3.1), and set where that is IPv6, which no router may
// fragment.
func (e *Encap) Put(b []byte, innerLen int) {
	n := e.Len()
	tos, df, proto := innerFields(b[n:])
	next := proto
	l3 := n
	if e.GUE {
		next = ProtoUDP
		l3 -= UDPLen + GUELen
		e.putGUE(b[l3:n], proto, innerLen)
	}
	if e.V6 {
		ip := b[:IPv6Len]
		binary.BigEndian.PutUint32(ip, 6<<28|uint32(tos)<<20|e.Flow&0xfffff)
		binary.BigEndian.PutUint16(ip[4:], uint16(n-l3+innerLen))
		ip[6], ip[7] = next, EncapTTL
		for i, w := range e.Addr6 {
			binary.LittleEndian.PutUint64(ip[8+8*i:], w)
		}
		return
	}
	e.putIPv4(b[:IPv4Len], tos, df, next, uint16(n+innerLen))
}

// putIPv4 writes an outer IPv4 header by three stores.
func (e *Encap) putIPv4(ip []byte, tos uint8, df bool, next uint8, length uint16) {
	// An atomic datagram needs no identification (RFC 6864).
	frag := uint64(0x40) << 48
	if !df {
		frag = uint64(bits.ReverseBytes16(e.ID)) << 32
	}
	start := 0x45 | uint64(tos)<<8 | uint64(bits.ReverseBytes16(length))<<16 | frag
	ttl := EncapTTL | uint64(next)<<8
	sum := ^Fold(start>>32 + start&0xffffffff + ttl + e.Addr4>>32 + e.Addr4&0xffffffff)
	binary.LittleEndian.PutUint64(ip, start)
	binary.LittleEndian.PutUint64(ip[8:], ttl|uint64(sum)<<16|e.Addr4<<32)
	binary.LittleEndian.PutUint32(ip[16:], uint32(e.Addr4>>32))
}

func innerFields(ip []byte) (tos uint8, df bool, proto uint8) {
	if ip[0]>>4 == 6 {
		return ip[0]<<4 | ip[1]>>4, true, ProtoIPv6
	}
	return ip[1], IPv4(ip).DontFragment(), ProtoIPIP
}

func (e *Encap) putGUE(b []byte, proto uint8, innerLen int) {
	// The dynamic ports, as section 5.11.1 of the draft says.
	binary.BigEndian.PutUint16(b, 0xc000|uint16(e.Flow))
	binary.BigEndian.PutUint16(b[2:], GUEPort)
	binary.BigEndian.PutUint16(b[4:], uint16(UDPLen+GUELen+innerLen))
	b[6], b[7] = 0, 0
	b[8], b[9], b[10], b[11] = 0, proto, 0, 0
}

// UDPSum is the initial sum of the checksum of a GUE packet over IPv6, over the pseudo
// header; l4len is the length of the UDP header and all behind.
func (e *Encap) UDPSum(l4len int) uint64 {
	var s uint64
	for _, w := range e.Addr6 {
		s += w>>32 + w&0xffffffff
	}
	return s + ProtoUDP<<8 + uint64(bits.ReverseBytes16(uint16(l4len)))
}
