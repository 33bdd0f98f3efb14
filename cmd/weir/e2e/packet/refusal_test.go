package packet

import (
	"bytes"
	"encoding/binary"
)

// refusal is an ICMP error in the terms of both families (RFC 792, RFC 4443).
type refusal struct{ type4, code4, type6, code6 uint8 }

var (
	timeExceeded    = refusal{11, 0, 3, 0}
	portUnreachable = refusal{3, 3, 1, 4}
	hostUnreachable = refusal{3, 1, 1, 3}
	tooBig          = refusal{3, 4, 2, 0}
)

// Of what an ICMP error quotes: as much as keeps it within 576 bytes
// (RFC 1812 section 4.3.2.3) or 1280 (RFC 4443 section 2.4).
const (
	quoted4 = 576 - 20 - 8
	quoted6 = 1280 - 40 - 8
)

// refusedBy checks that the client gets Weir's ICMP error about its packet p,
// which quotes it as it was sent. rest are the header's last four bytes.
func (s *scene) refusedBy(p packet, why refusal, rest uint32) {
	s.Helper()
	s.arrives(s.lab.client, s.refusal(p, why, rest).bytes(s))
}

// refusal is Weir's ICMP error about the client's packet p.
func (s *scene) refusal(p packet, why refusal, rest uint32) packet {
	s.Helper()
	return s.about(s.back(p), p.bytes(s)[p.l3():], why, rest)
}

// kernelRefuses checks that the edge's kernel answers p, a datagram, with port unreachable,
// to the station that sent it. The kernel chooses some fields of the IP header.
func (s *scene) kernelRefuses(at *station, p packet) {
	s.Helper()
	got := s.frame(at)
	e := s.back(p)
	e.srcMAC, e.dstMAC = p.dstMAC, p.srcMAC
	want := s.about(e, p.bytes(s)[p.l3():], portUnreachable, 0).bytes(s)
	if l4 := 14 + s.l4At(); len(got) != len(want) || !bytes.Equal(got[l4:], want[l4:]) {
		s.Fatalf("at %s\n got %x\nwant %x", at.name, got, want)
	}
}

// about makes an ICMP error about the IP packet quoted out of the addresses
// and the IP header's fields of e.
func (s *scene) about(e packet, quoted []byte, why refusal, rest uint32) packet {
	body := []byte{why.type4, why.code4, 0, 0}
	e.proto = protoICMP
	most := quoted4
	if s.six {
		body = []byte{why.type6, why.code6, 0, 0}
		e.proto, most = protoICMPv6, quoted6
	}
	body = append(binary.BigEndian.AppendUint32(body, rest), quoted[:min(len(quoted), most)]...)
	e.l4 = body
	binary.BigEndian.PutUint16(body[2:], e.icmpChecksum(body))
	return e
}

// icmpChecksum is the checksum of an ICMP message in packet p, whose checksum
// field holds 0.
func (p packet) icmpChecksum(message []byte) uint16 {
	var sum []byte
	if p.six() { // ICMPv6 sums the pseudo header too (RFC 4443 section 2.3)
		sum = append(p.src.Addr().AsSlice(), p.dst.Addr().AsSlice()...)
		sum = binary.BigEndian.AppendUint32(sum, uint32(len(message)))
		sum = append(sum, 0, 0, 0, protoICMPv6)
	}
	return ^sum16(append(sum, message...))
}

// sum16 is the one's complement sum of b (RFC 1071).
func sum16(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
