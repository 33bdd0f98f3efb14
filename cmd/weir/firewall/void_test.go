package firewall

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/growth"
)

// sized are frontends, each with 8 endpoints, and a rule for each, of a port, an address or neither.
func sized(frontends int) (r Rules, list []Frontend) {
	for i := range frontends {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), uint16(1024+i%40000))
		f := Frontend{Name: at.String(), Packet: Packet{Interfaces: []string{"eth0"}, Protocol: unix.IPPROTO_TCP, To: at}}
		for j := range 8 {
			p := f.Packet
			p.To = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(j), byte(i >> 8), byte(i)}), 8080)
			f.Endpoints = append(f.Endpoints, p)
		}
		list = append(list, f)
		rule := Rule{Hook: "forward", conditions: []condition{interfaceCondition("eth0", true)}}
		switch i % 3 {
		case 0:
			rule.conditions = append(rule.conditions, portCondition([][2]uint16{{uint16(1024 + i), uint16(1024 + i)}}, true))
		case 1:
			rule.conditions = append(rule.conditions, addressCondition([]netip.Prefix{netip.PrefixFrom(at.Addr(), 31)}, true))
		case 2:
			rule.conditions = append(rule.conditions, protocolCondition(unix.IPPROTO_UDP, true))
		}
		r.List = append(r.List, rule)
	}
	return r, list
}

// The time grows with the rules and the frontends, not with their product.
func TestRulesAreFoundByPortAndAddress(t *testing.T) {
	ratio := growth.Ratio(200, 1600, func(size int) func() {
		r, list := sized(size)
		return func() { r.Void(list) }
	})
	if ratio > growth.Linear(200, 1600) {
		t.Errorf("1,600 rules and frontends take %.0f times the CPU time of 200", ratio)
	}
}

// The index finds what a look at all packets finds.
func TestVoidAgreesWithALookAtAllPackets(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	addr := func() netip.Addr {
		if rng.IntN(4) == 0 {
			return netip.MustParseAddr(fmt.Sprintf("fd00::%d", rng.IntN(6)))
		}
		return netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(6))})
	}
	packet := func() Packet {
		return Packet{Interfaces: []string{"eth0"}, Protocol: []byte{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP}[rng.IntN(3)],
			To: netip.AddrPortFrom(addr(), uint16(rng.IntN(8)))}
	}
	for range 2000 {
		list := []Frontend{NodePorts([]string{"eth0"}, 3, 5)}[rng.IntN(2):]
		for i := range rng.IntN(6) {
			f := Frontend{Name: fmt.Sprint("frontend ", i), Packet: packet()}
			for range rng.IntN(3) {
				f.Endpoints = append(f.Endpoints, packet())
			}
			list = append(list, f)
		}
		rule := Rule{Hook: []string{"prerouting", "input"}[rng.IntN(2)]}
		for range rng.IntN(4) {
			equal := rng.IntN(3) > 0
			switch low := uint16(rng.IntN(8)); rng.IntN(4) {
			case 0:
				rule.conditions = append(rule.conditions, portCondition([][2]uint16{{low, low + uint16(rng.IntN(3))}, {7, 7}}, equal))
			case 1:
				a := addr()
				rule.conditions = append(rule.conditions, addressCondition([]netip.Prefix{netip.PrefixFrom(a, a.BitLen()-rng.IntN(3))}, equal))
			case 2:
				rule.conditions = append(rule.conditions, protocolCondition(unix.IPPROTO_TCP, equal))
			case 3:
				var s registers
				a, b := addr(), addr()
				s.addresses("", [][2][]byte{{a.AsSlice(), b.AsSlice()}}, equal)
				rule.conditions = append(rule.conditions, s.conditions...)
			}
		}
		first, n := "", 0
		for i := range list {
			if rule.concerns(&list[i]) {
				if n++; first == "" {
					first = list[i].Name
				}
			}
		}
		got := strings.Join((&Rules{List: []Rule{rule}}).Void(list), "")
		want := ""
		switch {
		case n == 1:
			want = fmt.Sprintf("%v: may concern %s", &rule, first)
		case n > 1:
			want = fmt.Sprintf("%v: may concern %s and %d more frontends", &rule, first, n-1)
		}
		if got != want {
			t.Fatalf("%q, want %q, of %+v and %d conditions", got, want, list, len(rule.conditions))
		}
	}
}

// concerns looks at all packets of a frontend.
func (r *Rule) concerns(f *Frontend) bool {
	if r.Concerns(&f.Packet) {
		return true
	}
	if r.Hook != "input" && r.Hook != "forward" {
		return false
	}
	return slices.ContainsFunc(f.Endpoints, func(p Packet) bool { return r.Concerns(&p) })
}

func BenchmarkVoid(b *testing.B) {
	for _, frontends := range []int{500, 4000, 32000} {
		b.Run(fmt.Sprint(frontends), func(b *testing.B) {
			r, _ := sized(500)
			_, list := sized(frontends)
			for b.Loop() {
				r.Void(list)
			}
		})
	}
}
