package header

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
)

// icmpError is an ICMP error, whatever its body, to who sent it.
func icmpError(t testing.TB, v6 bool, typ, code uint8, rest uint32, body []byte) []byte {
	t.Helper()
	f := spec{v6: v6, proto: ProtoUDP, payload: len(body)}.build(t)
	ip, at, proto := f[EthernetLen:], EthernetLen+IPv4Len, uint8(ProtoICMP)
	if v6 {
		at, proto = EthernetLen+IPv6Len, ProtoICMPv6
		ip[6] = proto
	} else {
		ip[9], ip[10], ip[11] = proto, 0, 0
		binary.LittleEndian.PutUint16(ip[10:], Checksum(0, ip[:IPv4Len]))
	}
	icmp := f[at:]
	clear(icmp[:ICMPLen])
	icmp[0], icmp[1] = typ, code
	binary.BigEndian.PutUint32(icmp[4:], rest)
	copy(icmp[ICMPLen:], body)
	binary.LittleEndian.PutUint16(icmp[2:], Checksum(icmpPseudo(f, v6), icmp))
	return f
}

func icmpPseudo(f []byte, v6 bool) uint64 {
	if !v6 {
		return 0
	}
	return PseudoSum6(f[EthernetLen:], ProtoICMPv6, len(f)-EthernetLen-IPv6Len)
}

// quotation is the packet that errors quote: of a spec, with its ends and ports
// swapped.
func quotation(t testing.TB, s spec) []byte {
	ip := s.build(t)[EthernetLen:]
	a, n, l4 := 12, 4, IPv4Len
	if s.v6 {
		a, n, l4 = 8, 16, IPv6Len
	}
	swap(ip[a:a+n], ip[a+n:a+2*n])
	swap(ip[l4:l4+2], ip[l4+2:l4+4])
	return ip
}

// translation is some other addresses and ports.
var translation = ErrorTranslation{
	Outer:  [4]uint64{0x0102030405060708, 0x1112131415161718, 0x2122232425262728, 0x3132333435363738},
	Quoted: [4]uint64{0x4142434445464748, 0x5152535455565758, 0x6162636465666768, 0x7172737475767778},
	Ports:  0x0102bbcc,
}

// sums says which checksums of an ICMP error hold; one that is not all there, or
// of a packet that is not all there, does not.
type sums struct{ outer, icmp, quotedIP, quotedL4 bool }

func sumsOf(f []byte, p *Packet, q *Quote) sums {
	end := int(p.L3) + int(p.Len)
	var pseudo uint64
	s := sums{outer: true}
	if p.Family == 4 {
		s.outer = Fold(Sum(0, f[p.L3:int(p.L3)+IPv4(f[p.L3:]).HeaderLen()])) == 0xffff
		s.quotedIP = Fold(Sum(0, f[q.L3:min(q.L4, q.End)])) == 0xffff
	} else {
		pseudo = PseudoSum6(f[p.L3:], ProtoICMPv6, p.L4Len())
	}
	s.icmp = Fold(Sum(pseudo, f[p.L4:end])) == 0xffff
	size := IPv4(f[q.L3:]).TotalLen() - (q.L4 - q.L3)
	sum := PseudoSum4
	if p.Family == 6 {
		size = IPv6Len + IPv6(f[q.L3:]).PayloadLen() - (q.L4 - q.L3)
		sum = PseudoSum6
	}
	least := UDPLen
	if q.Proto == ProtoTCP {
		least = TCPLen
	}
	if size >= least && q.L4+size <= q.End {
		l4 := f[q.L4 : q.L4+size]
		none := q.Proto == ProtoUDP && l4[6]|l4[7] == 0
		s.quotedL4 = none || Fold(Sum(sum(f[q.L3:], q.Proto, size), l4)) == 0xffff
	}
	return s
}

