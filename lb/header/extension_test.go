package header

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
)

// chain puts extension headers between the IPv6 header of a frame and its
// transport header: kinds[i] is the type of headers[i], whose own next header
// is filled in.
func chain(f []byte, kinds []uint8, headers ...[]byte) []byte {
	out := slices.Clone(f[:EthernetLen+IPv6Len])
	last := out[20]
	out[20] = append(slices.Clone(kinds), last)[0]
	for i, h := range headers {
		h = slices.Clone(h)
		h[0] = append(slices.Clone(kinds[i+1:]), last)[0]
		out = append(out, h...)
	}
	out = append(out, f[EthernetLen+IPv6Len:]...)
	binary.BigEndian.PutUint16(out[18:], uint16(len(out)-EthernetLen-IPv6Len))
	return out
}

// options is a hop-by-hop or destination options header of n times 8 bytes,
// all padding.
func options(n int) []byte {
	h := make([]byte, 8*n)
	h[1], h[2], h[3] = uint8(n-1), 1, uint8(8*n-4)
	return h
}

func routing(kind, left uint8) []byte {
	h := make([]byte, 24)
	h[1], h[2], h[3] = 2, kind, left
	return h
}

func fragmentHeader(offset int, more bool, id uint32) []byte {
	h := make([]byte, 8)
	w := uint16(offset)
	if more {
		w |= 1
	}
	binary.BigEndian.PutUint16(h[2:], w)
	binary.BigEndian.PutUint32(h[4:], id)
	return h
}

func TestTransportIsFoundBehindExtensionHeaders(t *testing.T) {
	const hop, dst, rt, frag = protoHopByHop, protoDestOptions, protoRouting, protoFragment
	six := [][]byte{options(1), options(1), options(1), options(1), options(1), options(1)}
	tests := []struct {
		name    string
		kinds   []uint8
		headers [][]byte
		want    Problem
	}{
		{"hop-by-hop", []uint8{hop}, [][]byte{options(1)}, OK},
		{"destination options of 120 bytes", []uint8{dst}, [][]byte{options(15)}, OK},
		{"both", []uint8{hop, dst}, [][]byte{options(1), options(2)}, OK},
		{"six", []uint8{hop, dst, dst, dst, dst, dst}, six, OK},
		{"seven", []uint8{hop, dst, dst, dst, dst, dst, dst}, append(six, options(1)), BadExtension},
		{"too long together", []uint8{dst, dst}, [][]byte{options(15), options(2)}, BadExtension},
		{"hop-by-hop that is not first", []uint8{dst, hop}, [][]byte{options(1), options(1)}, BadExtension},
		{"hop-by-hop twice", []uint8{hop, hop}, [][]byte{options(1), options(1)}, BadExtension},
		{"a routing header of type 0", []uint8{rt}, [][]byte{routing(0, 0)}, SourceRouted},
		{"a routing header at its end", []uint8{rt}, [][]byte{routing(2, 0)}, OK},
		{"a routing header on its way", []uint8{hop, rt}, [][]byte{options(1), routing(4, 1)}, SourceRouted},
		{"an atomic fragment", []uint8{frag}, [][]byte{fragmentHeader(0, false, 7)}, OK},
		{"two fragment headers", []uint8{frag, frag}, [][]byte{fragmentHeader(0, true, 7), fragmentHeader(0, true, 7)}, BadExtension},
		{"first fragment behind options", []uint8{hop, frag, dst}, [][]byte{options(1), fragmentHeader(0, true, 7), options(1)}, IsFragment},
		{"later fragment behind options", []uint8{hop, frag}, [][]byte{options(1), fragmentHeader(64, true, 7)}, IsFragment},
		{"authentication", []uint8{dst, 51}, [][]byte{options(1), options(2)}, NotTransport},
		{"no next header", []uint8{dst, 59}, [][]byte{options(1), options(1)}, NotTransport},
	}
	for _, tt := range tests {
		for _, proto := range []uint8{ProtoTCP, ProtoUDP} {
			t.Run(fmt.Sprintf("%s/proto=%d", tt.name, proto), func(t *testing.T) {
				plain := spec{v6: true, proto: proto, payload: 40, flags: SYN}.build(t)
				f := chain(plain, tt.kinds, tt.headers...)
				if tt.want != OK && slices.Contains(tt.kinds, frag) { // the pieces but the last are of eight bytes
					f = f[:len(f)-(len(f)-EthernetLen-IPv6Len)%8]
					binary.BigEndian.PutUint16(f[18:], uint16(len(f)-EthernetLen-IPv6Len))
				}
				var p Packet
				if got := Parse(f, len(f), &p); got != tt.want {
					t.Fatalf("got %d, want %d", got, tt.want)
				}
				if tt.want != OK {
					return
				}
				want := mustParse(t, plain)
				want.L4 += uint8(len(f) - len(plain))
				want.Len += uint16(len(f) - len(plain))
				if p != want {
					t.Errorf("%+v, want %+v", p, want)
				}
			})
		}
	}
}

