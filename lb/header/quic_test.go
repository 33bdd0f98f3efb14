package header

import (
	"bytes"
	"testing"
)

// longHeader is one with the version and connection IDs, and some bytes behind it.
func longHeader(first byte, version uint32, dst, src []byte) []byte {
	d := []byte{first, byte(version >> 24), byte(version >> 16), byte(version >> 8), byte(version), byte(len(dst))}
	d = append(append(d, dst...), byte(len(src)))
	return append(append(d, src...), 1, 2, 3)
}

var (
	client8 = []byte("client-8")
	server8 = []byte("server-8")
)

func TestQUICConnectionIDs(t *testing.T) {
	long := longHeader(0xc3, 1, client8, server8)
	twenty := bytes.Repeat([]byte{9}, 20)
	short := append([]byte{0x41}, twenty...)
	for _, test := range []struct {
		name     string
		datagram []byte
		dst, src []byte // nil: none
	}{
		{"Initial", long, client8, server8},
		{"another version", longHeader(0xff, 0x6b3343cf, client8, server8), client8, server8},
		{"no bytes behind the IDs", long[:len(long)-3], client8, server8},
		{"source ID of no bytes", longHeader(0xc0, 1, client8, nil), client8, []byte{}},
		{"IDs of 20 bytes", longHeader(0xc0, 1, twenty, twenty), twenty, twenty},
		{"ID of 21 bytes", longHeader(0xc0, 1, append(twenty, 1), server8), nil, nil},
		{"source ID of 21 bytes", longHeader(0xc0, 1, client8, append(twenty, 1)), nil, nil},
		{"cut in the source ID", long[:len(long)-4], nil, nil},
		{"cut before the source ID", long[:14], nil, nil},
		{"cut in the destination ID", long[:13], nil, nil},
		{"cut before the IDs", long[:5], nil, nil},
		{"cut in the version", long[:3], nil, nil},
		{"Version Negotiation", longHeader(0xc0, 0, client8, server8), nil, nil},
		{"no fixed bit", longHeader(0x80, 1, client8, server8), nil, nil},
		{"short header", append(short, 1, 2, 3), twenty, nil},
		{"short header with few bytes", short[:9], twenty[:8], nil},
		{"short header alone", short[:1], []byte{}, nil},
		{"short header, no fixed bit", append([]byte{0x01}, twenty...), nil, nil},
		{"DNS", []byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"), nil, nil},
		{"nothing", nil, nil, nil},
	} {
		same := func(what string, got, want []byte) {
			if !bytes.Equal(got, want) || (got == nil) != (want == nil) {
				t.Errorf("%s: %s ID %x, want %x", test.name, what, got, want)
			}
		}
		same("destination", QUICDestination(test.datagram), test.dst)
		same("source", QUICSource(test.datagram), test.src)
	}
}

func FuzzQUIC(f *testing.F) {
	long := longHeader(0xc3, 1, client8, server8)
	f.Add(long)
	f.Add(long[:14])
	f.Add(append([]byte{0x41}, server8...))
	f.Add(longHeader(0xc0, 0, client8, server8))
	f.Fuzz(func(t *testing.T, d []byte) {
		dst, src := QUICDestination(d), QUICSource(d)
		if len(dst) > quicMaxID || len(src) > quicMaxID {
			t.Fatalf("IDs %x and %x", dst, src)
		}
		if (dst != nil || src != nil) && d[0]&quicFixed == 0 {
			t.Fatal("read what is not QUIC")
		}
		if src == nil {
			return
		}
		if len(src) == 0 {
			src = []byte{}
		}
		// Written anew from what was read, it is the same.
		again := longHeader(d[0], uint32(d[1])<<24|uint32(d[2])<<16|uint32(d[3])<<8|uint32(d[4]), dst, src)
		if !bytes.HasPrefix(d, again[:len(again)-3]) {
			t.Fatalf("%x read as IDs %x and %x", d, dst, src)
		}
	})
}
