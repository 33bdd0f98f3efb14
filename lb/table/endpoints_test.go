package table

import (
	"errors"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// clock is a Tick that stands until it is set, and a flow table that is asked who is in use.
type clock struct {
	now   uint32
	inUse map[uint32]bool
}

func (c *clock) config(maxEndpoints int) Config {
	c.inUse = make(map[uint32]bool)
	return Config{
		Tick:         func() uint32 { return c.now },
		InUse:        func(n uint32) bool { return c.inUse[n] },
		MaxEndpoints: maxEndpoints,
	}
}

// number returns the endpoint's number in port 80 of Service a.
func number(t *testing.T, tb *Table, endpoint string) uint32 {
	t.Helper()
	return numberOf(t, tb, "a", 80, endpoint, 6)
}

func numberOf(t *testing.T, tb *Table, service string, port uint16, endpoint string, proto uint8) uint32 {
	t.Helper()
	n, ok := tb.endpoints.byKey[makeEndpointKey(servicePort(service, port, proto), netip.MustParseAddrPort(endpoint), proto)]
	if !ok {
		t.Fatalf("%s has no number in %s", endpoint, service)
	}
	return n
}

func TestEndpointKeepsItsNumber(t *testing.T) {
	c := clock{now: 100}
	tb := New(c.config(0))
	const e1, e2, f = "10.0.0.1:80", "10.0.0.2:80", "192.0.2.1:80"
	apply(t, tb, []Service{tcp("a", pool(e1, e2), f)})
	n1, n2 := number(t, tb, e1), number(t, tb, e2)
	if n1 == 0 || n2 == 0 || n1 == n2 {
		t.Fatalf("numbers %d, %d", n1, n2)
	}
	if ap, proto, ok := tb.Endpoint(n1); !ok || ap.String() != e1 || proto != 6 {
		t.Errorf("number %d is %v %d %v", n1, ap, proto, ok)
	}
	if _, gone := tb.EndpointRemoved(n1); gone {
		t.Error("gone while in a pool")
	}
	c.now = 200
	apply(t, tb, []Service{tcp("a", pool(e2), f)})
	if since, gone := tb.EndpointRemoved(n1); !gone || since != 200 {
		t.Errorf("gone %v since %d, want since 200", gone, since)
	}
	if _, gone := tb.EndpointRemoved(n2); gone || tb.PresentEndpoints() != 1 {
		t.Errorf("the other: gone %v; %d present", gone, tb.PresentEndpoints())
	}
	c.now = 300
	apply(t, tb, []Service{tcp("a", pool(e1, e2), f)})
	if _, gone := tb.EndpointRemoved(n1); gone || number(t, tb, e1) != n1 {
		t.Error("did not come back under its number")
	}
	apply(t, tb, nil, "a")
	apply(t, tb, []Service{tcp("a", pool(e1), f)})
	if _, gone := tb.EndpointRemoved(n1); gone || number(t, tb, e1) != n1 {
		t.Error("did not come back with its Service under its number")
	}
}

// numberIn returns the endpoint's number in the pool of a TCP frontend.
func numberIn(t *testing.T, tb *Table, frontend, endpoint string) uint32 {
	t.Helper()
	for _, e := range lookup(tb, frontend).Pool.Endpoints() {
		if e.AddrPort.String() == endpoint {
			return e.ID
		}
	}
	t.Fatalf("%s has no endpoint %s", frontend, endpoint)
	return 0
}

func TestAnEndpointIsGoneFromTheServicePortThatItLeaves(t *testing.T) {
	const shared, other, f80, f81, g80 = "10.0.0.1:8080", "10.0.0.2:8080", "192.0.2.1:80", "192.0.2.1:81", "192.0.2.2:80"
	// Service a has two ports with a pool each, b one.
	a := func(first, second Pool) Service {
		s := tcp("a", first, f80, f81)
		s.Pools = append(s.Pools, second)
		s.Frontends[1].Pool = 1
		return s
	}
	both := pool(shared, other)
	for name, c := range map[string]struct {
		put              []Service
		del              []string
		first, second, b bool // what is gone
	}{
		"another Service lists it":     {put: []Service{a(pool(other), pool(other))}, first: true, second: true},
		"another port lists it":        {put: []Service{a(pool(other), both)}, first: true},
		"the Service is deleted":       {del: []string{"a"}, first: true, second: true},
		"the port is deleted":          {put: []Service{tcp("a", both, f80)}, second: true},
		"the other Service is deleted": {del: []string{"b"}, b: true},
		"it is listed without a pool": {put: []Service{func() Service {
			s := a(pool(other), pool(other))
			s.Listed = []ListedEndpoint{{AddrPort: netip.MustParseAddrPort(shared), Proto: 6, Port: 81}}
			return s
		}()}, first: true},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clock{now: 100}
			tb := New(clock.config(0))
			apply(t, tb, []Service{a(both, both), tcp("b", pool(shared), g80)})
			numbers := []uint32{numberIn(t, tb, f80, shared), numberIn(t, tb, f81, shared), numberIn(t, tb, g80, shared)}
			clock.now = 200
			apply(t, tb, c.put, c.del...)
			for i, want := range []bool{c.first, c.second, c.b} {
				if since, gone := tb.EndpointRemoved(numbers[i]); gone != want || gone && since != 200 {
					t.Errorf("%s: gone %v since %d, want %v", []string{f80, f81, g80}[i], gone, since, want)
				}
			}
			// All come back under the numbers that flows name.
			apply(t, tb, []Service{a(both, both), tcp("b", pool(shared), g80)})
			for i, f := range []string{f80, f81, g80} {
				if _, gone := tb.EndpointRemoved(numbers[i]); gone || numberIn(t, tb, f, shared) != numbers[i] {
					t.Errorf("%s: did not come back", f)
				}
			}
			if tb.AnyEndpointRemoved() {
				t.Error("something is still gone")
			}
		})
	}
}

