package header

import "encoding/binary"

// DecrementTTL takes 1 off the TTL, or the hop limit, of the packet with the IP header,
// and keeps the header checksum right.
func DecrementTTL(ip []byte, family uint8) {
	if family == 6 {
		ip[7]--
		return
	}
	ip[8]--
	sum := binary.LittleEndian.Uint16(ip[10:])
	binary.LittleEndian.PutUint16(ip[10:], Update(sum, TTLDelta))
}

// RewriteIPv4 writes new addresses, both as a little-endian load, takes 1 off the TTL and
// updates the header checksum. delta is the change of the sum by the new addresses.
func RewriteIPv4(ip []byte, addrs, delta uint64) {
	_ = ip[IPv4Len-1]
	binary.LittleEndian.PutUint64(ip[8:], NextHopWord(binary.LittleEndian.Uint64(ip[8:]), addrs, delta))
	binary.LittleEndian.PutUint32(ip[16:], uint32(addrs>>32))
}

// NextHopWord returns RewriteIPv4's result for word, the 8 bytes of an IPv4 header from
// the TTL to the source. It is for callers that cannot afford the call.
func NextHopWord(word, addrs, delta uint64) uint64 {
	sum := ^Fold(^word>>16&0xffff + delta + TTLDelta) // Update, short enough to be inlined
	return (word-1)&0xffff | uint64(sum)<<16 | addrs<<32
}

// RewriteIPv6 writes new addresses and takes 1 off the hop limit.
func RewriteIPv6(ip []byte, src, dst [2]uint64) {
	_ = ip[IPv6Len-1]
	ip[7]--
	binary.LittleEndian.PutUint64(ip[8:], src[0])
	binary.LittleEndian.PutUint64(ip[16:], src[1])
	binary.LittleEndian.PutUint64(ip[24:], dst[0])
	binary.LittleEndian.PutUint64(ip[32:], dst[1])
}

// RewriteIPv6By is RewriteIPv6 with the new addresses as the words of a key that has the
// destination first. It is for callers that cannot afford the copies.
func RewriteIPv6By(ip *[IPv6Len]byte, k *[5]uint64) {
	ip[7]--
	binary.LittleEndian.PutUint64(ip[8:], k[2])
	binary.LittleEndian.PutUint64(ip[16:], k[3])
	binary.LittleEndian.PutUint64(ip[24:], k[0])
	binary.LittleEndian.PutUint64(ip[32:], k[1])
}