func TestPartialChecksumBehindExtensionHeaders(t *testing.T) {
	f := chain(spec{v6: true, proto: ProtoUDP, payload: 40}.build(t), []uint8{protoHopByHop}, options(1))
	p := mustParse(t, f)
	binary.LittleEndian.PutUint16(f[int(p.L4)+6:], Fold(PseudoSum6(f[EthernetLen:], ProtoUDP, 48)))
	if p = mustParse(t, f); !p.Partial {
		t.Error("not seen")
	}
}

func TestIPv4Options(t *testing.T) {
	tests := []struct {
		name string
		o    []byte
		want Problem
	}{
		{"router alert", []byte{148, 4, 0, 0}, OK},
		{"record route between no-operations", []byte{1, 7, 7, 4, 0, 0, 0, 0, 1, 1, 1, 1}, OK},
		{"nothing counts after the end", []byte{0, 131, 131, 131}, OK},
		{"loose source route", []byte{131, 7, 4, 10, 0, 0, 1, 0}, SourceRouted},
		{"strict source route behind another", []byte{148, 4, 0, 0, 137, 7, 4, 10, 0, 0, 1, 0}, SourceRouted},
		{"length of 1", []byte{148, 1, 0, 0}, BadIPHeader},
		{"longer than the header", []byte{148, 5, 0, 0}, BadIPHeader},
		{"no room for a length", []byte{1, 1, 1, 148}, BadIPHeader},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			plain := spec{proto: ProtoTCP, flags: SYN, payload: 5}.build(t)
			f := withOptions(plain, tt.o)
			var p Packet
			if got := Parse(f, len(f), &p); got != tt.want {
				t.Fatalf("got %d, want %d", got, tt.want)
			}
			if tt.want == OK && int(p.L4) != EthernetLen+IPv4Len+len(tt.o) {
				t.Errorf("transport header at %d", p.L4)
			}
		})
	}
}

// withOptions puts options into an IPv4 header.
func withOptions(f, o []byte) []byte {
	f = slices.Insert(slices.Clone(f), EthernetLen+IPv4Len, o...)
	ip := f[EthernetLen:]
	ip[0] += uint8(len(o) / 4)
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	ip[10], ip[11] = 0, 0
	binary.LittleEndian.PutUint16(ip[10:], Checksum(0, ip[:IPv4Len+len(o)]))
	return f
}

// model6 is parseExtensions, written again to be obvious: payload is what
// follows an IPv6 header, and the result the problem, the transport protocol
// and where its header begins.
func model6(kind uint8, payload []byte) (problem Problem, proto uint8, at int) {
	var seen []uint8
	inFragment := false
	short := func() Problem {
		if inFragment {
			return TinyFragment
		}
		return BadExtension
	}
	for {
		rest := payload[at:]
		if !slices.Contains([]uint8{0, 43, 44, 60}, kind) {
			return model6Transport(kind, rest, inFragment), kind, at
		}
		if len(seen) == 6 || kind == 0 && len(seen) > 0 || kind == 44 && inFragment {
			return BadExtension, 0, 0
		}
		seen = append(seen, kind)
		if len(rest) < 8 {
			return short(), 0, 0
		}
		size := 8 * (1 + int(rest[1]))
		if kind == 43 && (rest[2] == 0 || rest[3] > 0) {
			return SourceRouted, 0, 0
		}
		if kind == 44 {
			size = 8
			offset, more := int(rest[2])<<8+int(rest[3])&0xf8, rest[3]&1 == 1
			piece := rest[8:]
			inFragment = more || offset > 0
			if inFragment && (len(piece) == 0 || more && len(piece)%8 > 0 || at+offset+len(piece) > 65535) {
				return BadFragment, 0, 0
			}
			if offset > 0 {
				if rest[0] == ProtoTCP && offset < 20 || rest[0] == ProtoSCTP && offset < 16 {
					return TinyFragment, 0, 0
				}
				return IsFragment, rest[0], at + 8
			}
		}
		if at+size > 128 {
			return BadExtension, 0, 0
		}
		if size > len(rest) {
			return short(), 0, 0
		}
		kind, at = rest[0], at+size
	}
}