func TestListedEndpointIsNotGone(t *testing.T) {
	var c clock
	tb := New(c.config(0))
	const e1, e2, f = "10.0.0.1:80", "10.0.0.2:80", "192.0.2.1:80"
	s := tcp("a", pool(e1, e2), f)
	apply(t, tb, []Service{s})
	n1 := number(t, tb, e1)
	s.Pools[0] = pool(e2)
	s.Listed = []ListedEndpoint{{AddrPort: netip.MustParseAddrPort(e1), Proto: 6}}
	apply(t, tb, []Service{s})
	if _, gone := tb.EndpointRemoved(n1); gone {
		t.Error("an endpoint that is listed is gone")
	}
	s.Listed = nil
	if change := apply(t, tb, []Service{s}); change.Empty() {
		t.Error("no publication")
	}
	if _, gone := tb.EndpointRemoved(n1); !gone {
		t.Error("an endpoint that nobody lists is not gone")
	}
}

func TestNumberIsGivenAgainOnlyWhenNothingNamesIt(t *testing.T) {
	var c clock
	tb := New(c.config(2))
	const f = "192.0.2.1:80"
	apply(t, tb, []Service{tcp("a", pool("10.0.0.1:80", "10.0.0.2:80"), f)})
	n1 := number(t, tb, "10.0.0.1:80")
	c.inUse[n1] = true
	apply(t, tb, []Service{tcp("a", pool("10.0.0.2:80"), f)})
	full := func(step string) {
		t.Helper()
		change := apply(t, tb, []Service{tcp("a", pool("10.0.0.2:80", "10.0.0.3:80"), f)})
		if len(change.Errors) != 1 || !errors.Is(change.Errors[0], ErrTooManyEndpoints) || !change.Errors[0].Kept {
			t.Errorf("%s: %v", step, change.Errors)
		}
	}
	full("a flow names it")
	c.now = 2 * quarantineTicks
	full("a flow still names it")
	c.inUse[n1] = false
	apply(t, tb, []Service{tcp("a", pool("10.0.0.2:80", "10.0.0.3:80"), f)})
	if n := number(t, tb, "10.0.0.3:80"); n != n1 {
		t.Errorf("number %d, want %d", n, n1)
	}
	if ap, _, _ := tb.Endpoint(n1); ap.String() != "10.0.0.3:80" {
		t.Errorf("number %d is still that of %v", n1, ap)
	}
	if _, gone := tb.EndpointRemoved(n1); gone {
		t.Error("the new endpoint is gone")
	}
}

