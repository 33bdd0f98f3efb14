package worker

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// shot is a packet that the fuzz target makes.
type shot struct {
	src, dst  netip.AddrPort
	proto     uint8
	ttl, mark uint8 // the mark is DSCP and ECN: whoever forwards keeps it
	flags     uint8
	seq, ack  uint32
	options   uint8 // of TCP: 1 segment size, 2 timestamps
	body      []byte
	extra     uint8 // which IPv4 options or IPv6 extension headers
	df        bool
	sum       uint8 // 0 right, 1 partial, 2 none (UDP), 3 wrong
}

// ip builds the packet.
func (s *shot) ip() []byte {
	l4 := s.transport()
	var b []byte
	if s.src.Addr().Is4() {
		b = header4(s, len(l4))
	} else {
		b = header6(s, len(l4))
	}
	b = append(b, l4...)
	v, err := viewIP(seal4(b))
	if err != nil {
		panic(err)
	}
	v.seal()
	if at := v.sumAt(); at >= 0 {
		field := v.payload()[at : at+2]
		switch {
		case s.sum == 1 && (s.proto == 6 || s.proto == 17):
			binary.BigEndian.PutUint16(field, onesSum(v.pseudo(len(v.payload()))))
		case s.sum == 2 && s.proto == 17:
			field[0], field[1] = 0, 0
		case s.sum == 3:
			field[1] ^= 0x10
		}
	}
	return b
}

// seal4 makes an IPv4 header's checksum right.
func seal4(b []byte) []byte {
	if b[0]>>4 == 4 {
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], ^onesSum(b[:b[0]&15*4]))
	}
	return b
}

func (s *shot) transport() []byte {
	b := binary.BigEndian.AppendUint16(nil, s.src.Port())
	b = binary.BigEndian.AppendUint16(b, s.dst.Port())
	switch s.proto {
	case 6:
		b = binary.BigEndian.AppendUint32(b, s.seq)
		b = binary.BigEndian.AppendUint32(b, s.ack)
		b = append(b, 0x50, s.flags, 2, 0, 0, 0, 0, 0)
		if s.options&1 != 0 {
			b = append(b, 2, 4, 5, 0xb4)
		}
		if s.options&2 != 0 {
			b = append(b, 1, 1, 8, 10, 0, 0, 1, byte(s.seq), 0, 0, 0, 9)
		}
		b[12] = byte(len(b) / 4 << 4)
	case 17:
		b = binary.BigEndian.AppendUint16(b, uint16(8+len(s.body)))
		b = append(b, 0, 0)
	case 132:
		b = append(binary.BigEndian.AppendUint32(b, s.ack), 0, 0, 0, 0)
		b = append(b, s.flags%16, 0, 0, 20) // a chunk; 1: INIT
	default:
		b = nil
	}
	return append(b, s.body...)
}

func header4(s *shot, n int) []byte {
	b := make([]byte, 20)
	switch s.extra % 5 {
	case 1:
		b = append(b, 148, 4, 0, 0) // router alert
	case 2:
		b = append(b, 1, 7, 7, 4, 0, 0, 0, 0) // record route
	case 3:
		b = append(b, 131, 7, 4, 0, 0, 0, 0, 0) // loose source route
	}
	b[0], b[1] = 0x40|byte(len(b)/4), s.mark
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+n))
	if s.df {
		b[6] = 0x40
	}
	b[8], b[9] = s.ttl, s.proto
	copy(b[12:], s.src.Addr().AsSlice())
	copy(b[16:], s.dst.Addr().AsSlice())
	return b
}

func header6(s *shot, n int) []byte {
	kinds := [][]byte{nil, {0}, {60}, {0, 60}, {43}, {44}, {60, 44}, {43, 60, 44}}[s.extra%8]
	b := make([]byte, 40)
	binary.BigEndian.PutUint32(b, 6<<28|uint32(s.mark)<<20|0x12345)
	binary.BigEndian.PutUint16(b[4:], uint16(8*len(kinds)+n))
	b[6], b[7] = append(slices.Clone(kinds), s.proto)[0], s.ttl
	copy(b[8:], s.src.Addr().AsSlice())
	copy(b[24:], s.dst.Addr().AsSlice())
	for i, kind := range kinds {
		h := []byte{append(kinds[i+1:len(kinds):len(kinds)], s.proto)[0], 0, 1, 4, 0, 0, 0, 0}
		switch kind {
		case 43:
			h[2], h[3] = 2, 0
		case 44:
			h[2], h[3] = 0, 0 // atomic
		}
		b = append(b, h...)
	}
	return b
}

// fragmentsOf cuts a packet at offsets of its payload, multiples of 8: what lies
// behind the IP header and its options.
func fragmentsOf(ip []byte, id uint32, offsets ...int) [][]byte {
	head := 40
	if ip[0]>>4 == 4 {
		head = int(ip[0]&15) * 4
	}
	var out [][]byte
	for n, from := range offsets {
		to, more := len(ip)-head, n+1 < len(offsets)
		if more {
			to = offsets[n+1]
		}
		if to > len(ip)-head || from >= to {
			break
		}
		out = append(out, oneFragment(ip[:head], ip[head+from:head+to], id, from, more))
	}
	return out
}

func oneFragment(head, data []byte, id uint32, off int, more bool) []byte {
	b := slices.Clone(head)
	w := uint16(off)
	if b[0]>>4 == 4 {
		w /= 8
		if more {
			w |= 0x2000
		}
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)+len(data)))
		binary.BigEndian.PutUint16(b[4:], uint16(id))
		binary.BigEndian.PutUint16(b[6:], w)
		return append(seal4(b), data...)
	}
	if more {
		w |= 1
	}
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(data)))
	b = append(b, b[6], 0, byte(w>>8), byte(w))
	b = binary.BigEndian.AppendUint32(b, id)
	b[6] = 44
	return append(b, data...)
}

// icmpErrorAbout is an ICMP error about a packet, of which n bytes are quoted.
func icmpErrorAbout(from netip.Addr, about []byte, n int, kind uint8, mtu uint16, mark uint8) []byte {
	v6 := about[0]>>4 == 6
	to, proto := netip.AddrFrom4([4]byte(about[12:])), uint8(1)
	head := [][]byte{{3, 3}, {3, 4}, {11, 0}, {12, 0}, {5, 1}}[kind%5]
	if v6 {
		to, proto = netip.AddrFrom16([16]byte(about[8:])), 58
		head = [][]byte{{1, 4}, {2, 0}, {3, 0}, {4, 1}, {137, 0}}[kind%5]
	}
	about = about[:min(n, len(about))]
	body := append(slices.Clone(head), 0, 0, 0, 0, byte(mtu>>8), byte(mtu))
	s := shot{src: ap(from, 0), dst: ap(to, 0), proto: proto, ttl: 50, mark: mark, body: append(body, about...)}
	return s.ip()
}

// framed puts a packet into a frame, with tags and padding.
func framed(dst, src [6]byte, tags uint8, ip []byte, padding int) []byte {
	f := append(dst[:], src[:]...)
	if tags == 2 {
		f = append(f, 0x88, 0xa8, 0, 5)
	}
	if tags > 0 {
		f = append(f, 0x81, 0, 0x20, 7)
	}
	if ip[0]>>4 == 6 {
		f = append(f, 0x86, 0xdd)
	} else {
		f = append(f, 8, 0)
	}
	return append(append(f, ip...), make([]byte, padding)...)
}
