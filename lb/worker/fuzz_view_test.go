package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// view is a packet as the fuzz target reads it, by code of its own: nothing
// here is lb/header's.
type view struct {
	b          []byte // the IP packet, without padding
	v6         bool
	proto      uint8 // of what is behind options and extension headers
	l4         int   // where that begins
	ttl, tos   uint8
	src, dst   netip.Addr
	fragmented bool
	off        int
	more       bool
	id         uint32
	df         bool
}

var (
	errNotIP    = errors.New("no IP packet")
	errCut      = errors.New("lengths point out of the frame")
	errChecksum = errors.New("wrong IPv4 header checksum")
)

// viewFrame reads an Ethernet frame and says where its IP packet begins.
func viewFrame(f []byte) (view, int, error) {
	if len(f) < 14 {
		return view{}, 0, errNotIP
	}
	l3 := 14
	for l3 < 22 && len(f) >= l3+4 && (f[l3-2] == 0x81 && f[l3-1] == 0 || f[l3-2] == 0x88 && f[l3-1] == 0xa8) {
		l3 += 4
	}
	kind := binary.BigEndian.Uint16(f[l3-2:])
	v, err := viewIP(f[l3:])
	if err == nil && (kind != 0x0800 && !v.v6 || kind != 0x86dd && v.v6) {
		return view{}, l3, errNotIP
	}
	return v, l3, err
}

func viewIP(b []byte) (view, error) {
	if len(b) < 20 {
		return view{}, errNotIP
	}
	switch b[0] >> 4 {
	case 4:
		return view4(b)
	case 6:
		return view6(b)
	}
	return view{}, errNotIP
}

func view4(b []byte) (view, error) {
	ihl, n := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if ihl < 20 || n < ihl || n > len(b) {
		return view{}, errCut
	}
	if onesSum(b[:ihl]) != 0xffff {
		return view{}, errChecksum
	}
	w := binary.BigEndian.Uint16(b[6:])
	v := view{b: b[:n], proto: b[9], l4: ihl, ttl: b[8], tos: b[1], df: w&0x4000 != 0, off: int(w&0x1fff) * 8, more: w&0x2000 != 0,
		id: uint32(binary.BigEndian.Uint16(b[4:])), src: netip.AddrFrom4([4]byte(b[12:])), dst: netip.AddrFrom4([4]byte(b[16:]))}
	v.fragmented = v.more || v.off > 0
	return v, nil
}

func view6(b []byte) (view, error) {
	if len(b) < 40 || 40+int(binary.BigEndian.Uint16(b[4:])) > len(b) {
		return view{}, errCut
	}
	b = b[:40+int(binary.BigEndian.Uint16(b[4:]))]
	v := view{b: b, v6: true, proto: b[6], l4: 40, ttl: b[7], tos: b[0]<<4 | b[1]>>4, df: true,
		src: netip.AddrFrom16([16]byte(b[8:])), dst: netip.AddrFrom16([16]byte(b[24:]))}
	for v.off == 0 && (v.proto == 0 || v.proto == 43 || v.proto == 44 || v.proto == 60) && v.l4+8 <= len(b) {
		h := b[v.l4:]
		n := 8 + 8*int(h[1])
		if v.proto == 44 {
			w := binary.BigEndian.Uint16(h[2:])
			n, v.off, v.more, v.id = 8, int(w&^7), w&1 != 0, binary.BigEndian.Uint32(h[4:])
			v.fragmented = v.more || v.off > 0
		}
		if v.proto, v.l4 = h[0], v.l4+n; v.l4 > len(b) {
			return view{}, errCut
		}
	}
	return v, nil
}

// payload is what follows the IP header, its options and its extensions.
func (v *view) payload() []byte { return v.b[v.l4:] }

// first says whether the transport header is here.
func (v *view) first() bool { return v.off == 0 }

// ports are those of a TCP, UDP or SCTP packet, 0 of any other.
func (v *view) ports() (src, dst uint16) {
	if p := v.payload(); v.first() && len(p) >= 8 && (v.proto == 6 || v.proto == 17 || v.proto == 132) {
		return binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])
	}
	return 0, 0
}

