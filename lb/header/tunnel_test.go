package header

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// encapsulated is a packet in the outer header of e.
func encapsulated(e Encap, inner []byte) []byte {
	b := append(make([]byte, e.Len()), inner...)
	e.Put(b, len(inner))
	return b
}

// tooBig is the error that a link of 1,350 bytes was too narrow for a packet.
func tooBig(t testing.TB, v6 bool, body []byte) []byte {
	if v6 {
		return icmpError(t, true, ICMPv6TooBig, 0, 1350, body)
	}
	return icmpError(t, false, ICMPUnreachable, ICMPCodeFragNeeded, 1350, body)
}

func everyEncap(test func(name string, e Encap, inner6 bool)) {
	for n := range 8 {
		e, inner6 := Encap{V6: n&1 != 0, GUE: n&2 != 0}, n&4 != 0
		test(fmt.Sprintf("outer6=%v/gue=%v/inner6=%v", e.V6, e.GUE, inner6), e, inner6)
	}
}

func TestInnerFindsThePacketInATunnel(t *testing.T) {
	everyEncap(func(name string, e Encap, inner6 bool) {
		inner := spec{v6: inner6, proto: ProtoTCP, payload: 1200}.build(t)[EthernetLen:]
		whole := encapsulated(e, inner)
		ports := e.Len() + IPv4Len + 4
		if inner6 {
			ports = e.Len() + IPv6Len + 4
		}
		for n := e.Len() - 4; n <= ports; n++ {
			f := tooBig(t, e.V6, whole[:n])
			var p Packet
			var q, in Quote
			Parse(f, len(f), &p)
			ParseQuote(f, &p, &q)
			family, problem := q.Inner(f, &in)
			if (problem == OK) != (n == ports) {
				t.Errorf("%s: %d bytes of it: %v", name, n, problem)
			}
			if problem != OK {
				continue
			}
			if (family == 6) != inner6 || !bytes.Equal(f[in.L3:in.End], inner[:ports-e.Len()]) || in.PacketLen(f) != uint32(len(inner)) || in.Proto != ProtoTCP {
				t.Errorf("%s: family %d, %+v", name, family, in)
			}
			if mtu, ok := TooBigMTU(f, &p); !ok || mtu != 1350 {
				t.Errorf("%s: MTU %d, %v", name, mtu, ok)
			}
		}
	})
}

func TestInnerOfOtherPackets(t *testing.T) {
	inner := spec{proto: ProtoUDP, payload: 100}.build(t)[EthernetLen:]
	for _, tt := range []struct {
		name   string
		e      Encap
		change func(b []byte)
		want   Problem
	}{
		{"another protocol", Encap{}, func(b []byte) { b[9] = 47 }, NotTransport},
		{"another UDP port", Encap{GUE: true}, func(b []byte) { b[23]++ }, NotTransport},
		{"another GUE variant", Encap{GUE: true}, func(b []byte) { b[28] = 0x45 }, NotTransport},
		{"another protocol in GUE", Encap{GUE: true}, func(b []byte) { b[29] = 47 }, NotTransport},
		{"of the other family than the outer header says", Encap{}, func(b []byte) { b[9] = ProtoIPv6 }, BadTransport},
		{"no ports inside", Encap{}, func(b []byte) { b[29] = 47 }, NotTransport},
		{"a later fragment inside", Encap{}, func(b []byte) { b[27] = 1 }, IsFragment},
	} {
		whole := encapsulated(tt.e, inner)
		tt.change(whole)
		f := tooBig(t, false, whole)
		var p Packet
		var q, in Quote
		Parse(f, len(f), &p)
		ParseQuote(f, &p, &q)
		if _, got := q.Inner(f, &in); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestOtherErrorsTellNoMTU(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, kind := range [][2]uint8{{1, 4}, {3, 1}, {4, 4}, {11, 0}, {12, 4}} {
			f := icmpError(t, v6, kind[0], kind[1], 1350, make([]byte, 60))
			var p Packet
			Parse(f, len(f), &p)
			if _, ok := TooBigMTU(f, &p); ok {
				t.Errorf("v6=%v: type %d code %d", v6, kind[0], kind[1])
			}
		}
	}
}

// FuzzTunnelTooBig holds that what is made of an error about a tunnel packet is a
// right error, which quotes what that one did.
func FuzzTunnelTooBig(f *testing.F) {
	everyEncap(func(_ string, e Encap, inner6 bool) {
		inner := spec{v6: inner6, proto: ProtoUDP, payload: 1300}.build(f)[EthernetLen:]
		f.Add(tooBig(f, e.V6, encapsulated(e, inner)[:500]))
	})
	f.Fuzz(func(t *testing.T, frame []byte) {
		var p Packet
		var q, in Quote
		if len(frame) > 2048 || Parse(frame, len(frame), &p) != NotTransport || p.Proto != ProtoICMP && p.Proto != ProtoICMPv6 || ICMPMessage(frame, &p) != MessageError {
			return
		}
		if problem := ParseQuote(frame, &p, &q); problem != OK && problem != NotTransport {
			return
		}
		family, problem := q.Inner(frame, &in)
		if problem != OK || in.PacketLen(frame) <= 1280 {
			return
		}
		quoted := slices.Clone(frame[in.L3:in.End])
		if family == 4 && martian4(quoted) || family == 6 && martian6(quoted) {
			return // no flow has such addresses
		}
		frame = slices.Grow(frame, 2048)
		n := TunnelTooBig(frame[:cap(frame)], &p, &in, 1280)
		made := frame[:n]
		var r Packet
		if got := Parse(made, n, &r); got != NotTransport || r.Family != family {
			t.Fatalf("made %v of family %d: %x", got, r.Family, made)
		}
		limit := maxICMP4
		if family == 6 {
			limit = maxICMP6
		}
		if mtu, ok := TooBigMTU(made, &r); !ok || mtu != 1280 || int(r.Len) > limit {
			t.Fatalf("an error of %d bytes that tells %d", r.Len, mtu)
		}
		if body := made[r.L4+ICMPLen:]; !bytes.HasPrefix(quoted, body) || len(body) < min(len(quoted), 500) {
			t.Fatalf("quotes %x of %x", body, quoted)
		}
		if !sumsOfEcho(made, &r) {
			t.Fatal("the checksum is wrong")
		}
	})
}
