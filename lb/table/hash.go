package table

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Key is a frontend's address, port and protocol as the bytes of a packet, in
// little-endian loads: the form that a worker has after parsing.
type Key struct {
	W0, W1 uint64 // destination address; IPv4: the four bytes, W1 = 0
	W2     uint64 // destination port (raw) | protocol<<16 | family<<24; family is 4 or 6
}

// MakeKey is the key of packets to ap. An IPv4-mapped IPv6 address is taken as IPv4.
func MakeKey(ap netip.AddrPort, proto uint8) Key {
	w0, w1, family := addrWords(ap.Addr())
	return Key{w0, w1, uint64(rawPort(ap.Port())) | uint64(proto)<<16 | uint64(family)<<24}
}

// DestinationKey is the key of a tuple's destination. w is the tuple as for [Hash].
func DestinationKey(w *[5]uint64) Key {
	w2 := w[4] >> 16 & 0xffff // destination port
	w2 |= w[4] >> 32 << 16    // protocol and family
	if uint8(w[4]>>40) == 4 {
		return Key{W0: w[0] >> 32, W2: w2}
	}
	return Key{W0: w[2], W1: w[3], W2: w2}
}

// SourceKey is the key of packets back to a tuple's source.
func SourceKey(w *[5]uint64) Key {
	w2 := w[4]&0xffff | w[4]>>32<<16
	if uint8(w[4]>>40) == 4 {
		return Key{W0: w[0] & 0xffffffff, W2: w2}
	}
	return Key{W0: w[0], W1: w[1], W2: w2}
}

// rawPort is the little-endian load of the port's two packet bytes.
func rawPort(p uint16) uint16 { return bits.ReverseBytes16(p) }

// addrWords are the little-endian loads of an address's packet bytes.
func addrWords(a netip.Addr) (w0, w1 uint64, family uint8) {
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		return uint64(binary.LittleEndian.Uint32(b[:])), 0, 4
	}
	b := a.As16()
	return binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:]), 6
}

// The seeds are the first 512 bits of pi's fraction: fixed, since every node must choose
// alike. They are not secret: a client that picks the source port picks the endpoint, as
// with any consistent hash.
const (
	seed0 = 0x243f6a8885a308d3
	seed1 = 0x13198a2e03707344
	seed2 = 0xa4093822299f31d0
	seed3 = 0x082efa98ec4e6c89
	seed4 = 0x452821e638d01377
	seed5 = 0xbe5466cf34e90c6c
	seed6 = 0xc0ac29b7c97c50dd
	seed7 = 0x3f84d5b5b5470917
)

// mix is a round: a 64x64->128 bit multiplication folded onto itself.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// Hash is the hash of a tuple for [PoolEntry.Pick], the same on every node
// and in every version of Weir with the same Maglev tables. w is
// the tuple as conntrack.Key has it: source and destination address, ports,
// protocol and family in little-endian loads of the packet's bytes.
//
// The last round is there for tuples that differ in the ports only: after a single
// multiplication consecutive ports would make an arithmetic progression.
func Hash(w *[5]uint64) uint64 {
	a := mix(w[0]^seed0, w[1]^seed1)
	b := mix(w[2]^seed2, w[3]^seed3)
	return mix(mix(a^w[4]^seed4, b^seed5)^seed6, seed7)
}

// HashClient is the hash of a tuple's source address alone, for session affinity.
func HashClient(w *[5]uint64) uint64 {
	w0, w1 := clientWords(w)
	return mix(mix(w0^seed0, w1^seed1)^seed6, seed7)
}

// clientWords are the tuple's source address.
func clientWords(w *[5]uint64) (w0, w1 uint64) {
	const family6 = 6
	if uint8(w[4]>>40) == family6 {
		return w[0], w[1]
	}
	return w[0] & 0xffffffff, 0
}

// hashText is FNV-1a (draft-eastlake-fnv), mixed.
func hashText(text string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 0x100000001b3
	}
	return mix(h^seed0, seed5)
}

// hash places a frontend in the trie.
func (k *Key) hash() uint64 {
	return mix(mix(k.W0^seed2, k.W1^seed3)^k.W2, seed4)
}

// endpointHash is the pair of numbers from which an endpoint's Maglev permutation follows.
func endpointHash(e *EndpointEntry) (h1, h2 uint64) {
	a := mix(e.W0^seed0, e.W1^seed3)
	b := uint64(e.Port) | uint64(e.Family)<<16
	return mix(mix(a^b^seed4, seed1)^seed6, seed2), mix(mix(a^b^seed5, seed2)^seed7, seed1)
}
