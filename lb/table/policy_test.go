package table

import (
	"math"
	"net/netip"
	"testing"

	"github.com/valyala/fastrand"
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// published is the policy of a Service as workers see it.
func published(t *testing.T, tb *Table, p *Policy) *Policy {
	t.Helper()
	s := Service{
		Name: "ns/s", Policy: p, Pools: []Pool{{Endpoints: testEndpoints(1)}},
		Frontends: []Frontend{{AddrPort: netip.MustParseAddrPort("192.0.2.1:80"), Proto: 6, Kind: LoadBalancer}},
	}
	if _, err := tb.Apply([]Service{s}, nil); err != nil {
		t.Fatal(err)
	}
	for f := range tb.Load().All() {
		return f.Policy
	}
	return nil
}

func TestSourceRanges(t *testing.T) {
	p := published(t, New(Config{}), &Policy{SourceRanges: prefixes("192.0.2.0/24", "198.51.100.7/32", "2001:db8::/32")})
	only4 := published(t, New(Config{}), &Policy{SourceRanges: prefixes("192.0.2.0/24")})
	for _, test := range []struct {
		p      *Policy
		kind   Kind
		client string
		want   bool
	}{
		{p, LoadBalancer, "192.0.2.255", true},
		{p, LoadBalancer, "198.51.100.7", true},
		{p, LoadBalancer, "198.51.100.8", false},
		{p, LoadBalancer, "2001:db8:ffff::1", true},
		{p, LoadBalancer, "2001:db9::1", false},
		{p, NodePort, "198.51.100.8", true},
		{p, ExternalIP, "198.51.100.8", true},
		{p, ClusterIP, "198.51.100.8", true},
		{only4, LoadBalancer, "203.0.113.1", false},
		{only4, LoadBalancer, "2001:db9::1", true},
		{nil, LoadBalancer, "203.0.113.1", true},
	} {
		if got := test.p.Admits(test.kind, netip.MustParseAddr(test.client)); got != test.want {
			t.Errorf("%v from %s: %v", test.kind, test.client, got)
		}
	}
}

func TestAPolicyThatIsTheSameStaysTheSame(t *testing.T) {
	tb := New(Config{})
	a := published(t, tb, &Policy{SourceRanges: prefixes("192.0.2.0/24"), MaxConnections: 5})
	if b := published(t, tb, &Policy{SourceRanges: prefixes("192.0.2.0/24"), MaxConnections: 5}); a != b {
		t.Error("an equal policy was published anew")
	}
	c := published(t, tb, &Policy{SourceRanges: prefixes("192.0.2.0/24"), MaxConnections: 6})
	if a == c || c.MaxConnections != 6 {
		t.Error("another policy was not published")
	}
	if published(t, tb, nil) != nil {
		t.Error("no policy was not published")
	}
}

func TestNewConnectionsPerSecond(t *testing.T) {
	tb := New(Config{})
	taken := func(p *Policy, tick uint32) (n int) {
		for range 1000 {
			if p.TakeConnection(tick) {
				n++
			}
		}
		return n
	}
	p := published(t, tb, &Policy{NewConnectionsPerSecond: 10})
	for _, step := range []struct {
		tick uint32
		want int
	}{{1000, 10}, {1000, 0}, {1000 + ticksPerSecond, 10}, {1000 + 2*ticksPerSecond - 1, 9}, {1000 + 2*ticksPerSecond, 1}, {1000 + 20*ticksPerSecond, 10}, {1000, 0}} {
		if n := taken(p, step.tick); n != step.want {
			t.Errorf("at tick %d: %d connections, want %d", step.tick, n, step.want)
		}
	}
	// Another rate goes on from where the last one was.
	now := uint32(1000 + 20*ticksPerSecond)
	if p = published(t, tb, &Policy{NewConnectionsPerSecond: 20}); taken(p, now) != 0 {
		t.Error("a change of the rate gave a new burst")
	}
	one := published(t, New(Config{}), &Policy{NewConnectionsPerSecond: 1})
	if n := taken(one, 0); n != 1 {
		t.Errorf("one per second: %d at once", n)
	}
	late := published(t, New(Config{}), &Policy{NewConnectionsPerSecond: 10})
	if n := taken(late, 1<<31+5); n != 10 {
		t.Errorf("in a table that is four years old: %d at once", n)
	}
	most := published(t, New(Config{}), &Policy{NewConnectionsPerSecond: 1 << 30})
	if n := taken(most, 1<<32-1); n != 1000 {
		t.Errorf("the highest rate: %d of 1000", n)
	}
	none := &Policy{}
	if n := taken(none, 0); n != 1000 {
		t.Errorf("no limit: %d of 1000", n)
	}
}

// startPool publishes pools with n endpoints, one after the other, and returns
// the last one.
func startPool(t *testing.T, tick *uint32, algorithm Algorithm, sizes ...int) *PoolEntry {
	t.Helper()
	tb := New(Config{Tick: func() uint32 { return *tick }})
	for _, n := range sizes {
		s := Service{
			Name:      "ns/s",
			Pools:     []Pool{{Endpoints: testEndpoints(n), Algorithm: algorithm, SlowStart: 1600}},
			Frontends: []Frontend{{AddrPort: netip.MustParseAddrPort("192.0.2.1:80"), Proto: 6}},
		}
		if _, err := tb.Apply([]Service{s}, nil); err != nil {
			t.Fatal(err)
		}
		*tick += 1000000
	}
	*tick -= 1000000
	for f := range tb.Load().All() {
		return f.Pool
	}
	return nil
}

func TestANewEndpointStartsSlowly(t *testing.T) {
	for _, algorithm := range []Algorithm{Maglev, Random} {
		tick := uint32(5)
		p := startPool(t, &tick, algorithm, 3, 4)
		var rng fastrand.RNG
		fresh := p.Endpoints()[3].AddrPort
		const flows = 40000
		for _, test := range []struct {
			age  uint32
			part float64 // its weight beside three of 1
		}{{0, 0.05}, {400, 0.25}, {800, 0.5}, {1599, 1}, {1600, 1}, {1 << 30, 1}} {
			n := 0
			for i := range flows {
				w := [5]uint64{uint64(i), 1, 2, 3, 4}
				if p.Select(&w, &rng, tick+test.age).AddrPort == fresh {
					n++
				}
			}
			if got, want := float64(n)/flows, test.part/(3+test.part); math.Abs(got-want) > 0.01 {
				t.Errorf("%v, after %d ticks: %.3f of the flows, want %.3f", algorithm, test.age, got, want)
			}
			if got := float64(p.Share(&p.Endpoints()[3], tick+test.age)) / fullPart; math.Abs(got-test.part) > 0.001 {
				t.Errorf("%v, after %d ticks: weighs %.3f, want %.3f", algorithm, test.age, got, test.part)
			}
		}
	}
}

func TestSlowStartIsNotForAFirstPool(t *testing.T) {
	for _, sizes := range [][]int{{4}, {0, 4}} {
		tick := uint32(5)
		p := startPool(t, &tick, Maglev, sizes...)
		if p.startsSlowly(tick) {
			t.Errorf("pools %v: endpoints start slowly with nobody to relieve them", sizes)
		}
	}
	tick := uint32(5)
	p := startPool(t, &tick, Maglev, 3, 4, 5)
	if p.endpoints[3].since != 0 || p.endpoints[4].since == 0 {
		t.Errorf("since %d and %d: the older one has started long ago", p.endpoints[3].since, p.endpoints[4].since)
	}
}

func TestSlowStartChoosesAlikeOnNodesOfOneAge(t *testing.T) {
	tickA, tickB := uint32(5), uint32(77777)
	a, b := startPool(t, &tickA, Maglev, 3, 4), startPool(t, &tickB, Maglev, 3, 4)
	for i := range 1000 {
		w := [5]uint64{uint64(i), 1, 2, 3, 4}
		if a.Select(&w, nil, tickA+500).AddrPort != b.Select(&w, nil, tickB+500).AddrPort {
			t.Fatal("two nodes choose differently")
		}
	}
}

func TestEndpointsAreFoundByNumber(t *testing.T) {
	p := testPool(t, Pool{Endpoints: testEndpoints(9), AffinitySeconds: 10})
	for i := range p.Endpoints() {
		e := &p.Endpoints()[i]
		if p.Find(e.ID) != e {
			t.Errorf("endpoint %d is not found", e.ID)
		}
	}
	if p.Find(0) != nil || p.Find(1000) != nil {
		t.Error("a number of none is found")
	}
}

func TestAffinityIsOfAServicePort(t *testing.T) {
	tb := New(Config{})
	at := func(name, addr string, proto uint8, port uint16) Service {
		return Service{
			Name: name, Pools: []Pool{{Endpoints: testEndpoints(2), AffinitySeconds: 9}},
			Frontends: []Frontend{{AddrPort: netip.MustParseAddrPort(addr), Proto: proto, Port: port}},
		}
	}
	a := at("ns/a", "192.0.2.1:80", 6, 80)
	a.Frontends = append(a.Frontends, Frontend{AddrPort: netip.MustParseAddrPort("192.0.2.9:30080"), Proto: 6, Port: 80, Kind: NodePort})
	a.Frontends = append(a.Frontends, Frontend{AddrPort: netip.MustParseAddrPort("192.0.2.1:443"), Proto: 6, Port: 443})
	if _, err := tb.Apply([]Service{a, at("ns/b", "192.0.2.2:80", 6, 80)}, nil); err != nil {
		t.Fatal(err)
	}
	keyOf := func(addr string, proto uint8) [3]uint64 {
		k := MakeKey(netip.MustParseAddrPort(addr), proto)
		return tb.Load().Lookup(&k).AffinityKey(&[5]uint64{1})
	}
	web := keyOf("192.0.2.1:80", 6)
	if keyOf("192.0.2.9:30080", 6) != web {
		t.Error("the node port does not share the affinity of its Service port")
	}
	if keyOf("192.0.2.1:443", 6) == web || keyOf("192.0.2.2:80", 6) == web {
		t.Error("another port or Service shares the affinity")
	}
}

func TestRemovalIsKnownByServiceNumber(t *testing.T) {
	tb := New(Config{})
	serve := func(name string, r Removal) uint32 {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, name[3]}), 80)
		s := Service{Name: name, Policy: &Policy{OnRemoval: r}, Pools: []Pool{{Endpoints: testEndpoints(1)}}, Frontends: []Frontend{{AddrPort: addr, Proto: 6}}}
		if _, err := tb.Apply([]Service{s}, nil); err != nil {
			t.Fatal(err)
		}
		k := MakeKey(addr, 6)
		return tb.Load().Lookup(&k).ServiceID
	}
	a := serve("ns/a", Keep)
	if tb.AnyRemoval() || tb.Removal(a) != Keep || tb.Removal(1<<31) != Keep {
		t.Error("flows are not kept to begin with")
	}
	b, c := serve("ns/b", ResetFlows), serve("ns/c", DropFlows)
	if !tb.AnyRemoval() || tb.Removal(a) != Keep || tb.Removal(b) != ResetFlows || tb.Removal(c) != DropFlows {
		t.Errorf("%v, %v, %v", tb.Removal(a), tb.Removal(b), tb.Removal(c))
	}
	// A Service that is gone wants for its flows what it wanted.
	if _, err := tb.Apply(nil, []string{"ns/b"}); err != nil || tb.Removal(b) != ResetFlows {
		t.Errorf("%v, after it is gone %v", err, tb.Removal(b))
	}
	if serve("ns/c", Keep); tb.Removal(c) != Keep {
		t.Errorf("after a change %v", tb.Removal(c))
	}
}