func TestTranslatedErrorsKeepTheirChecksums(t *testing.T) {
	nop := func(ip []byte) []byte { // an option in the quoted IPv4 header
		ip = slices.Insert(ip, IPv4Len, 1, 1, 1, 0)
		ip[0]++
		ip[3] += 4
		ip[10], ip[11] = 0, 0
		binary.LittleEndian.PutUint16(ip[10:], Checksum(0, ip[:IPv4Len+4]))
		return ip
	}
	extension := func(ip []byte) []byte { // an atomic fragment
		ip = slices.Insert(ip, IPv6Len, ip[6], 0, 0, 0, 0, 0, 0, 9)
		ip[6] = protoFragment
		ip[5] += 8
		return ip
	}
	all := sums{true, true, true, true}
	for _, tt := range []struct {
		name   string
		v6     bool
		s      spec
		change func(ip []byte) []byte
		want   sums
	}{
		{"TCP", false, spec{proto: ProtoTCP, payload: 40}, nil, all},
		{"UDP", false, spec{proto: ProtoUDP, payload: 41}, nil, all},
		{"options", false, spec{proto: ProtoTCP, payload: 40}, nop, all},
		{"UDP without a checksum", false, spec{proto: ProtoUDP, payload: 4}, func(ip []byte) []byte { ip[26], ip[27] = 0, 0; return ip }, all},
		{"wrong TCP checksum", false, spec{proto: ProtoTCP}, func(ip []byte) []byte { ip[36] ^= 0x40; return ip }, sums{true, true, true, false}},
		{"wrong IP checksum", false, spec{proto: ProtoTCP}, func(ip []byte) []byte { ip[8]--; return ip }, sums{true, true, false, true}},
		{"first fragment", false, spec{proto: ProtoUDP, payload: 64}, func(ip []byte) []byte { ip[6] = 0x20; return ip }, sums{true, true, false, true}},
		{"IPv6 TCP", true, spec{v6: true, proto: ProtoTCP, payload: 40}, nil, sums{outer: true, icmp: true, quotedL4: true}},
		{"IPv6 UDP", true, spec{v6: true, proto: ProtoUDP, payload: 41}, nil, sums{outer: true, icmp: true, quotedL4: true}},
		{"IPv6 atomic fragment", true, spec{v6: true, proto: ProtoUDP, payload: 41}, extension, sums{outer: true, icmp: true, quotedL4: true}},
		{"IPv6 wrong UDP checksum", true, spec{v6: true, proto: ProtoUDP}, func(ip []byte) []byte { ip[46] ^= 1; return ip }, sums{outer: true, icmp: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body := quotation(t, tt.s)
			if tt.change != nil {
				body = tt.change(body)
			}
			f := icmpError(t, tt.v6, 3, 0, 0, body)
			before := bytes.Clone(f)
			var p Packet
			var q Quote
			if got := Parse(f, len(f), &p); got != NotTransport {
				t.Fatalf("Parse = %v", got)
			}
			if m, got := ICMPMessage(f, &p), ParseQuote(f, &p, &q); m != MessageError || got != OK {
				t.Fatalf("message %v, quote %v", m, got)
			}
			TranslateError(f, &p, &q, &translation)
			if got := sumsOf(f, &p, &q); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
			// There and back again.
			back := ErrorTranslation{Ports: binary.LittleEndian.Uint32(before[q.L4:])}
			for i := range 4 {
				if tt.v6 {
					back.Outer[i] = binary.LittleEndian.Uint64(before[int(p.L3)+8+8*i:])
					back.Quoted[i] = binary.LittleEndian.Uint64(before[q.L3+8+8*i:])
				}
			}
			if !tt.v6 {
				back.Outer[0] = binary.LittleEndian.Uint64(before[p.L3+12:])
				back.Quoted[0] = binary.LittleEndian.Uint64(before[q.L3+12:])
			}
			TranslateError(f, &p, &q, &back)
			if tt.v6 {
				f[EthernetLen+7] += 2
			} else {
				f[EthernetLen+8] += 2
				copy(f[EthernetLen+10:], before[EthernetLen+10:EthernetLen+12])
			}
			if !bytes.Equal(f, before) {
				t.Errorf("translated back:\n got %x\nwant %x", f, before)
			}
		})
	}
}

// What follows the quoted packet by RFC 4884 is not its transport header, not
// even if the packet is so short that its checksum would be there.
func TestExtensionsOfAnErrorStay(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, minimal := range []bool{false, true} {
			body := quotation(t, spec{v6: v6, proto: ProtoTCP, payload: 100})
			rest, l4 := uint32(minExtended/4)<<16, IPv4Len
			if v6 {
				rest, l4 = uint32(minExtended/8)<<24, IPv6Len
			}
			if minimal {
				clear(body[l4+8:]) // padding
			}
			extension := []byte{0x20, 0, 0xde, 0xad, 0, 8, 1, 1, 0, 1, 2, 0x40}
			body = append(body[:minExtended:minExtended], extension...)
			f := icmpError(t, v6, 3, 0, rest, body)
			var p Packet
			var q Quote
			Parse(f, len(f), &p)
			if got := ParseQuote(f, &p, &q); got != OK || q.End != len(f)-len(extension) {
				t.Fatalf("v6=%v: %v, the quote ends at %d of %d", v6, got, q.End, len(f))
			}
			TranslateError(f, &p, &q, &translation)
			if !bytes.HasSuffix(f, extension) || !sumsOf(f, &p, &q).icmp {
				t.Errorf("v6=%v: extensions have changed, or the checksum is wrong: %x", v6, f)
			}
		}
	}
}

