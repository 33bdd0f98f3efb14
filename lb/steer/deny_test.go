package steer

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
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

// BenchmarkDenied measures a packet of a denied client in the program, and one that goes to the socket,
// beside a list of the largest size.
func BenchmarkDenied(b *testing.B) {
	p := newTestProgram(b, false)
	rng := rand.New(rand.NewPCG(1, 2))
	prefixes := []netip.Prefix{netip.MustParsePrefix("198.51.100.9/32"), netip.MustParsePrefix("2001:db8:9::/64")}
	for len(prefixes) < denylist.MaxPrefixes {
		prefixes = append(prefixes, randomPrefix(rng))
	}
	set, err := denylist.New().With(0, prefixes, denyMemory)
	must(b, err)
	for name, packet := range map[string][]byte{
		"IPv4": packet4(b, layers.IPProtocolTCP, front4), "IPv6": packet6(b, layers.IPProtocolTCP, front6),
	} {
		for _, denies := range []bool{false, true} {
			b.Run(name+map[bool]string{true: "-denied", false: "-redirected"}[denies], func(b *testing.B) {
				must(b, p.Deny(nil, 0, 0))
				if denies {
					must(b, p.Deny(set.Memory().(*DenyMemory), 1, 0))
				}
				_, err := steering(b, p).Run(&ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+64), Repeat: uint32(b.N)})
				must(b, err)
			})
		}
	}
}
