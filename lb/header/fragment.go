package header

import "encoding/binary"

// Fragment is the place of an IP fragment in the datagram.
type Fragment struct {
	ID     uint32 // 16 bits in IPv4
	Offset int    // of the fragment's first byte in the datagram's payload
	Len    int    // bytes of payload in the fragment
	More   bool   // it is not the last
	// longest is the greatest length of the datagram's payload.
	longest int
}

// Fragment reads the fragment that p is. Preconditions: p.Frag is not 0.
func (p *Packet) Fragment(frame []byte) Fragment {
	if p.Family == 6 {
		h := frame[p.Frag : p.Frag+fragmentLen]
		w := binary.BigEndian.Uint16(h[2:])
		start := int(p.Frag-p.L3) + fragmentLen
		return Fragment{
			ID: binary.BigEndian.Uint32(h[4:]), Offset: int(w &^ 7), More: w&1 != 0,
			Len: int(p.Len) - start, longest: 0xffff - (start - fragmentLen - IPv6Len),
		}
	}
	ip := frame[p.L3:]
	w := binary.BigEndian.Uint16(ip[6:])
	ihl := IPv4(ip).HeaderLen()
	return Fragment{
		ID: uint32(binary.BigEndian.Uint16(ip[4:])), Offset: int(w&0x1fff) * 8, More: w&0x2000 != 0,
		Len: int(p.Len) - ihl, longest: 0xffff - ihl,
	}
}

// SetID replaces the identification of a fragment. In IPv4 the header's
// checksum is updated.
func (p *Packet) SetID(frame []byte, id uint32) {
	if p.Family == 6 {
		binary.BigEndian.PutUint32(frame[p.Frag+4:], id)
		return
	}
	ip := frame[p.L3:]
	old := binary.LittleEndian.Uint16(ip[4:])
	binary.BigEndian.PutUint16(ip[4:], uint16(id))
	delta := uint64(^old) + uint64(binary.LittleEndian.Uint16(ip[4:]))
	binary.LittleEndian.PutUint16(ip[10:], Update(binary.LittleEndian.Uint16(ip[10:]), delta))
}

// setFragment reads the fragment header at an offset and notes in p.Frag that
// it is there, unless it is that of an atomic fragment, which is a packet like
// any other (RFC 6946).
func (p *Packet) setFragment(frame []byte, at int) Fragment {
	p.Frag = uint8(at)
	f := p.Fragment(frame)
	if f.Offset == 0 && !f.More {
		p.Frag = 0
	}
	return f
}

// parseFragment4 parses an IPv4 fragment behind the IP header.
func parseFragment4(frame []byte, p *Packet) Problem {
	p.Frag = p.L3
	f := p.Fragment(frame)
	if f.Offset > 0 {
		return p.laterFragment(f)
	}
	if problem := f.check(); problem != OK {
		return problem
	}
	return firstFragment(frame, p)
}

// check finds impossible fragments: empty, not of a multiple of eight bytes (RFC 791, RFC
// 8200 section 4.5), or with an end beyond the longest packet.
func (f *Fragment) check() Problem {
	if f.Len <= 0 || f.More && f.Len%8 != 0 || f.Offset+f.Len > f.longest {
		return BadFragment
	}
	return OK
}

// laterFragment checks a fragment that is not the first. A fragment that begins within the
// TCP header, or the first SCTP chunk's, would put unchecked flags there
// (RFC 1858, RFC 3128).
func (p *Packet) laterFragment(f Fragment) Problem {
	p.Partial, p.Flags = false, 0
	if problem := f.check(); problem != OK {
		return problem
	}
	if p.Proto == ProtoTCP && f.Offset < TCPLen || p.Proto == ProtoSCTP && f.Offset < SCTPLen+chunkLen {
		return TinyFragment
	}
	return IsFragment
}

// firstFragment parses the transport header of a first fragment, which must be
// all in it.
func firstFragment(frame []byte, p *Packet) Problem {
	l4, n := frame[p.L4:], p.L4Len()
	p.Partial, p.Flags = false, 0 // a stack completes the checksum before it cuts
	switch p.Proto {
	case ProtoTCP:
		if n < TCPLen || len(l4) < TCPLen {
			return TinyFragment
		}
		off := TCP(l4).DataOffset()
		if off < TCPLen {
			return BadTransport
		}
		if off > n || off > len(l4) {
			return TinyFragment
		}
		p.Flags = TCP(l4).Flags()
	case ProtoUDP:
		if n < UDPLen || len(l4) < UDPLen {
			return TinyFragment
		}
		if int(binary.BigEndian.Uint16(l4[4:])) < n {
			return BadTransport
		}
	case ProtoSCTP:
		if n < SCTPLen+chunkLen || len(l4) < SCTPLen+chunkLen {
			return TinyFragment
		}
		if problem := p.sctp(l4, n); problem != OK {
			return problem
		}
	}
	return IsFragment
}