func TestQuotesThatAreNone(t *testing.T) {
	for _, tt := range []struct {
		name   string
		v6     bool
		change func(ip []byte) []byte
		want   Problem
	}{
		{"nothing", false, func(ip []byte) []byte { return nil }, BadTransport},
		{"no ports", false, func(ip []byte) []byte { return ip[:IPv4Len+3] }, BadTransport},
		{"version", false, func(ip []byte) []byte { ip[0] = 0x65; return ip }, BadTransport},
		{"header length", false, func(ip []byte) []byte { ip[0] = 0x44; return ip }, BadTransport},
		{"header beyond the end", false, func(ip []byte) []byte { ip[0] = 0x4f; return ip[:30] }, BadTransport},
		{"later fragment", false, func(ip []byte) []byte { ip[7] = 1; return ip }, IsFragment},
		{"protocol", false, func(ip []byte) []byte { ip[9] = ProtoICMP; return ip }, NotTransport},
		{"IPv6 nothing", true, func(ip []byte) []byte { return nil }, BadTransport},
		{"IPv6 no ports", true, func(ip []byte) []byte { return ip[:IPv6Len+3] }, BadTransport},
		{"IPv6 version", true, func(ip []byte) []byte { ip[0] = 0x45; return ip }, BadTransport},
		{"IPv6 protocol", true, func(ip []byte) []byte { ip[6] = ProtoICMPv6; return ip }, NotTransport},
		{"IPv6 later fragment", true, func(ip []byte) []byte { ip[6] = protoFragment; ip[42] = 1; return ip }, IsFragment},
		{"IPv6 extension beyond the end", true, func(ip []byte) []byte { ip[6], ip[40], ip[41] = protoDestOptions, ProtoTCP, 200; return ip }, BadTransport},
		{"IPv6 too many extensions", true, func(ip []byte) []byte {
			ip[6] = protoDestOptions
			for range maxExtensions {
				ip = slices.Insert(ip, IPv6Len, protoDestOptions, 0, 1, 4, 0, 0, 0, 0)
			}
			return ip
		}, BadTransport},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := icmpError(t, tt.v6, 3, 0, 0, tt.change(quotation(t, spec{v6: tt.v6, proto: ProtoTCP})))
			var p Packet
			var q Quote
			Parse(f, len(f), &p)
			if got := ParseQuote(f, &p, &q); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

// FuzzTranslateError holds that a checksum that was right stays right, whatever
// the message, and that nothing but the known fields changes.
func FuzzTranslateError(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{ProtoTCP, ProtoUDP} {
			f.Add(icmpError(f, v6, 3, 0, 0, quotation(f, spec{v6: v6, proto: proto, payload: 20})), uint64(1), uint64(2))
		}
		f.Add(icmpError(f, v6, 1, 4, 32<<16, quotation(f, spec{v6: v6, proto: ProtoTCP, payload: 200})), uint64(3), uint64(0xffff))
		f.Add(icmpError(f, v6, 8, 0, 7, []byte("ping")), uint64(0), uint64(0))
		f.Add(icmpError(f, v6, 128, 0, 7, []byte("ping")), uint64(0), uint64(0))
	}
	f.Fuzz(func(t *testing.T, frame []byte, a, b uint64) {
		var p Packet
		if len(frame) > 2048 || Parse(frame, len(frame), &p) != NotTransport || p.Proto != ProtoICMP && p.Proto != ProtoICMPv6 {
			return
		}
		switch ICMPMessage(frame, &p) {
		case MessageEcho:
			right := sumsOfEcho(frame, &p)
			n := EchoReply(frame, &p)
			var r Packet
			if got := Parse(frame[:len(frame)-n], len(frame)-n, &r); got != NotTransport || r.Len != p.Len || r.L4 != p.L4 {
				t.Fatalf("the reply is %v, %+v, want %+v", got, r, p)
			}
			if right && !sumsOfEcho(frame, &p) {
				t.Fatal("the reply's checksum is wrong")
			}
		case MessageError:
			var q Quote
			if ParseQuote(frame, &p, &q) != OK {
				return
			}
			before := sumsOf(frame, &p, &q)
			tail := bytes.Clone(frame[q.End:])
			tr := ErrorTranslation{Outer: [4]uint64{a, b, a ^ b, a + b}, Quoted: [4]uint64{b, a, a - b, b - a}, Ports: uint32(a * b)}
			TranslateError(frame, &p, &q, &tr)
			if after := sumsOf(frame, &p, &q); after != before {
				t.Fatalf("checksums were %s and are %s", fmt.Sprint(before), fmt.Sprint(after))
			}
			if !bytes.Equal(tail, frame[q.End:]) {
				t.Fatal("what follows the quote has changed")
			}
		}
	})
}

func sumsOfEcho(f []byte, p *Packet) bool {
	var pseudo uint64
	if p.Family == 6 {
		pseudo = PseudoSum6(f[p.L3:], ProtoICMPv6, p.L4Len())
	}
	return Fold(Sum(pseudo, f[p.L4:int(p.L3)+int(p.Len)])) == 0xffff
}
