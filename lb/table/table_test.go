package table

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tcp is a Service with one pool and TCP frontends.
func tcp(name string, pool Pool, frontends ...string) Service {
	s := Service{Name: name, Pools: []Pool{pool}}
	for _, f := range frontends {
		s.Frontends = append(s.Frontends, Frontend{AddrPort: netip.MustParseAddrPort(f), Proto: 6, Kind: LoadBalancer})
	}
	return s
}

// pool is a pool of endpoints.
func pool(addrPorts ...string) (p Pool) {
	for _, a := range addrPorts {
		p.Endpoints = append(p.Endpoints, Endpoint{AddrPort: netip.MustParseAddrPort(a)})
	}
	return p
}

func apply(t *testing.T, tb *Table, put []Service, del ...string) Change {
	t.Helper()
	c, err := tb.Apply(put, del)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// lookup is a TCP frontend of the present snapshot.
func lookup(tb *Table, frontend string) *FrontendEntry {
	k := MakeKey(netip.MustParseAddrPort(frontend), 6)
	return tb.Load().Lookup(&k)
}

// names are frontends as "address:port service", sorted.
func names(entries []*FrontendEntry) []string {
	out := []string{}
	for _, f := range entries {
		out = append(out, f.AddrPort.String()+" "+f.ServiceName)
	}
	slices.Sort(out)
	return out
}

func diff(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestChangeListsWhatComesAndGoes(t *testing.T) {
	tb := New(Config{})
	steps := []struct {
		name                    string
		put                     []Service
		del                     []string
		added, removed, changed []string
		number                  uint64
	}{
		{"first", []Service{tcp("a", pool("10.0.0.1:80"), "192.0.2.1:80", "192.0.2.2:80")}, nil,
			[]string{"192.0.2.1:80 a", "192.0.2.2:80 a"}, nil, nil, 1},
		{"the same again", []Service{tcp("a", pool("10.0.0.1:80"), "192.0.2.1:80", "192.0.2.2:80")}, nil, nil, nil, nil, 1},
		{"unknown deleted", nil, []string{"nobody"}, nil, nil, nil, 1},
		{"other endpoints", []Service{tcp("a", pool("10.0.0.2:80"), "192.0.2.1:80", "192.0.2.2:80")}, nil,
			nil, nil, []string{"192.0.2.1:80 a", "192.0.2.2:80 a"}, 2},
		{"one for another", []Service{tcp("a", pool("10.0.0.2:80"), "192.0.2.3:80", "192.0.2.2:80")}, nil,
			[]string{"192.0.2.3:80 a"}, []string{"192.0.2.1:80 a"}, nil, 3},
		{"renamed", []Service{tcp("b", pool("10.0.0.2:80"), "192.0.2.3:80", "192.0.2.2:80")}, []string{"a"},
			nil, nil, []string{"192.0.2.2:80 b", "192.0.2.3:80 b"}, 4},
		{"gone", nil, []string{"b"}, nil, []string{"192.0.2.2:80 b", "192.0.2.3:80 b"}, nil, 5},
	}
	for _, s := range steps {
		c := apply(t, tb, s.put, s.del...)
		diff(t, s.name+": added", names(c.Added), append([]string{}, s.added...))
		diff(t, s.name+": removed", names(c.Removed), append([]string{}, s.removed...))
		diff(t, s.name+": changed", names(c.Changed), append([]string{}, s.changed...))
		if n := tb.Load().Number(); n != s.number || c.Number() != n {
			t.Errorf("%s: snapshot %d, change %d, want %d", s.name, n, c.Number(), s.number)
		}
	}
	if s := tb.Load(); s.Frontends() != 0 || s.Services() != 0 || s.root != nil {
		t.Errorf("left over: %+v", s)
	}
}

func TestNothingIsVisibleBeforePublish(t *testing.T) {
	tb := New(Config{})
	apply(t, tb, []Service{tcp("a", pool("10.0.0.1:80"), "192.0.2.1:80")})
	before := tb.Load()
	c, err := tb.Prepare([]Service{tcp("b", pool("10.0.0.9:80"), "192.0.2.9:80")}, []string{"a"})
	if err != nil {
		t.Fatal(err)
	}
	if lookup(tb, "192.0.2.1:80") == nil || lookup(tb, "192.0.2.9:80") != nil || tb.Load() != before {
		t.Error("a prepared change is visible")
	}
	// Another change overtakes it.
	apply(t, tb, []Service{tcp("d", pool("10.0.0.4:80"), "192.0.2.4:80")})
	if err := tb.Publish(c); !errors.Is(err, ErrStale) {
		t.Errorf("publishing an overtaken change: %v", err)
	}
	if lookup(tb, "192.0.2.1:80") == nil || lookup(tb, "192.0.2.9:80") != nil || lookup(tb, "192.0.2.4:80") == nil {
		t.Error("an overtaken change was applied")
	}
	k := MakeKey(netip.MustParseAddrPort("192.0.2.1:80"), 6)
	if before.Lookup(&k).Pool.Pick(1).AddrPort != netip.MustParseAddrPort("10.0.0.1:80") {
		t.Error("an old snapshot changed")
	}
}

// Who has a frontend that two Services claim follows from the Services, not
// from what came first: nodes that announce one address must agree.
func TestTheOlderServiceHasAFrontend(t *testing.T) {
	const f = "192.0.2.1:80"
	made := func(name string, created int64) Service {
		s := tcp(name, pool("10.0.0.1:80"), f)
		s.Created = created
		return s
	}
	external := func(s Service) Service {
		s.Frontends[0].Kind = ExternalIP
		return s
	}
	for _, c := range []struct {
		name   string
		claims []Service // the first has it
	}{
		{"the older", []Service{made("z", 1), made("a", 2)}},
		{"of the same age the first by name", []Service{made("a", 2), made("z", 2)}},
		{"of unknown age the first by name", []Service{made("a", 0), made("z", 0)}},
		{"of known age before unknown", []Service{made("z", 5), made("a", 0)}},
		{"of an external IP any other", []Service{made("z", 2), external(made("a", 1))}},
		{"of external IPs the older", []Service{external(made("z", 1)), external(made("a", 2))}},
		{"of three", []Service{made("m", 1), made("a", 3), made("z", 2)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, order := range permutations(len(c.claims)) {
				one, byOne := New(Config{}), New(Config{})
				var all []Service
				for _, i := range order {
					apply(t, byOne, []Service{c.claims[i]})
					all = append(all, c.claims[i])
				}
				apply(t, one, all)
				for _, tb := range []*Table{one, byOne} {
					if e := lookup(tb, f); e == nil || e.ServiceName != c.claims[0].Name {
						t.Errorf("order %v: held by %v, want %s", order, e, c.claims[0].Name)
					}
					if n := len(tb.Conflicts()); n != len(c.claims)-1 {
						t.Errorf("order %v: %d conflicts", order, n)
					}
					for _, x := range tb.Conflicts() {
						if x.Holder != c.claims[0].Name {
							t.Errorf("order %v: conflict with %s", order, x.Holder)
						}
					}
				}
			}
		})
	}
}

// permutations are all orders of 0 to n-1.
func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var out [][]int
	for _, p := range permutations(n - 1) {
		for at := range n {
			out = append(out, slices.Insert(slices.Clone(p), at, n-1))
		}
	}
	return out
}

func TestAFrontendGoesToTheBestClaim(t *testing.T) {
	tb := New(Config{})
	const f = "192.0.2.1:80"
	holder := func(step, want string) {
		t.Helper()
		if e := lookup(tb, f); e == nil || e.ServiceName != want {
			t.Errorf("%s: held by %v, want %s", step, e, want)
		}
	}
	apply(t, tb, []Service{tcp("b", pool("10.0.0.1:80"), f), tcp("m", pool("10.0.0.2:80"), f, "192.0.2.2:80")})
	holder("b is the first by name", "b")
	c := apply(t, tb, []Service{tcp("z", pool("10.0.0.3:80"), f)})
	if len(c.Errors) != 1 || !errors.Is(c.Errors[0], ErrFrontendTaken) || c.Errors[0].Kept ||
		c.Errors[0].Error() != "service z: 192.0.2.1:80 proto 6: frontend is taken by b" {
		t.Errorf("errors %v", c.Errors)
	}
	if lookup(tb, "192.0.2.2:80") == nil {
		t.Error("the other frontend of m does not work")
	}
	c = apply(t, tb, []Service{tcp("a", pool("10.0.0.4:80"), f)})
	holder("a has a better claim", "a")
	if len(c.Errors) != 1 || c.Errors[0].Error() != "service b: 192.0.2.1:80 proto 6: frontend is taken by a" {
		t.Errorf("errors %v", c.Errors)
	}
	diff(t, "changed", names(c.Changed), []string{f + " a"})
	if len(c.Added)+len(c.Removed) != 0 {
		t.Errorf("added %v, removed %v: the steering program would lose it", names(c.Added), names(c.Removed))
	}
	var waiting []string
	for _, x := range tb.Conflicts() {
		waiting = append(waiting, x.Service+" for "+x.Holder)
	}
	diff(t, "conflicts", waiting, []string{"b for a", "m for a", "z for a"})

	apply(t, tb, []Service{tcp("m", pool("10.0.0.2:80", "10.0.0.22:80"), f, "192.0.2.2:80")})
	holder("m has other endpoints", "a")
	apply(t, tb, nil, "a")
	holder("a is gone", "b")
	apply(t, tb, nil, "b")
	holder("b is gone", "m")
	if n := lookup(tb, f).Pool.Len(); n != 2 {
		t.Errorf("m waits with an old pool of %d endpoints", n)
	}
	young := tcp("m", pool("10.0.0.2:80"), f)
	young.Created = 7
	old := tcp("z", pool("10.0.0.3:80"), f)
	old.Created = 6
	apply(t, tb, []Service{young})
	apply(t, tb, []Service{old})
	holder("z turns out to be older", "z")
	old.Created = 8 // deleted and made again
	apply(t, tb, []Service{old})
	holder("z is made anew", "m")
	apply(t, tb, []Service{tcp("m", pool("10.0.0.2:80"), "192.0.2.2:80")})
	holder("m gives it up", "z")
	young.Created, old.Created = 9, 10
	apply(t, tb, []Service{young, old})
	holder("m is back, as the youngest but z", "m")
	newer := tcp("b", pool("10.0.0.4:80"), f)
	newer.Created, young.Created = 11, 12
	apply(t, tb, []Service{newer, young})
	holder("m is made anew beside a new claim, younger than the one that waits", "z")
	apply(t, tb, nil, "b", "m")
	apply(t, tb, nil, "z")
	if lookup(tb, f) != nil || len(tb.Conflicts()) != 0 || len(tb.waiting) != 0 {
		t.Errorf("left over: %v, %v", lookup(tb, f), tb.Conflicts())
	}
}

func TestBadServiceStaysAsItWas(t *testing.T) {
	good := tcp("a", pool("10.0.0.1:80"), "192.0.2.1:80")
	mutate := func(f func(*Service)) Service {
		s := tcp("a", pool("10.0.0.7:80"), "192.0.2.1:80")
		f(&s)
		return s
	}
	for _, c := range []struct {
		bad  Service
		want string
	}{
		{mutate(func(s *Service) { s.Frontends[0].Pool = 1 }), "pool 1 of 1"},
		{mutate(func(s *Service) { s.Frontends[0].Pool = -1 }), "pool -1 of 1"},
		{mutate(func(s *Service) { s.Frontends[0].Proto = 0 }), "protocol 0"},
		{mutate(func(s *Service) { s.Frontends[0].AddrPort = netip.AddrPort{} }), "frontend 0: no address"},
		{tcp("a", pool("10.0.0.7:80"), "192.0.2.1:0"), "port 0"},
		{tcp("a", pool("10.0.0.7:0"), "192.0.2.1:80"), "endpoint 0: 10.0.0.7:0: port 0"},
		{tcp("a", pool("[fe80::1%eth0]:80"), "[2001:db8::1]:80"), "zone"},
		{tcp("a", pool("[2001:db8::1]:80"), "192.0.2.1:80"), "another address family"},
		{tcp("a", pool("[2001:db8::1]:80", "10.0.0.1:80"), "192.0.2.1:80"), "different address families"},
		{mutate(func(s *Service) { s.Listed = make([]ListedEndpoint, 1) }), "listed endpoint 0: no address"},
		{mutate(func(s *Service) {
			s.Pools = append(s.Pools, pool("10.0.0.8:80"))
			s.Frontends = append(s.Frontends, s.Frontends[0])
			s.Frontends[1].Pool = 1
		}), "named twice"},
	} {
		tb := New(Config{})
		apply(t, tb, []Service{good})
		change := apply(t, tb, []Service{c.bad, tcp("b", pool("10.0.0.3:80"), "192.0.2.3:80")})
		if len(change.Errors) != 1 || !change.Errors[0].Kept || !strings.Contains(change.Errors[0].Error(), c.want) {
			t.Errorf("errors %v, want %q", change.Errors, c.want)
		}
		if e := lookup(tb, "192.0.2.1:80"); e == nil || e.Pool.Pick(1).AddrPort.String() != "10.0.0.1:80" {
			t.Errorf("%s: the Service is not as it was", c.want)
		}
		if lookup(tb, "192.0.2.3:80") == nil {
			t.Errorf("%s: the other Service is not served", c.want)
		}
	}
}

func TestMistakesOfTheCallerAreErrors(t *testing.T) {
	tb := New(Config{})
	a := tcp("a", pool("10.0.0.1:80"), "192.0.2.1:80")
	for _, c := range []struct {
		put []Service
		del []string
	}{
		{[]Service{{}}, nil}, {[]Service{a, a}, nil}, {[]Service{a}, []string{"a"}}, {nil, []string{"b", "b"}},
	} {
		change, err := tb.Apply(c.put, c.del)
		if tb.Load().Number() != 0 || !change.Empty() {
			t.Errorf("%v: applied", c)
		}
		if err == nil && len(c.put) > 0 {
			t.Errorf("%v: no error", c)
		}
	}
}

func TestEqualPoolsShareATable(t *testing.T) {
	tb := New(Config{})
	s := Service{Name: "a"}
	for i := range 3 {
		p := Pool{Endpoints: testEndpoints(5), Tier: "all"}
		if i == 2 {
			p.OnEmpty, p.Tier = Drop, "same-zone"
		}
		s.Pools = append(s.Pools, p)
		s.Frontends = append(s.Frontends, Frontend{AddrPort: netip.AddrPortFrom(v4(i), 80), Proto: 6, Pool: i},
			Frontend{AddrPort: netip.AddrPortFrom(v4(i), 80), Proto: 17, Pool: i})
	}
	apply(t, tb, []Service{s})
	get := func(i int, proto uint8) *PoolEntry {
		k := MakeKey(netip.AddrPortFrom(v4(i), 80), proto)
		return tb.Load().Lookup(&k).Pool
	}
	if get(0, 6) != get(1, 6) {
		t.Error("equal pools are not one")
	}
	if get(0, 6) == get(2, 6) || get(0, 6) == get(0, 17) {
		t.Error("different pools are one")
	}
	for _, p := range []*PoolEntry{get(2, 6), get(0, 17), get(2, 17)} {
		if &p.slots[0] != &get(0, 6).slots[0] {
			t.Error("pools with the same endpoints have a Maglev table each")
		}
	}
	// A change of one pool leaves the others and their table.
	udp, before := get(0, 17), get(0, 6)
	s.Pools[2].Endpoints = testEndpoints(4)
	s.Pools[1].Tier = "none"
	apply(t, tb, []Service{s})
	if get(0, 6) != before || get(0, 17) != udp {
		t.Error("an unchanged pool was built anew")
	}
	if p := get(1, 6); p == before || &p.slots[0] != &before.slots[0] || p.Tier() != "none" {
		t.Error("a new tier built the Maglev table anew")
	}
	if get(2, 6).Len() != 4 {
		t.Error("the changed pool did not change")
	}
}

func TestEndpointEntrySaysTheSameInEveryForm(t *testing.T) {
	for _, c := range []struct{ frontend, endpoint string }{
		{"192.0.2.1:80", "10.1.2.3:8080"}, {"[2001:db8::1]:80", "[2001:db8:1:2:3:4:5:6]:8080"},
	} {
		tb := New(Config{})
		p := pool(c.endpoint)
		p.Endpoints[0].Local = true
		apply(t, tb, []Service{tcp("a", p, c.frontend)})
		e := lookup(tb, c.frontend).Pool.Pick(0)
		k := MakeKey(netip.MustParseAddrPort(c.endpoint), 6)
		family := uint8(4)
		raw := e.AddrPort.Addr().AsSlice()
		if len(raw) == 16 {
			family = 6
		}
		if e.W0 != k.W0 || e.W1 != k.W1 || uint64(e.Port) != k.W2&0xffff || e.Family != family ||
			!slices.Equal(e.Addr[:len(raw)], raw) || e.AddrPort.String() != c.endpoint || !e.Local || e.Weight != 1 {
			t.Errorf("%+v", e)
		}
		if e.Port != 0x901f { // 8080 = 0x1f90, in network order, loaded little-endian
			t.Errorf("port %#x", e.Port)
		}
	}
}

func TestStringsName(t *testing.T) {
	diff(t, "strings", fmt.Sprint(NodePort, LoadBalancer, ExternalIP, ClusterIP, Reject, Drop, Maglev, Random, Kind(9)),
		"NodePort LoadBalancer ExternalIP ClusterIP Reject Drop Maglev Random 9")
}
