package steer

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket/layers"
	"pgregory.net/rapid"
)

// model is the steering program, written again to be obvious. ours holds the
// datagrams whose first fragment was Weir's.
func model(b []byte, ours map[string]bool) Verdict {
	if string(b[:6]) != string(ownMAC) {
		return PassOtherMAC
	}
	typ, b := binary.BigEndian.Uint16(b[12:]), b[14:]
	isTag := func() bool { return typ == 0x8100 || typ == 0x88a8 }
	if isTag() {
		if len(b) < 4 {
			return PassMalformed
		}
		id := binary.BigEndian.Uint16(b) & 0xfff
		if typ, b = binary.BigEndian.Uint16(b[2:]), b[4:]; isTag() || id != 0 {
			return PassVLAN
		}
	}
	var proto byte
	var to netip.Addr
	switch typ {
	case 0x0800:
		if len(b) < 20 || b[0]>>4 != 4 || b[0]&15 < 5 {
			return PassMalformed
		}
		header := int(b[0]&15) * 4
		proto, to = b[9], netip.AddrFrom4([4]byte(b[16:20]))
		if place := binary.BigEndian.Uint16(b[6:]) & 0x3fff; place != 0 {
			if proto != 6 && proto != 17 && !modelPing(proto, to) {
				return PassOtherProtocol
			}
			datagram := string(b[4:6]) + string(b[9:10]) + string(b[12:20])
			return modelFragment(b[min(header, len(b)):], proto, to, ours, datagram, place&0x1fff == 0)
		}
		b = b[min(header, len(b)):]
	case 0x86dd:
		if len(b) < 40 || b[0]>>4 != 6 {
			return PassMalformed
		}
		proto, to = b[6], netip.AddrFrom16([16]byte(b[24:40]))
		datagram := string(b[8:40])
		b = b[40:]
		place := uint16(0)
		for n := 0; slices.Contains([]byte{0, 43, 44, 51, 60, 135}, proto) && place < 8; n++ {
			switch {
			case n == 6 || proto == 51 || proto == 135:
				return PassExtension
			case len(b) < 8:
				return PassMalformed
			}
			size := 8 * (int(b[1]) + 1)
			if proto == 44 {
				size, place = 8, binary.BigEndian.Uint16(b[2:])&0xfff9
				datagram = datagram[:32] + string(b[4:8])
			}
			if size > 128 {
				return PassExtension
			}
			proto, b = b[0], b[min(size, len(b)):]
		}
		if place != 0 {
			return modelFragment(b, proto, to, ours, datagram, place < 8)
		}
	default:
		return PassOtherEtherType
	}
	switch {
	case typ == 0x0800 && proto == 1, typ == 0x86dd && proto == 58:
		return modelICMP(b, to)
	case proto != 6 && proto != 17:
		return PassOtherProtocol
	case proto == 6 && len(b) < 20, proto == 17 && len(b) < 8:
		return PassMalformed
	}
	return modelLookup(at(to, binary.BigEndian.Uint16(b[2:])))
}

func modelFragment(b []byte, proto byte, to netip.Addr, ours map[string]bool, datagram string, first bool) Verdict {
	if !first {
		if ours[datagram] || modelVIP(to) {
			return Redirected
		}
		return PassFragment
	}
	verdict := PassOtherProtocol
	if proto == 6 || proto == 17 {
		if len(b) < 4 {
			return PassMalformed
		}
		verdict = modelLookup(at(to, binary.BigEndian.Uint16(b[2:])))
	} else if modelPing(proto, to) {
		verdict = Redirected
	}
	ours[datagram] = verdict == Redirected
	return verdict
}

func modelVIP(a netip.Addr) bool {
	return slices.Contains([]netip.Addr{front4.Addr(), front6.Addr(), vip4, vip6}, a)
}

func modelPing(proto byte, to netip.Addr) bool {
	return modelVIP(to) && (to.Is4() && proto == 1 || to.Is6() && proto == 58)
}

func modelLookup(a netip.AddrPort) Verdict {
	if a == front4 || a == front6 || (a.Addr() == snat4 || a.Addr() == snat6) && a.Port() >= snatLo {
		return Redirected
	}
	return PassNoMatch
}

// TestMutatedPacketsAreSteeredAsByTheModel changes a few bytes of good packets,
// and their length.
func TestMutatedPacketsAreSteeredAsByTheModel(t *testing.T) {
	p := newTestProgram(t, false)
	var good [][]byte
	for _, proto := range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
		good = append(good, packet4(t, proto, front4), packet6(t, proto, front6),
			packet4(t, proto, at(snat4, 62000)), packet6(t, proto, at(snat6, 62000)))
	}
	for _, c := range append(icmpCases(t), tunnelCases(t)...) {
		good = append(good, c.packet)
	}
	good = append(good, tag(good[0], 0x8100), tag(good[1], 0x88a8, 0x8100))
	ours := map[string]bool{}
	for _, b := range fragmentCases(t) {
		good = append(good, b.packet)
	}
	rapid.Check(t, func(t *rapid.T) {
		b := append([]byte(nil), rapid.SampledFrom(good).Draw(t, "good packet")...)
		for range rapid.IntRange(0, 3).Draw(t, "mutations") {
			b[rapid.IntRange(0, len(b)-1).Draw(t, "offset")] = rapid.Byte().Draw(t, "byte")
		}
		if rapid.Bool().Draw(t, "cut") {
			b = b[:rapid.IntRange(14, len(b)).Draw(t, "length")]
		}
		want := model(b, ours)
		if _, verdict := run(t, p, b); verdict != want {
			t.Fatalf("%v, the model says %v", verdict, want)
		}
	})
}
