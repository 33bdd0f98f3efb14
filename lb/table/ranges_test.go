package table

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// ranged is a Service with a range of ports.
func ranged(name, first string, last uint16, endpoints ...string) Service {
	s := tcp(name, pool(endpoints...), first)
	s.Frontends[0].LastPort, s.Frontends[0].Port = last, 15
	return s
}

// After random changes each port has the frontend that a look at all of them finds: one with the
// port alone, else the range with the fewest ports, else that with the lower first port.
func TestThePortOfARangeHasTheMostSpecificFrontend(t *testing.T) {
	const ports = 40
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		tb := New(Config{})
		for range 12 {
			name := fmt.Sprint("s", rng.IntN(8))
			if rng.IntN(4) == 0 {
				apply(t, tb, nil, name)
			} else {
				first := 1 + rng.IntN(ports-1)
				s := ranged(name, fmt.Sprintf("192.0.2.%d:%d", 1+rng.IntN(2), first), uint16(first+1+rng.IntN(ports-first)), "10.0.0.1:15")
				if rng.IntN(3) == 0 {
					s.Frontends[0].LastPort = 0
				}
				_, _ = tb.Apply([]Service{s}, nil) // another may have the frontend
			}
			for address := 1; address <= 2; address++ {
				for port := range uint16(ports + 2) {
					at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(address)}), port)
					k := MakeKey(at, 6)
					if got, want := tb.Load().Lookup(&k), slowRange(tb, at); got != want {
						t.Fatalf("seed %d: %v: %v, want %v", seed, at, frontendName(got), frontendName(want))
					}
				}
			}
		}
	}
}

func frontendName(f *FrontendEntry) string {
	if f == nil {
		return "none"
	}
	return f.ServiceName + " " + f.Address()
}

// slowRange is Lookup by a look at all frontends.
func slowRange(tb *Table, at netip.AddrPort) (best *FrontendEntry) {
	size := func(f *FrontendEntry) int { return int(max(f.LastPort, f.AddrPort.Port())) - int(f.AddrPort.Port()) }
	for f := range tb.Load().All() {
		if f.AddrPort.Addr() != at.Addr() || at.Port() < f.AddrPort.Port() || at.Port() > max(f.LastPort, f.AddrPort.Port()) {
			continue
		}
		if best == nil || size(f) < size(best) || size(f) == size(best) && f.AddrPort.Port() < best.AddrPort.Port() {
			best = f
		}
	}
	return best
}

// Flows of a range belong to its endpoints, whatever the port.
func TestARangeKeepsItsEndpoints(t *testing.T) {
	tb := New(Config{})
	apply(t, tb, []Service{ranged("a", "192.0.2.1:10", 20, "10.0.0.1:15")})
	k := MakeKey(netip.MustParseAddrPort("192.0.2.1:12"), 6)
	f := tb.Load().Lookup(&k)
	ep := &f.Pool.Endpoints()[0]
	target := f.Target(ep, 12)
	if target != netip.MustParseAddrPort("10.0.0.1:12") || !f.Pool.Lists(f.Listed(target)) || f.Address() != "192.0.2.1:10-20" {
		t.Errorf("target %v of %s", target, f.Address())
	}
	if n, err := tb.RestoreEndpoint(f, target, 6); n != ep.ID || err != nil {
		t.Errorf("number %d, %v, want %d", n, err, ep.ID)
	}
	if c, _ := tb.Apply([]Service{ranged("b", "192.0.2.1:10", 9, "10.0.0.1:15")}, nil); len(c.Errors) == 0 {
		t.Error("a range that ends before its beginning is taken")
	}
	keys := NewRanges(slices.Values([]Key{f.Key, MakeKey(netip.MustParseAddrPort("192.0.2.1:30"), 6)}))
	if other := MakeKey(netip.MustParseAddrPort("192.0.2.1:21"), 6); keys.Find(k) != f.Key || keys.Find(other) != other {
		t.Error("a key is not found among keys")
	}
}

// Ranges of two Services with ports in common are a conflict, unless one is in the other.
func TestRangesWithPortsInCommonAreConflicts(t *testing.T) {
	for name, c := range map[string]struct {
		first  string
		last   uint16
		common bool
	}{
		"common ports":    {"192.0.2.1:15", 25, true},
		"fewer":           {"192.0.2.1:18", 22, true},
		"more":            {"192.0.2.1:15", 40, true},
		"within":          {"192.0.2.1:12", 18, false},
		"around":          {"192.0.2.1:1", 40, false},
		"behind":          {"192.0.2.1:21", 40, false},
		"another address": {"192.0.2.2:15", 25, false},
	} {
		tb := New(Config{})
		apply(t, tb, []Service{ranged("a", "192.0.2.1:10", 20, "10.0.0.1:15"), ranged("b", c.first, c.last, "10.0.0.1:15")})
		list := tb.Conflicts()
		if (len(list) == 1) != c.common || c.common && (list[0].Part == "" || list[0].Service == list[0].Holder) {
			t.Errorf("%s: %+v", name, list)
		}
	}
}
