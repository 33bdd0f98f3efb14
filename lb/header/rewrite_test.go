package header

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// An IPv4 header that is rewritten is the header with the new fields, summed anew.
func TestRewriteIPv4(t *testing.T) {
	ip := []byte{0x45, 0, 0, 40, 1, 2, 0x40, 0, 0, 6, 0, 0, 192, 0, 2, 7, 198, 51, 100, 1}
	to := []byte{10, 1, 0, 1, 10, 1, 0, 5}
	for ttl := 2; ttl < 256; ttl++ {
		before := bytes.Clone(ip)
		before[8] = byte(ttl)
		binary.LittleEndian.PutUint16(before[10:], Checksum(0, before))

		want := bytes.Clone(ip)
		want[8] = byte(ttl - 1)
		copy(want[12:], to)
		binary.LittleEndian.PutUint16(want[10:], Checksum(0, want))

		delta := Sum(Sum(0, to), notted(before[12:]))
		got := bytes.Clone(before)
		RewriteIPv4(got, binary.LittleEndian.Uint64(to), uint64(Fold(delta)))
		if !bytes.Equal(got, want) {
			t.Fatalf("TTL %d: %x, want %x", ttl, got, want)
		}

		copy(want[12:], ip[12:])
		want[10], want[11] = 0, 0
		binary.LittleEndian.PutUint16(want[10:], Checksum(0, want))
		DecrementTTL(before, 4)
		if !bytes.Equal(before, want) {
			t.Fatalf("TTL %d alone: %x, want %x", ttl, before, want)
		}
	}
}

// notted returns b with every bit the other way.
func notted(b []byte) []byte {
	out := bytes.Clone(b)
	for i := range out {
		out[i] = ^out[i]
	}
	return out
}

func TestRewriteIPv6(t *testing.T) {
	ip := make([]byte, IPv6Len)
	ip[0], ip[7] = 0x60, 64
	want := bytes.Clone(ip)
	want[7] = 62
	for i := range 32 {
		want[8+i] = byte(i + 1)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(want[8+8*i:]) }
	RewriteIPv6(ip, [2]uint64{word(0), word(1)}, [2]uint64{word(2), word(3)})
	DecrementTTL(ip, 6)
	if !bytes.Equal(ip, want) {
		t.Errorf("%x, want %x", ip, want)
	}
}