func TestGoneNumberRests(t *testing.T) {
	var c clock
	tb := New(c.config(1))
	apply(t, tb, []Service{tcp("a", pool("10.0.0.1:80"), "192.0.2.1:80")})
	apply(t, tb, nil, "a")
	c.now = shortQuarantineTicks - 1
	if change := apply(t, tb, []Service{tcp("b", pool("10.0.0.2:80"), "192.0.2.2:80")}); len(change.Errors) != 1 {
		t.Error("a number was given again at once")
	}
	c.now = shortQuarantineTicks
	if change := apply(t, tb, []Service{tcp("b", pool("10.0.0.2:80"), "192.0.2.2:80")}); len(change.Errors) != 0 {
		t.Error(change.Errors)
	}
}

func TestDroppedChangeLosesNoNumbers(t *testing.T) {
	var c clock
	tb := New(c.config(3))
	for i := range 20 {
		p := Pool{Endpoints: []Endpoint{{AddrPort: netip.AddrPortFrom(v4(i), 80)}, {AddrPort: netip.AddrPortFrom(v4(100+i), 80)}}}
		put := []Service{tcp("a", p, "192.0.2.1:80")}
		change, err := tb.Prepare(put, nil)
		if err != nil || len(change.Errors) != 0 {
			t.Fatal(i, err, change.Errors)
		}
	}
	if n := len(tb.serviceIDs.names); n > 30 {
		t.Errorf("%d Service numbers", n)
	}
}

func TestRestoredEndpointIsGoneUntilListed(t *testing.T) {
	c := clock{now: 7}
	tb := New(c.config(0))
	const e1, e2, f = "10.0.0.1:80", "10.0.0.2:80", "192.0.2.1:80"
	apply(t, tb, []Service{tcp("a", pool(e2), f)})
	n1, err := tb.RestoreEndpoint(lookup(tb, f), netip.MustParseAddrPort(e1), 6)
	if err != nil {
		t.Fatal(err)
	}
	if since, gone := tb.EndpointRemoved(n1); !gone || since != 7 {
		t.Errorf("restored: gone %v since %d", gone, since)
	}
	c.now = 9
	if n, err := tb.RestoreEndpoint(lookup(tb, f), netip.MustParseAddrPort(e1), 6); n != n1 || err != nil {
		t.Errorf("restored again: %d, %v", n, err)
	}
	if since, _ := tb.EndpointRemoved(n1); since != 7 {
		t.Errorf("gone since %d", since)
	}
	n2, err := tb.RestoreEndpoint(lookup(tb, f), netip.MustParseAddrPort(e2), 6)
	if _, gone := tb.EndpointRemoved(n2); gone || err != nil || n2 != number(t, tb, e2) {
		t.Errorf("a listed endpoint: %d, gone %v, %v", n2, gone, err)
	}
	apply(t, tb, []Service{tcp("a", pool(e1, e2), f)})
	if _, gone := tb.EndpointRemoved(n1); gone || number(t, tb, e1) != n1 {
		t.Error("still gone when listed")
	}
}

