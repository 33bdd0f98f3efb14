package header

import (
	"encoding/binary"
	"math/bits"
)

// Fold folds a sum of 16-bit words into 16 bits.
func Fold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>32 + sum&0xffffffff
	s := uint32(sum>>16) + uint32(sum&0xffff)
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

// Sum adds the bytes of b to a running one's complement sum. Only the last
// piece of a message may have an odd length (RFC 1071: it is padded with 0).
func Sum(sum uint64, b []byte) uint64 {
	var carry uint64
	for len(b) >= 32 {
		for i := 0; i < 32; i += 8 {
			v := binary.LittleEndian.Uint64(b[i:])
			sum += v
			if sum < v {
				carry++
			}
		}
		b = b[32:]
	}
	for len(b) >= 8 {
		v := binary.LittleEndian.Uint64(b)
		sum += v
		if sum < v {
			carry++
		}
		b = b[8:]
	}
	var tail uint64
	for i := len(b) - 1; i >= 0; i-- {
		tail = tail<<8 | uint64(b[i])
	}
	sum += tail
	if sum < tail {
		carry++
	}
	sum += carry
	if sum < carry {
		sum++
	}
	return sum
}

// Checksum is the internet checksum (RFC 1071) of b with an initial sum,
// ready to be stored with little-endian order.
func Checksum(initial uint64, b []byte) uint16 { return ^Fold(Sum(initial, b)) }

// Update applies a delta to a stored checksum (RFC 1624).
func Update(c uint16, delta uint64) uint16 { return ^Fold(uint64(^c) + delta) }

// TTLDelta is the amount that a decrement of the IPv4 TTL adds to the header's delta.
const TTLDelta = 0xfffe

// PseudoSum4 is the pseudo header's sum of an IPv4 segment of length l4len
// (RFC 9293 section 3.1); ip is the IPv4 header.
func PseudoSum4(ip []byte, proto uint8, l4len int) uint64 {
	a := binary.LittleEndian.Uint64(ip[12:20])
	return a>>32 + a&0xffffffff + uint64(proto)<<8 + uint64(bits.ReverseBytes16(uint16(l4len)))
}

// PseudoSum6 is the same for IPv6 (RFC 8200 section 8.1).
func PseudoSum6(ip []byte, proto uint8, l4len int) uint64 {
	var s uint64
	for i := 8; i < 40; i += 4 {
		s += uint64(binary.LittleEndian.Uint32(ip[i:]))
	}
	// The length is 32 bits wide: two words, of which the upper is zero here.
	return s + uint64(proto)<<8 + uint64(bits.ReverseBytes16(uint16(l4len)))
}