func model6Transport(kind uint8, l4 []byte, inFragment bool) Problem {
	cut, whole := BadTransport, OK
	if inFragment {
		cut, whole = TinyFragment, IsFragment
	}
	switch {
	case kind == ProtoTCP && len(l4) < 20, kind == ProtoUDP && len(l4) < 8, kind == ProtoSCTP && len(l4) < 16:
		return cut
	case kind == ProtoSCTP:
		if n := int(binary.BigEndian.Uint16(l4[14:])); n < 4 || !inFragment && 12+n > len(l4) {
			return BadTransport
		}
	case kind == ProtoTCP && l4[12]>>4 < 5:
		return BadTransport
	case kind == ProtoTCP && int(l4[12]>>4)*4 > len(l4):
		return cut
	case kind == ProtoUDP && inFragment && int(binary.BigEndian.Uint16(l4[4:])) < len(l4):
		return BadTransport
	case kind == ProtoUDP && !inFragment:
		if n := int(binary.BigEndian.Uint16(l4[4:])); n < 8 || n > len(l4) {
			return BadTransport
		}
	case kind != ProtoTCP && kind != ProtoUDP && !inFragment:
		return NotTransport
	}
	return whole
}

func FuzzExtensions(f *testing.F) {
	udp := spec{v6: true, proto: ProtoUDP, payload: 16}.build(f)
	for _, s := range [][]byte{
		udp,
		chain(udp, []uint8{0, 60}, options(1), options(2)),
		chain(udp, []uint8{43}, routing(2, 0)),
		chain(udp, []uint8{44}, fragmentHeader(0, false, 1)),
		chain(udp, []uint8{44, 60}, fragmentHeader(0, true, 1), options(1)),
		chain(udp, []uint8{60, 44}, options(1), fragmentHeader(1400, false, 1)),
		chain(spec{v6: true, proto: ProtoTCP, flags: SYN}.build(f), []uint8{44}, fragmentHeader(8, true, 1)),
	} {
		f.Add(s[20], s[EthernetLen+IPv6Len:])
	}
	f.Fuzz(func(t *testing.T, kind uint8, payload []byte) {
		if len(payload) > 0xffff-IPv6Len {
			return
		}
		frame := append(udp[:EthernetLen+IPv6Len:EthernetLen+IPv6Len], payload...)
		frame[20] = kind
		binary.BigEndian.PutUint16(frame[18:], uint16(len(payload)))
		var p Packet
		got := Parse(frame, len(frame), &p)
		want, proto, at := model6(kind, payload)
		if got != want {
			t.Fatalf("got %d, the model says %d", got, want)
		}
		if got != OK && got != IsFragment && got != NotTransport {
			return
		}
		if p.Proto != proto || int(p.L4) != EthernetLen+IPv6Len+at || (p.Frag != 0) != (got == IsFragment) && got != NotTransport {
			t.Fatalf("%+v, the model says protocol %d at %d", p, proto, at)
		}
		if p.Frag != 0 {
			checkFragment(t, frame, &p)
		}
	})
}

// checkFragment holds what is read of a fragment, and a new identification, to
// the frame's bytes.
func checkFragment(t *testing.T, frame []byte, p *Packet) {
	f := p.Fragment(frame)
	if f.Len < 1 || f.Offset%8 != 0 || f.More && f.Len%8 != 0 || int(p.Frag)+8+f.Len != len(frame) {
		t.Fatalf("%+v in a frame of %d bytes, %+v", f, len(frame), p)
	}
	before := slices.Clone(frame)
	p.SetID(frame, ^f.ID)
	if g := p.Fragment(frame); g.ID != ^f.ID {
		t.Fatalf("identification %#x, want %#x", g.ID, ^f.ID)
	}
	p.SetID(frame, f.ID)
	if !slices.Equal(frame, before) {
		t.Fatal("more than the identification has changed")
	}
}
