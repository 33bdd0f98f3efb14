package pcapfilter

import (
	"encoding/binary"
	"net/netip"
)

// Packet is what filters know of a frame.
type Packet struct {
	Src, Dst netip.Addr
	// SrcPort and DstPort are valid if Ports is true.
	SrcPort, DstPort uint16
	Len              int    // of the frame, in bytes
	EtherType        uint16 // behind the tags
	VLAN             uint16 // of the outer tag
	Tagged           bool
	Family           uint8 // 4 or 6; 0 if the frame is not IP
	Proto            uint8 // the transport protocol
	Ports            bool
	Flags            uint8 // of TCP
	HasFlags         bool
}

// EtherTypes (IANA ieee-802-numbers).
const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeVLAN = 0x8100
	typeQinQ = 0x88a8
	typeIPv6 = 0x86dd
)

// IP protocols and IPv6 extension headers (IANA protocol-numbers).
const (
	protoHopByHop = 0
	protoICMP     = 1
	protoTCP      = 6
	protoUDP      = 17
	protoRouting  = 43
	protoFragment = 44
	protoICMPv6   = 58
	protoOptions  = 60
	protoSCTP     = 132
)

// maxTags is the number of VLAN tags behind which a header is looked for.
const maxTags = 2

// Read sets p to a frame of size bytes, of which f has the first. Fields beyond the end of f
// stay unset.
func Read(f []byte, size int, p *Packet) {
	*p = Packet{Len: size}
	at := 12
	for tags := 0; len(f) >= at+4 && tags < maxTags; tags++ {
		if t := binary.BigEndian.Uint16(f[at:]); t != typeVLAN && t != typeQinQ {
			break
		}
		if !p.Tagged {
			p.Tagged, p.VLAN = true, binary.BigEndian.Uint16(f[at+2:])&0xfff
		}
		at += 4
	}
	if len(f) < at+2 {
		return
	}
	p.EtherType = binary.BigEndian.Uint16(f[at:])
	switch ip := f[at+2:]; p.EtherType {
	case typeIPv4:
		p.read4(ip)
	case typeIPv6:
		p.read6(ip)
	}
}

func (p *Packet) read4(ip []byte) {
	if len(ip) < 20 || ip[0]>>4 != 4 {
		return
	}
	p.Family, p.Proto = 4, ip[9]
	p.Src, p.Dst = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
	n := int(ip[0]&15) * 4
	if n >= 20 && n <= len(ip) && binary.BigEndian.Uint16(ip[6:])&0x1fff == 0 {
		p.readTransport(ip[n:])
	}
}

// maxExtensions bounds the headers between the IPv6 header and the transport.
const maxExtensions = 8

func (p *Packet) read6(ip []byte) {
	if len(ip) < 40 || ip[0]>>4 != 6 {
		return
	}
	p.Family, p.Proto = 6, ip[6]
	p.Src, p.Dst = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	rest := ip[40:]
	for range maxExtensions {
		n := 8
		switch p.Proto {
		case protoHopByHop, protoRouting, protoOptions:
			if len(rest) >= 8 {
				n = int(rest[1])*8 + 8
			}
		case protoFragment:
			if len(rest) >= 8 && binary.BigEndian.Uint16(rest[2:])&^7 != 0 {
				p.Proto = rest[0]
				return
			}
		default:
			p.readTransport(rest)
			return
		}
		if len(rest) < n {
			return
		}
		p.Proto, rest = rest[0], rest[n:]
	}
}

func (p *Packet) readTransport(l4 []byte) {
	switch p.Proto {
	case protoTCP, protoUDP, protoSCTP:
	default:
		return
	}
	if len(l4) < 4 {
		return
	}
	p.SrcPort, p.DstPort, p.Ports = binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:]), true
	if p.Proto == protoTCP && len(l4) >= 14 {
		p.Flags, p.HasFlags = l4[13], true
	}
}