// After a restart a flow's endpoint may be listed by another Service alone, and the
// flow's frontend may be gone.
func TestRestoredEndpointIsThatOfTheFlowsServicePort(t *testing.T) {
	c := clock{now: 7}
	tb := New(c.config(0))
	const shared, other, f, g = "10.0.0.1:80", "10.0.0.2:80", "192.0.2.1:80", "192.0.2.2:80"
	apply(t, tb, []Service{tcp("a", pool(other), f), tcp("b", pool(shared), g)})
	for name, c := range map[string]struct {
		frontend *FrontendEntry
		gone     bool
	}{"of the Service that lists it": {lookup(tb, g), false}, "of another": {lookup(tb, f), true}, "of none": {nil, true}} {
		n, err := tb.RestoreEndpoint(c.frontend, netip.MustParseAddrPort(shared), 6)
		if err != nil {
			t.Fatal(err)
		}
		if _, gone := tb.EndpointRemoved(n); gone != c.gone {
			t.Errorf("%s: gone %v", name, gone)
		}
	}
}

func TestGoneOfUnknownNumbers(t *testing.T) {
	tb := New(Config{MaxEndpoints: 10})
	for _, n := range []uint32{0, 1, 10, 11, 1 << 20, ^uint32(0)} {
		if _, gone := tb.EndpointRemoved(n); gone {
			t.Errorf("number %d is gone", n)
		}
		if _, _, ok := tb.Endpoint(n); ok {
			t.Errorf("number %d is an endpoint", n)
		}
	}
}

// Whatever Services, ports and endpoints come and go: a number that a flow may name is
// gone exactly while its Service port does not have the endpoint.
func TestGoneIsWhatTheServicePortLacks(t *testing.T) {
	const services, ports, endpoints = 3, 2, 4
	type seen struct {
		service, port, endpoint int
	}
	rapid.Check(t, func(r *rapid.T) {
		c := clock{now: 1}
		tb := New(c.config(0))
		addr := func(i int) netip.AddrPort { return netip.AddrPortFrom(v4(i), 8080) }
		numbers := map[seen]uint32{}
		has := map[seen]bool{}
		for range rapid.IntRange(1, 20).Draw(r, "steps") {
			n := rapid.IntRange(0, services-1).Draw(r, "service")
			name := string(rune('a' + n))
			for k := range has {
				if k.service == n {
					delete(has, k)
				}
			}
			c.now++
			if rapid.IntRange(0, 4).Draw(r, "delete") == 0 {
				if _, err := tb.Apply(nil, []string{name}); err != nil {
					r.Fatal(err)
				}
			} else {
				s := Service{Name: name}
				for p := range ports {
					var pool Pool
					for e := range endpoints {
						switch rapid.IntRange(0, 2).Draw(r, "endpoint") {
						case 0:
							continue
						case 1:
							pool.Endpoints = append(pool.Endpoints, Endpoint{AddrPort: addr(e)})
						default:
							s.Listed = append(s.Listed, ListedEndpoint{AddrPort: addr(e), Proto: 6, Port: uint16(80 + p)})
						}
						has[seen{n, p, e}] = true
					}
					s.Pools = append(s.Pools, pool)
					s.Frontends = append(s.Frontends, Frontend{AddrPort: netip.AddrPortFrom(v4(100+n), uint16(80+p)), Proto: 6, Pool: p})
				}
				if change, err := tb.Apply([]Service{s}, nil); err != nil || len(change.Errors) != 0 {
					r.Fatal(err, change.Errors)
				}
			}
			for k := range has {
				key := makeEndpointKey(servicePort(string(rune('a'+k.service)), uint16(80+k.port), 6), addr(k.endpoint), 6)
				number := tb.endpoints.byKey[key]
				c.inUse[number] = true // a flow names it from now on
				if was, known := numbers[k]; number == 0 || known && was != number {
					r.Fatalf("%+v had number %d, has %d", k, was, number)
				}
				numbers[k] = number
			}
			for k, number := range numbers {
				if _, gone := tb.EndpointRemoved(number); gone == has[k] {
					r.Fatalf("%+v: gone %v, listed %v", k, gone, has[k])
				}
			}
			if tb.AnyEndpointRemoved() != (len(has) < len(numbers)) {
				r.Fatalf("AnyGone %v with %d of %d there", tb.AnyEndpointRemoved(), len(has), len(numbers))
			}
		}
	})
}
