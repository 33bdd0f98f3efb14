package header

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// FuzzParse holds what Parse finds to the frame, read again by plain code and,
// where that understands the packet, by gopacket; and the refusals made of the
// frame to their checksums. more is how many bytes of the frame lie in other
// buffers; with mend the IPv4 header's checksum is put right, which a changed
// header would fail by.
func FuzzParse(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{ProtoTCP, ProtoUDP} {
			s := spec{v6: v6, proto: proto, flags: SYN, payload: 24}.build(f)
			f.Add(s, uint16(0), true)
			f.Add(s[:len(s)-9], uint16(9), true)
			f.Add(tagged(s, 7), uint16(0), true)
			f.Add(tagged(s, 7, 9), uint16(0), true)
			f.Add(piece(s, 0, 24, 5), uint16(0), true)
			f.Add(tagged(piece(s, 24, 16, 5), 3), uint16(0), true)
			if v6 {
				f.Add(chain(s, []uint8{0, 60}, options(1), options(2)), uint16(0), false)
				f.Add(tagged(chain(s, []uint8{43, 44}, routing(2, 0), fragmentHeader(0, false, 1)), 4), uint16(0), false)
			} else {
				f.Add(withOptions(s, []byte{148, 4, 0, 0}), uint16(0), true)
				f.Add(tagged(withOptions(s, []byte{1, 7, 7, 4, 0, 0, 0, 0}), 4), uint16(0), true)
			}
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte, more uint16, mend bool) {
		if len(frame) > 2048 {
			return
		}
		frame = bytes.Clone(frame)
		if l3 := beginningOfIP(frame); mend && l3+IPv4Len <= len(frame) {
			if ihl := int(frame[l3]&15) * 4; ihl >= IPv4Len && l3+ihl <= len(frame) && frame[l3]>>4 == 4 {
				frame[l3+10], frame[l3+11] = 0, 0
				binary.LittleEndian.PutUint16(frame[l3+10:], Checksum(0, frame[l3:l3+ihl]))
			}
		}
		total := len(frame) + int(more)
		var p Packet
		switch Parse(frame, total, &p) {
		case OK:
			agreesWithFrame(t, frame, total, &p)
			agreesWithGopacket(t, frame[:min(len(frame), int(p.L3)+int(p.Len))], &p)
			refusalsHold(t, frame, &p)
		case IsFragment:
			agreesWithFrame(t, frame, total, &p)
			if g := p.Fragment(frame); g.Len < 1 || g.Offset%8 != 0 || g.More && g.Len%8 != 0 || int(p.L3)+int(p.Len)-g.Len < int(p.Frag) {
				t.Fatalf("fragment %+v of %+v", g, p)
			}
		}
	})
}

// beginningOfIP is where the IP header is, behind at most two tags.
func beginningOfIP(frame []byte) int {
	l3 := 12
	for n := 0; n < 2 && l3+2 <= len(frame) && isTag(binary.BigEndian.Uint16(frame[l3:])); n++ {
		l3 += 4
	}
	return l3 + 2
}

// agreesWithFrame reads the frame's first headers once more.
func agreesWithFrame(t *testing.T, frame []byte, total int, p *Packet) {
	t.Helper()
	l3 := beginningOfIP(frame)
	ip := frame[l3:]
	family, size, header := ip[0]>>4, int(binary.BigEndian.Uint16(ip[2:])), int(ip[0]&15)*4
	if family == 6 {
		size, header = 40+int(binary.BigEndian.Uint16(ip[4:])), 40
	}
	if want := map[uint16]uint8{EtherTypeIPv4: 4, EtherTypeIPv6: 6}[binary.BigEndian.Uint16(frame[l3-2:])]; want != family {
		t.Fatalf("a packet of version %d as one of %d", family, want)
	}
	if int(p.L3) != l3 || p.Family != family || int(p.Len) != size || l3+size > total || int(p.L4) < l3+header || int(p.L4) > len(frame) {
		t.Fatalf("%+v of a frame of %d bytes, with an IP packet of %d at %d", p, total, size, l3)
	}
	if p.L4Len() < 0 || p.L4Len() > total-int(p.L4) {
		t.Fatalf("the payload reaches past the frame of %d bytes: %+v", total, p)
	}
}

// agreesWithGopacket compares addresses, ports and flags with what gopacket finds.
func agreesWithGopacket(t *testing.T, frame []byte, p *Packet) {
	t.Helper()
	pkt := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	network, transport := pkt.NetworkLayer(), pkt.TransportLayer()
	if network == nil || transport == nil {
		return // options, extensions or a cut packet that it does not take
	}
	src, dst := frame[p.L3+12:p.L3+16], frame[p.L3+16:p.L3+20]
	if p.Family == 6 {
		src, dst = frame[p.L3+8:p.L3+24], frame[p.L3+24:p.L3+40]
	}
	if a, b := network.NetworkFlow().Endpoints(); !bytes.Equal(a.Raw(), src) || !bytes.Equal(b.Raw(), dst) {
		t.Fatalf("addresses %v %v, want %x %x", a, b, src, dst)
	}
	if a, b := transport.TransportFlow().Endpoints(); !bytes.Equal(a.Raw(), frame[p.L4:p.L4+2]) || !bytes.Equal(b.Raw(), frame[p.L4+2:p.L4+4]) {
		t.Fatalf("ports %v %v, want %x", a, b, frame[p.L4:p.L4+4])
	}
	switch l := transport.(type) {
	case *layers.TCP:
		if p.Proto != ProtoTCP || l.SYN != (p.Flags&SYN != 0) || l.ACK != (p.Flags&ACK != 0) || l.FIN != (p.Flags&FIN != 0) || l.RST != (p.Flags&RST != 0) {
			t.Fatalf("%+v of %+v", p, l)
		}
	case *layers.UDP:
		if p.Proto != ProtoUDP || p.Flags != 0 {
			t.Fatalf("%+v of %+v", p, l)
		}
	}
}

// refusalsHold makes every refusal of the frame.
func refusalsHold(t *testing.T, frame []byte, p *Packet) {
	t.Helper()
	for e := PortUnreachable; e <= TooBig; e++ {
		q, buf := *p, make([]byte, 4096)
		n := copy(buf, frame)
		checksumsHold(t, untagged(buf[:Unreachable(buf, n, &q, e, 1280)], &q))
	}
	if p.Proto == ProtoTCP {
		q, buf := *p, make([]byte, 4096)
		copy(buf, frame)
		checksumsHold(t, untagged(buf[:Reset(buf, &q)], &q))
	}
}

// untagged is a frame without its tags.
func untagged(f []byte, p *Packet) []byte {
	return append(bytes.Clone(f[:12]), f[p.L3-2:]...)
}
