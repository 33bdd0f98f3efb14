package header

import (
	"slices"
	"testing"
)

// tagged puts VLAN tags between the addresses and the EtherType.
func tagged(frame []byte, tags ...uint16) []byte {
	out := slices.Clone(frame[:12])
	for i, t := range tags {
		tpid := uint16(EtherTypeVLAN)
		if i == 0 && len(tags) > 1 {
			tpid = EtherTypeQinQ
		}
		out = append(out, byte(tpid>>8), byte(tpid), byte(t>>8), byte(t))
	}
	return append(out, frame[12:]...)
}

func TestParseTagged(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		plain := spec{v6: v6, proto: ProtoTCP, flags: SYN}.build(t)
		want := mustParse(t, plain)
		for n := 1; n <= 2; n++ {
			got := mustParse(t, tagged(plain, []uint16{100, 200}[:n]...))
			w := want
			w.L3, w.L4 = w.L3+uint8(n*TagLen), w.L4+uint8(n*TagLen)
			if got != w {
				t.Errorf("v6=%v, %d tags: %+v, want %+v", v6, n, got, w)
			}
		}
		var p Packet
		if three := tagged(plain, 1, 2, 3); Parse(three, len(three), &p) != NotIP {
			t.Errorf("v6=%v: three tags were taken", v6)
		}
		for n := range EthernetLen + 2*TagLen + IPv4Len {
			if cut := tagged(plain, 1, 2)[:n]; Parse(cut, n, &p) == OK {
				t.Errorf("v6=%v: %d bytes were taken", v6, n)
			}
		}
	}
}

// What Weir answers to a tagged packet goes back with the same tags.
func TestReplyKeepsTags(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		plain := spec{v6: v6, proto: ProtoTCP, flags: SYN}.build(t)
		answer := func(f []byte) []byte {
			p := mustParse(t, f)
			f = append(slices.Clone(f), make([]byte, 1400)...)
			return f[:Unreachable(f, len(f)-1400, &p, HostUnreachable, 0)]
		}
		if got, want := answer(tagged(plain, 7, 9)), tagged(answer(plain), 7, 9); !slices.Equal(got, want) {
			t.Errorf("v6=%v: ICMP error\n got %x\nwant %x", v6, got, want)
		}
		reset := func(f []byte) []byte {
			p := mustParse(t, f)
			f = append(slices.Clone(f), make([]byte, 64)...)
			return f[:Reset(f, &p)]
		}
		if got, want := reset(tagged(plain, 7, 9)), tagged(reset(plain), 7, 9); !slices.Equal(got, want) {
			t.Errorf("v6=%v: RST\n got %x\nwant %x", v6, got, want)
		}
	}
}
