package header

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// samePlain fails unless ParseFast and Parse agree about a frame. It returns whether
// ParseFast took it.
func samePlain(t *testing.T, frame []byte, total int) bool {
	t.Helper()
	var p, q Packet
	for _, b := range []*Packet{&p, &q} { // every field is to be written
		*b = Packet{9, 9, 9, 9, 9, 9, 9, 9, true}
	}
	problem := Parse(frame, total, &p)
	if !ParseFast(frame, total, &q) {
		return false
	}
	if problem != OK || p != q {
		t.Fatalf("Plain gives %+v, Parse %v and %+v, of %x", q, problem, p, frame)
	}
	return true
}

func TestParseFastTakesOrdinaryPackets(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{ProtoTCP, ProtoUDP} {
			plain := spec{v6: v6, proto: proto, flags: ACK, payload: 5}.build(t)
			for tags := range 3 {
				f := plain
				if tags > 0 {
					f = tagged(plain, []uint16{100, 200}[:tags]...)
				}
				if !samePlain(t, f, len(f)) {
					t.Errorf("v6=%v proto=%d tags=%d is not taken", v6, proto, tags)
				}
				for n := range f { // cut anywhere
					samePlain(t, f[:n:n], n)
					samePlain(t, f[:n:n], len(f))
				}
			}
		}
	}
}

// What ParseFast takes it reads as Parse does, whatever is in the frame.
func TestParseFastAgreesWithParse(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	taken := 0
	for i := range 400_000 {
		f := spec{v6: i&1 == 1, proto: []uint8{ProtoTCP, ProtoUDP}[i>>1&1], flags: ACK, payload: rng.IntN(30)}.frame()
		if i&4 != 0 {
			f = tagged(f, 1)
		}
		for range rng.IntN(3) {
			f[12+rng.IntN(len(f)-12)] = byte(rng.Uint32())
		}
		partialSum(f, rng)
		mendIPv4(f)
		if samePlain(t, f, len(f)+rng.IntN(3)-1) {
			taken++
		}
	}
	if taken < 100_000 {
		t.Errorf("only %d packets were taken", taken)
	}
}

// frames of specs, built once each.
var built = map[spec][]byte{}

func (s spec) frame() []byte {
	if built[s] == nil {
		built[s] = s.build(&testing.B{})
	}
	return bytes.Clone(built[s])
}

// partialSum puts the pseudo header's sum, or something near it, into the transport
// checksum of some frames.
func partialSum(f []byte, rng *rand.Rand) {
	var p Packet
	if rng.IntN(2) == 0 || Parse(f, len(f), &p) != OK {
		return
	}
	sum := PseudoSum4
	if p.Family == 6 {
		sum = PseudoSum6
	}
	c := Fold(sum(f[p.L3:], p.Proto, p.L4Len())) + uint16(rng.IntN(3)) - 1
	at := int(p.L4) + 16
	if p.Proto == ProtoUDP {
		at = int(p.L4) + 6
	}
	f[at], f[at+1] = byte(c), byte(c>>8)
}

// mendIPv4 makes the header checksum right, so that other damage is found.
func mendIPv4(f []byte) {
	at := EthernetLen
	if f[12] == 0x81 {
		at += TagLen
	}
	if ihl := int(f[at]&0xf) * 4; f[at]>>4 == 4 && ihl >= IPv4Len && at+ihl <= len(f) {
		f[at+10], f[at+11] = 0, 0
		c := Checksum(0, f[at:at+ihl])
		f[at+10], f[at+11] = byte(c), byte(c>>8)
	}
}

func FuzzParseFast(f *testing.F) {
	f.Add(spec{proto: ProtoTCP, flags: ACK}.build(f), 0)
	f.Add(tagged(spec{v6: true, proto: ProtoUDP, payload: 9}.build(f), 7), 3)
	f.Fuzz(func(t *testing.T, frame []byte, more int) {
		samePlain(t, frame, len(frame)+more&0xffff)
	})
}

func BenchmarkParse(b *testing.B) {
	f := spec{proto: ProtoUDP, payload: 18}.build(b)
	var p Packet
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Parse(f, len(f), &p)
		}
	})
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ParseFast(f, len(f), &p)
		}
	})
}