// sumAt is where the transport checksum is, of those that are 16 bits; -1: none.
func (v *view) sumAt() int {
	at := map[uint8]int{6: 16, 17: 6, 1: 2, 58: 2}[v.proto]
	if at == 0 || !v.first() || len(v.payload()) < at+2 {
		return -1
	}
	return at
}

// sums says how it is with the transport checksum.
type sums uint8

const (
	sumNone    sums = iota // there is none, or it is not all here
	sumRight               //
	sumWrong               //
	sumPartial             // that of the pseudo header alone
)

func (s sums) String() string { return [...]string{"none", "right", "wrong", "partial"}[s] }

// checksum judges the transport checksum of a packet that is no fragment.
func (v *view) checksum() sums {
	l4, at := v.payload(), v.sumAt()
	if v.fragmented {
		return sumNone
	}
	if v.proto == 132 && len(l4) >= 12 {
		c := binary.LittleEndian.Uint32(l4[8:])
		crc := crc32.New(crc32.MakeTable(crc32.Castagnoli))
		crc.Write(l4[:8])
		crc.Write(make([]byte, 4))
		crc.Write(l4[12:])
		return sumIs(crc.Sum32() == c)
	}
	if at < 0 || v.proto == 1 && v.v6 || v.proto == 58 && !v.v6 {
		return sumNone
	}
	if v.proto == 1 {
		return sumIs(onesSum(l4) == 0xffff)
	}
	whole := true
	if v.proto == 17 {
		n := int(binary.BigEndian.Uint16(l4[4:]))
		if n < 8 || n > len(l4) || l4[6]|l4[7] == 0 {
			return sumNone
		}
		whole, l4 = n == len(l4), l4[:n]
	}
	pseudo := v.pseudo(len(l4))
	partial := whole && v.proto != 58 && binary.BigEndian.Uint16(l4[at:]) == onesSum(pseudo)
	if right := onesSum(append(pseudo, l4...)) == 0xffff; right || !partial {
		return sumIs(right) // of both it may be by chance
	}
	return sumPartial
}

// pseudo is the pseudo header of n bytes of transport.
func (v *view) pseudo(n int) []byte {
	out := append(v.src.AsSlice(), v.dst.AsSlice()...)
	return append(out, 0, 0, byte(n>>8), byte(n), 0, v.proto)
}

func sumIs(ok bool) sums {
	if ok {
		return sumRight
	}
	return sumWrong
}

// onesSum is the one's complement sum of RFC 1071, the slow way.
func onesSum(b []byte) uint16 {
	var s uint32
	for i, x := range b {
		if i%2 == 0 {
			s += uint32(x) << 8
		} else {
			s += uint32(x)
		}
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// complete does what a device does to a packet with a partial checksum.
func (v *view) complete() {
	l4, at := v.payload(), v.sumAt()
	c := ^onesSum(l4)
	if c == 0 && v.proto == 17 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(l4[at:], c)
}

// seal makes the checksums of a packet right.
func (v *view) seal() {
	if !v.v6 {
		v.b[10], v.b[11] = 0, 0
		binary.BigEndian.PutUint16(v.b[10:], ^onesSum(v.b[:v.b[0]&15*4]))
	}
	l4, at := v.payload(), v.sumAt()
	if v.proto == 132 && len(l4) >= 12 {
		clear(l4[8:12])
		binary.LittleEndian.PutUint32(l4[8:], crc32.Checksum(l4, crc32.MakeTable(crc32.Castagnoli)))
	}
	if at < 0 || v.fragmented {
		return
	}
	pseudo := v.pseudo(len(l4))
	if v.proto == 1 {
		pseudo = nil
	}
	l4[at], l4[at+1] = 0, 0
	c := ^onesSum(append(pseudo, l4...))
	if c == 0 && v.proto == 17 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(l4[at:], c)
}

func (v *view) String() string {
	s, d := v.ports()
	return fmt.Sprintf("%s:%d > %s:%d proto %d ttl %d mark %d len %d offset %d more %v: %x", v.src, s, v.dst, d, v.proto, v.ttl, v.tos, len(v.b), v.off, v.more, v.b)
}
