package steer

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/lb/denylist"
)

// denyMemory is the denylist.Alloc of sets that the program searches.
func denyMemory(n int) ([]denylist.Block, any, error) {
	blocks, m, err := NewDenyMemory(n)
	return blocks, m, err
}

// TestTheProgramDeniesByTheSet compares the program's search with that of the packet loop, in sets of
// several levels, at and around their boundaries.
func TestTheProgramDeniesByTheSet(t *testing.T) {
	p := newTestProgram(t, false)
	rng := rand.New(rand.NewPCG(1, 2))
	good4, good6 := packet4(t, layers.IPProtocolUDP, front4), packet6(t, layers.IPProtocolUDP, front6)
	for _, size := range []int{0, 1, 3, 40, 3000, 30000} {
		set := denylist.New()
		var some []netip.Addr
		for list := range 3 {
			var prefixes []netip.Prefix
			for range size {
				prefixes = append(prefixes, randomPrefix(rng))
			}
			for _, f := range prefixes[:min(len(prefixes), 60)] {
				some = append(some, f.Addr(), f.Addr().Prev(), f.Addr().Next())
			}
			var err error
			if set, err = set.With(list, prefixes, denyMemory); err != nil {
				t.Fatal(err)
			}
		}
		some = append(some, netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("::"))
		must(t, p.Deny(set.Memory().(*DenyMemory), 0b101, 0))
		for _, a := range some {
			if !a.IsValid() {
				continue
			}
			b, src := append([]byte(nil), good4...), a.AsSlice()
			at := atIP + 12
			if a.Is6() {
				b, at = append([]byte(nil), good6...), atIP+8
			}
			copy(b[at:], src)
			want, list := Redirected, set.Find(a, 0b101)
			if list >= 0 {
				want = Denied
			}
			before, err := p.counters.all(0)
			must(t, err)
			if _, got := run(t, p, b); got != want {
				t.Fatalf("%d prefixes: from %v: %v, list %d", size, a, got, list)
			}
			after, err := p.counters.all(0)
			must(t, err)
			for i := range after.Denied {
				if n := after.Denied[i] - before.Denied[i]; (n == 1) != (i == list) || n > 1 {
					t.Fatalf("from %v: counted %d for list %d, is list %d", a, n, i, list)
				}
			}
		}
	}
}

func randomPrefix(rng *rand.Rand) netip.Prefix {
	var b [16]byte
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	a := netip.AddrFrom16(b)
	if rng.IntN(2) == 0 {
		a = netip.AddrFrom4([4]byte(b[:4]))
	}
	p, _ := a.Prefix(a.BitLen() - rng.IntN(a.BitLen()-8))
	return p
}

// Which packets of a denied client the program drops.
func TestDeniedPackets(t *testing.T) {
	p := newTestProgram(t, false)
	syn := packet4(t, layers.IPProtocolTCP, front4)
	ack := append([]byte(nil), syn...)
	ack[atTCP4+13] = 0x10
	udp := packet6(t, layers.IPProtocolUDP, front6)
	fragment := append([]byte(nil), packet4(t, layers.IPProtocolUDP, front4)...)
	fragment[atFragment] |= 0x20
	set, err := denylist.New().With(3, []netip.Prefix{netip.MustParsePrefix("198.51.100.9/32"), netip.MustParsePrefix("2001:db8:9::/64")}, denyMemory)
	must(t, err)
	set, err = set.With(2, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, denyMemory)
	must(t, err)
	m := set.Memory().(*DenyMemory)
	for _, tt := range []struct {
		name       string
		set        *DenyMemory
		node, keep uint16
		packet     []byte
		want       Verdict
	}{
		{"SYN", m, 8, 0, syn, Denied},
		{"ACK", m, 8, 0, ack, Denied},
		{"datagram", m, 8, 0, udp, Denied},
		{"SYN, flows are kept", m, 8, 8, syn, Denied},
		{"ACK, flows are kept", m, 8, 8, ack, Redirected},
		{"datagram, flows are kept", m, 8, 8, udp, Redirected},
		{"ACK, another list keeps flows", m, 12, 4, ack, Denied},
		{"a list about other frontends", m, 2, 0, syn, Redirected},
		{"to a translated port", m, 8, 0, packet4(t, layers.IPProtocolTCP, at(snat4, 62000)), Redirected},
		{"to the kernel", m, 8, 0, packet4(t, layers.IPProtocolTCP, at(snat4, 22)), PassNoMatch},
		{"fragment", m, 8, 0, fragment, Redirected},
		{"no list", nil, 0, 0, syn, Redirected},
	} {
		must(t, p.Deny(tt.set, tt.node, tt.keep))
		if action, got := run(t, p, tt.packet); got != tt.want || (action == 1) != (tt.want == Denied) {
			t.Errorf("%s: %v, action %d, want %v", tt.name, got, action, tt.want)
		}
	}
	must(t, p.Deny(nil, 0, 0))
}

