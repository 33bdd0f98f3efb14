package header

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// piece cuts a fragment out of an unfragmented IPv4 or IPv6 frame: the bytes
// offset to offset+n of what follows the IP header; n < 0: to the end.
func piece(f []byte, offset, n int, id uint32) []byte {
	v6 := f[12] == 0x86
	ihl := IPv4Len
	if v6 {
		ihl = IPv6Len
	}
	payload := f[EthernetLen+ihl:][offset:]
	more := n >= 0 && n < len(payload)
	if more {
		payload = payload[:n]
	}
	out := append(f[:EthernetLen+ihl:EthernetLen+ihl], payload...)
	if v6 {
		return chain(out, []uint8{protoFragment}, fragmentHeader(offset, more, id))
	}
	w := uint16(offset / 8)
	if more {
		w |= 0x2000
	}
	ip := out[EthernetLen:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[4:], uint16(id))
	binary.BigEndian.PutUint16(ip[6:], w)
	ip[10], ip[11] = 0, 0
	binary.LittleEndian.PutUint16(ip[10:], Checksum(0, ip[:IPv4Len]))
	return out
}

func TestFragments(t *testing.T) {
	tests := []struct {
		name      string
		proto     uint8
		offset, n int
		want      Problem
	}{
		{"first of UDP", ProtoUDP, 0, 800, IsFragment},
		{"first of UDP with its header only", ProtoUDP, 0, 8, IsFragment},
		{"second of UDP", ProtoUDP, 8, 800, IsFragment},
		{"last of UDP", ProtoUDP, 800, -1, IsFragment},
		{"first of TCP", ProtoTCP, 0, 24, IsFragment},
		{"TCP header cut", ProtoTCP, 0, 16, TinyFragment},
		{"TCP header begun", ProtoTCP, 0, 8, TinyFragment},
		{"TCP flags in a later fragment", ProtoTCP, 8, 800, TinyFragment},
		{"TCP urgent pointer in a later fragment", ProtoTCP, 16, 800, TinyFragment},
		{"behind the TCP header", ProtoTCP, 24, 800, IsFragment},
		{"not of eight bytes", ProtoUDP, 0, 804, BadFragment},
		{"later and not of eight bytes", ProtoUDP, 800, 7, BadFragment},
		{"empty", ProtoUDP, 800, 0, BadFragment},
	}
	for _, tt := range tests {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/v6=%v", tt.name, v6), func(t *testing.T) {
				const id = 0xbeef
				f := piece(spec{v6: v6, proto: tt.proto, payload: 2000, flags: ACK}.build(t), tt.offset, tt.n, id)
				var p Packet
				if got := Parse(f, len(f), &p); got != tt.want {
					t.Fatalf("got %d, want %d", got, tt.want)
				}
				if tt.want != IsFragment {
					return
				}
				g := p.Fragment(f)
				if g.ID != id || g.Offset != tt.offset || g.More != (tt.n >= 0) || tt.n >= 0 && g.Len != tt.n {
					t.Errorf("%+v", g)
				}
				p.SetID(f, 0x1234)
				if g = p.Fragment(f); g.ID != 0x1234 || Parse(f, len(f), &p) != IsFragment {
					t.Errorf("after a change of identification: %+v", g)
				}
				if tt.offset == 0 && p.Proto != tt.proto {
					t.Errorf("protocol %d", p.Proto)
				}
			})
		}
	}
}

// A datagram cannot be longer than what a packet can say of its length.
func TestNoFragmentEndsBeyondTheLongestDatagram(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		whole := spec{v6: v6, proto: ProtoUDP, payload: 64}.build(t)
		longest := 0xffff
		if !v6 {
			longest -= IPv4Len
		}
		for _, tt := range []struct {
			offset, n int
			want      Problem
		}{{65504, 8, IsFragment}, {65504, longest - 65504, IsFragment}, {65504, longest - 65504 + 1, BadFragment}, {65528, 8, BadFragment}} {
			f := piece(whole[:len(whole)-64+tt.n], 8, -1, 1)
			if v6 {
				binary.BigEndian.PutUint16(f[EthernetLen+IPv6Len+2:], uint16(tt.offset))
			} else {
				ip := f[EthernetLen:]
				binary.BigEndian.PutUint16(ip[6:], uint16(tt.offset/8))
				ip[10], ip[11] = 0, 0
				binary.LittleEndian.PutUint16(ip[10:], Checksum(0, ip[:IPv4Len]))
			}
			var p Packet
			if got := Parse(f, len(f), &p); got != tt.want {
				t.Errorf("v6=%v, %d bytes at %d: got %d, want %d", v6, tt.n, tt.offset, got, tt.want)
			}
		}
	}
}
