package conntrack

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// IP protocol numbers that the table tells apart (IANA protocol-numbers). Any
// other protocol ages like UDP.
const (
	ProtoTCP  = 6
	ProtoUDP  = 17
	ProtoSCTP = 132
)

// Key is a direction of a connection as raw words: little-endian loads of the
// packet's bytes, which stay in network order.
//
//	IPv4: W[0] = the 8 bytes at ip+12 (source, destination), W[1..3] = 0 (of an Entry: its words)
//	IPv6: W[0..3] = the 32 bytes at ip6+8 (source, destination)
//	W[4] = the 4 port bytes at l4 | protocol<<32 | family<<40 (family 4 or 6)
type Key struct{ W [5]uint64 }

// MakeKey returns the key of a packet from src to dst. An IPv4-mapped IPv6
// address is taken as IPv4. It returns the zero Key, which no packet has, when the families
// of the two differ.
func MakeKey(src, dst netip.AddrPort, proto uint8) Key {
	var k Key
	if k.set(src.Addr(), dst.Addr()); k.Family() != 0 {
		k.W[4] |= uint64(bits.ReverseBytes16(src.Port())) | uint64(bits.ReverseBytes16(dst.Port()))<<16 | uint64(proto)<<32
	}
	return k
}

// set makes k a key of two addresses without ports and protocol.
func (k *Key) set(src, dst netip.Addr) {
	if src.Is4() && dst.Is4() {
		k.W[0], k.W[1], k.W[2], k.W[3], k.W[4] = word4(src)|word4(dst)<<32, 0, 0, 0, 4<<40
		return
	}
	k.setUnmapped(src.Unmap(), dst.Unmap())
}

// setUnmapped is set of addresses of which one at least is not a plain IPv4 address.
func (k *Key) setUnmapped(src, dst netip.Addr) {
	*k = Key{}
	switch {
	case src.Is4() && dst.Is4():
		k.W[0], k.W[4] = word4(src)|word4(dst)<<32, 4<<40
	case src.Is6() && dst.Is6():
		k.W[0], k.W[1] = words6(src)
		k.W[2], k.W[3] = words6(dst)
		k.W[4] = 6 << 40
	}
}

func word4(a netip.Addr) uint64 {
	b := a.As4()
	return uint64(binary.LittleEndian.Uint32(b[:]))
}

func words6(a netip.Addr) (uint64, uint64) {
	b := a.As16()
	return binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])
}

func addr4(w uint32) netip.Addr {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], w)
	return netip.AddrFrom4(b)
}

func addr6(hi, lo uint64) netip.Addr {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], hi)
	binary.LittleEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b)
}

// Src returns the source address and port.
func (k *Key) Src() netip.AddrPort {
	port := bits.ReverseBytes16(uint16(k.W[4]))
	if k.Family() == 4 {
		return netip.AddrPortFrom(addr4(uint32(k.W[0])), port)
	}
	return netip.AddrPortFrom(addr6(k.W[0], k.W[1]), port)
}

// Dst returns the destination address and port.
func (k *Key) Dst() netip.AddrPort {
	port := bits.ReverseBytes16(uint16(k.W[4] >> 16))
	if k.Family() == 4 {
		return netip.AddrPortFrom(addr4(uint32(k.W[0]>>32)), port)
	}
	return netip.AddrPortFrom(addr6(k.W[2], k.W[3]), port)
}

// Proto returns the IP protocol number.
func (k *Key) Proto() uint8 { return uint8(k.W[4] >> 32) }

// Family returns 4 or 6, 0 for the zero Key.
func (k *Key) Family() uint8 { return uint8(k.W[4] >> 40) }

// Reverse returns the key of an answer: source and destination swapped.
func (k *Key) Reverse() Key {
	r := Key{W: [5]uint64{4: k.W[4]&^0xffffffff | k.W[4]>>16&0xffff | k.W[4]&0xffff<<16}}
	if k.Family() == 4 {
		r.W[0] = bits.RotateLeft64(k.W[0], 32)
		return r
	}
	r.W[0], r.W[1], r.W[2], r.W[3] = k.W[2], k.W[3], k.W[0], k.W[1]
	return r
}

// equal compares two keys. The family is part of W[4], so that two IPv4 keys
// need two words.
func (k *Key) equal(o *Key) bool {
	return k.W[0] == o.W[0] && k.W[4] == o.W[4] &&
		(uint8(k.W[4]>>40) == 4 || k.W[1] == o.W[1] && k.W[2] == o.W[2] && k.W[3] == o.W[3])
}

// hasher hashes keys.
type hasher struct{ seed [4]uint64 }

// Seed returns the seed of Hash. It is random per table and survives restoration.
func (s *hasher) Seed() [4]uint64 { return s.seed }

// Hash returns the seeded hash under which k is looked up. It is two rounds of a
// 64x64->128 multiply (one round is too weak for structured addresses); the seed
// is random per table, so that a sender cannot aim at one bucket.
func (s *hasher) Hash(k *Key) uint64 {
	if uint8(k.W[4]>>40) == 4 {
		return s.Hash4(k.W[0], k.W[4])
	}
	return s.Hash6(s.Mix6(k.W[0], k.W[1], k.W[2], k.W[4]), k.W[3])
}

// Hash4 is [Table.Hash] of an IPv4 key with words 0 and 4.
func (s *hasher) Hash4(w0, w4 uint64) uint64 {
	hi, lo := bits.Mul64(w0^s.seed[0], w4^s.seed[1])
	hi, lo = bits.Mul64(hi^lo^s.seed[2], s.seed[3])
	return hi ^ lo
}

// Hash6 is [Table.Hash] of an IPv6 key with word 3, after Mix6 of the others. Two short
// functions are inlined, one is not.
func (s *hasher) Hash6(mixed, w3 uint64) uint64 {
	hi, lo := bits.Mul64(w3^s.seed[1], mixed^s.seed[0])
	hi, lo = bits.Mul64(hi^lo^s.seed[2], s.seed[3])
	return hi ^ lo
}

// Mix6 is the first half of Hash6.
func (s *hasher) Mix6(w0, w1, w2, w4 uint64) uint64 {
	hi, lo := bits.Mul64(w0^s.seed[0], w4^s.seed[1])
	h := hi ^ lo
	hi, lo = bits.Mul64(w1^s.seed[2], w2^s.seed[3])
	return h ^ hi ^ lo
}