// prefixesOf are a list of the largest size: networks of /24 or addresses of IPv4, or of /64 of IPv6.
func prefixesOf(rng *rand.Rand, bits int, among ...netip.Prefix) []netip.Prefix {
	for len(among) < denylist.MaxPrefixes {
		b := [16]byte{0x20, 1}
		for i := 2; i < len(b); i++ {
			b[i] = byte(rng.Uint32())
		}
		a := netip.AddrFrom16(b)
		if bits <= 32 {
			a = netip.AddrFrom4([4]byte(b[2:]))
		}
		p, _ := a.Prefix(bits)
		among = append(among, p)
	}
	return among
}

var listSizes = []struct {
	name string
	bits int
}{{"IPv4-24", 24}, {"IPv4-32", 32}, {"IPv6-64", 64}}

// BenchmarkDenied measures a SYN of a denied client in the program, and one that goes to the socket,
// beside a list of the largest size: of one source again and again, and each of another source in a run of
// its own, which finds neither the set nor the program in a cache near the CPU. The figure is that of the
// kernel's clock around the program.
func BenchmarkDenied(b *testing.B) {
	p := newTestProgram(b, false)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range listSizes {
		packet, at := packet4(b, layers.IPProtocolTCP, front4), atIP+12
		if size.bits > 32 {
			packet, at = packet6(b, layers.IPProtocolTCP, front6), atIP+8
		}
		prefixes := prefixesOf(rng, size.bits)
		set, err := denylist.New().With(0, slices.Clone(prefixes), denyMemory)
		must(b, err)
		for _, name := range []string{"redirected", "denied"} {
			must(b, p.Deny(nil, 0, 0))
			if name == "denied" {
				must(b, p.Deny(set.Memory().(*DenyMemory), 1, 0))
			}
			prog := steering(b, p)
			run := func(n int, repeat int) float64 {
				copy(packet[at:], prefixes[n*4099%len(prefixes)].Addr().AsSlice())
				_, d, err := prog.Benchmark(packet, repeat, nil)
				must(b, err)
				return float64(d)
			}
			b.Run(size.name+"-"+name+"/same-source", func(b *testing.B) {
				b.ReportMetric(run(1, b.N), "program-ns/packet")
			})
			b.Run(size.name+"-"+name+"/other-sources", func(b *testing.B) {
				before := deniedBy(b, p)
				var times []float64
				for n := range b.N {
					times = append(times, run(n, 1))
				}
				slices.Sort(times)
				b.ReportMetric(times[len(times)/2], "program-ns/packet")
				if got := deniedBy(b, p) - before; got != uint64(b.N)*map[string]uint64{"denied": 1}[name] {
					b.Fatalf("%d of %d are denied", got, b.N)
				}
			})
		}
	}
}

func deniedBy(b *testing.B, p *Program) uint64 {
	all, err := p.counters.all(0)
	must(b, err)
	return all.Denied[0]
}

// BenchmarkDenyChange measures the change of all prefixes of a list of the largest size, from prefixes in memory to
// the program that drops by them.
func BenchmarkDenyChange(b *testing.B) {
	p := newTestProgram(b, false)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range listSizes {
		b.Run(size.name, func(b *testing.B) {
			prefixes := prefixesOf(rng, size.bits)
			set := denylist.New()
			for b.Loop() {
				var err error
				set, err = set.With(0, slices.Clone(prefixes), denyMemory)
				must(b, err)
				must(b, p.Deny(set.Memory().(*DenyMemory), 1, 0))
			}
			b.ReportMetric(float64(denyBlock*len(set.Blocks()))/denylist.MaxPrefixes, "bytes/prefix")
		})
	}
}
