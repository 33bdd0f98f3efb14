package denylist

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// randomPrefix is of any length, near the ends of the address space and near others.
func randomPrefix(rng *rand.Rand, four bool) netip.Prefix {
	var b [16]byte
	switch rng.IntN(3) {
	case 0:
		for i := range b {
			b[i] = 0xff
		}
	case 1:
		b[rng.IntN(16)], b[rng.IntN(4)] = byte(rng.Uint32()), byte(rng.Uint32())
	}
	a := netip.AddrFrom16(b)
	if four {
		a = netip.AddrFrom4([4]byte(b[:4]))
	}
	p, _ := a.Prefix(rng.IntN(a.BitLen() + 1))
	return p
}

// Find is what a search of all prefixes finds, at the ends of each prefix and beside them, while
// the lists change one after the other.
func TestFind(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var lists [4][]netip.Prefix
		var at []netip.Addr
		set := New()
		for range 6 {
			i, most := rng.IntN(len(lists)), []int{0, 2, 12, 300}[rng.IntN(4)]
			lists[i] = nil
			at = append(at[:0], netip.IPv4Unspecified(), netip.IPv6Unspecified(), netip.MustParseAddr("255.255.255.255"))
			for range most {
				lists[i] = append(lists[i], randomPrefix(rng, rng.IntN(2) == 0))
			}
			set, _ = set.With(i, slices.Clone(lists[i]), Heap)
			for _, p := range slices.Concat(lists[:]...) {
				at = append(at, p.Addr(), p.Addr().Prev(), p.Addr().Next())
				if _, next, open := span(p); !open {
					end := address(next, p.Addr().Is4())
					at = append(at, end, end.Prev())
				}
			}
			for _, a := range at {
				if a.IsValid() {
					agree(t, set, lists[:], a)
				}
			}
		}
	}
}

func agree(t *testing.T, set *Set, lists [][]netip.Prefix, a netip.Addr) {
	t.Helper()
	for _, among := range []Mask{0xffff, 0b1010} {
		want := -1
		for i := range lists {
			if among>>i&1 != 0 && slices.ContainsFunc(lists[i], func(p netip.Prefix) bool { return p.Contains(a) }) {
				want = i
				break
			}
		}
		if got := set.Find(a, among); got != want {
			t.Fatalf("%v: list %d, want %d, of %v", a, got, want, lists)
		}
	}
	for i := range lists {
		if set.Len(i) != len(lists[i]) {
			t.Fatalf("%d prefixes, want %d", set.Len(i), len(lists[i]))
		}
	}
}

func address(w wide, four bool) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], w.hi)
	binary.BigEndian.PutUint64(b[8:], w.lo)
	if four {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

func TestRead(t *testing.T) {
	for _, tt := range []struct{ text, want, err string }{
		{"; Spamhaus\n192.0.2.0/24 ; SBL1\n\n 2001:db8::/32# a network\r\n198.51.100.7", "192.0.2.0/24 2001:db8::/32 198.51.100.7/32 ", ""},
		{"", "", ""},
		{"192.0.2.0/24\n192.0.2.1/24\n", "", `line 2: "192.0.2.1/24" has bits beyond the prefix: write 192.0.2.0/24`},
		{"example.org", "", `line 1: "example.org" is no prefix`},
		{"192.0.2.0/33", "", "line 1: "},
		{"fe80::1%eth0", "", "line 1: "},
		{"::ffff:192.0.2.1", "", "write the IPv4 address"},
		{"\n" + strings.Repeat("#", maxLine+1), "", "line 2: longer than 4096 bytes"},
	} {
		list, err := Read(strings.NewReader(tt.text))
		var got strings.Builder
		for _, p := range list {
			got.WriteString(p.String() + " ")
		}
		if got.String() != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%.60q: %q, %v", tt.text, got.String(), err)
		}
	}
	if _, err := Read(strings.NewReader(strings.Repeat("::\n", MaxPrefixes+1))); err == nil {
		t.Error("no error for too many prefixes")
	}
}

// A list that is read is a list that can be searched.
func FuzzRead(f *testing.F) {
	f.Add([]byte("192.0.2.0/24 ; SBL1\n2001:db8::/32\n"))
	f.Add([]byte("0.0.0.0/0\n::/0\n255.255.255.255\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		set, err := New().With(3, list, Heap)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			if set.Find(p.Addr(), 1<<3) != 3 {
				t.Fatalf("%v is not found", p)
			}
		}
	})
}

// anyPrefixes are a list of the largest size, with addresses of the Internet's shape.
func anyPrefixes(rng *rand.Rand, four bool) []netip.Prefix {
	list := make([]netip.Prefix, MaxPrefixes)
	for i := range list {
		a := anyAddress(rng, four)
		list[i], _ = a.Prefix(a.BitLen() - a.BitLen()/4)
	}
	return list
}

func anyAddress(rng *rand.Rand, four bool) netip.Addr {
	a := rng.Uint64()
	if four {
		return netip.AddrFrom4([4]byte{byte(a), byte(a >> 8), byte(a >> 16), byte(a >> 24)})
	}
	return address(wide{1<<61 | a>>3, rng.Uint64()}, false)
}

func benchmarkFind(b *testing.B, four bool) {
	rng := rand.New(rand.NewPCG(3, 4))
	set, _ := New().With(0, anyPrefixes(rng, four), Heap)
	asked := make([]netip.Addr, 1<<16)
	for i := range asked {
		asked[i] = anyAddress(rng, four)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		set.Find(asked[i%len(asked)], 1)
	}
	b.ReportMetric(float64(64*len(set.Blocks()))/MaxPrefixes, "bytes/prefix")
}

func BenchmarkFind4(b *testing.B) { benchmarkFind(b, true) }
func BenchmarkFind6(b *testing.B) { benchmarkFind(b, false) }

// BenchmarkWith changes a list of the largest size.
func BenchmarkWith(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 6))
	list := slices.Concat(anyPrefixes(rng, true)[:MaxPrefixes/2], anyPrefixes(rng, false)[:MaxPrefixes/2])
	set := New()
	for b.Loop() {
		set, _ = set.With(0, slices.Clone(list), Heap)
	}
}
