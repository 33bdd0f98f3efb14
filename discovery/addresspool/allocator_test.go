package addresspool

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var now = time.Unix(1e9, 0)

func pools(t *testing.T, manifest ...string) []Pool {
	t.Helper()
	c := decode(manifest...)
	if len(c.Faults) > 0 {
		t.Fatal(c.Faults[0])
	}
	return c.Pools
}

func decode(specs ...string) *Config {
	var objects []Object
	for _, s := range specs {
		objects = append(objects, Object{"", []byte(s)})
	}
	return Decode(objects)
}

func poolObject(name, spec string) string {
	return `{"apiVersion":"metallb.io/v1beta1","kind":"IPAddressPool","metadata":{"name":"` + name + `","namespace":"metallb-system"},"spec":{` + spec + `}}`
}

func service(name string, created int64) *Service {
	ns, _, _ := strings.Cut(name, "/")
	return &Service{Name: name, Namespace: ns, Created: created, IPv4: true, Ports: []Port{{Protocol: "TCP", Port: 80}}}
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// reconcile gives the Service the addresses, as the controller writes them.
func reconcile(t *testing.T, a *Allocator, s *Service, reason string, want ...string) Outcome {
	t.Helper()
	out := a.Reconcile(s, now)
	if !slices.Equal(out.Addresses, addrs(want...)) || out.Reason != reason {
		t.Fatalf("%s: %v, %s %s; want %v, %s", s.Name, out.Addresses, out.Reason, out.Text, want, reason)
	}
	s.Status = out.Addresses
	return out
}

const three = `"addresses":["192.0.2.1-192.0.2.3"]`

// metallb#686, #2723: a restart, or the deletion of another Service, moves nothing.
func TestARestartMovesNoAddress(t *testing.T) {
	a := New(pools(t, poolObject("p", three)))
	one, two := service("x/one", 1), service("x/two", 2)
	reconcile(t, a, one, ReasonAllocated, "192.0.2.1")
	reconcile(t, a, two, ReasonAllocated, "192.0.2.2")
	a.Release(one.Name, now)
	a = New(pools(t, poolObject("p", three)))
	a.Adopt(two, now)
	// A Service that is seen first after the restart does not get the address of another.
	reconcile(t, a, service("x/new", 3), ReasonAllocated, "192.0.2.1")
	reconcile(t, a, two, ReasonKept, "192.0.2.2")
}

// metallb#1591: a pool that shrinks or goes away takes nothing, and gives nothing twice.
func TestAPoolThatShrinksTakesNoAddress(t *testing.T) {
	a := New(pools(t, poolObject("p", three)))
	one := service("x/one", 1)
	reconcile(t, a, one, ReasonAllocated, "192.0.2.1")
	a.SetPools(pools(t, poolObject("p", `"addresses":["192.0.2.2-192.0.2.3"]`)))
	if out := reconcile(t, a, one, ReasonOutsideOfPool, "192.0.2.1"); !strings.Contains(out.Text, "192.0.2.1 is in no pool") {
		t.Errorf("text: %s", out.Text)
	}
	a.SetPools(nil)
	reconcile(t, a, one, ReasonOutsideOfPool, "192.0.2.1")
	a.SetPools(pools(t, poolObject("other", three)))
	reconcile(t, a, service("x/two", 2), ReasonAllocated, "192.0.2.2")
}

// metallb#321, #1586, #190: what is released serves those that wait, after a rest.
func TestAReleasedAddressServesWhoWaits(t *testing.T) {
	a := New(pools(t, poolObject("p", `"addresses":["192.0.2.1/32"]`)))
	one, two := service("x/one", 1), service("x/two", 2)
	reconcile(t, a, one, ReasonAllocated, "192.0.2.1")
	if out := reconcile(t, a, two, ReasonExhausted); !out.Retry.IsZero() || !strings.Contains(out.Text, "no free IPv4 address in pool p") {
		t.Errorf("%+v", out)
	}
	if free := a.Release(one.Name, now); !slices.Equal(free, addrs("192.0.2.1")) {
		t.Errorf("released %v", free)
	}
	if out := reconcile(t, a, two, ReasonExhausted); !out.Retry.Equal(now.Add(RestTime)) {
		t.Errorf("retry at %v", out.Retry)
	}
	if u := a.Usage(now); len(u) != 1 || u[0] != (Usage{"p", "IPv4", 0, 1, 0}) {
		t.Errorf("usage %+v", u)
	}
	if out := a.Reconcile(two, now.Add(RestTime)); !slices.Equal(out.Addresses, addrs("192.0.2.1")) {
		t.Errorf("after the rest: %+v", out)
	}
	// A Service that asks for the address by name need not wait.
	a.Release(two.Name, now)
	three := service("x/three", 3)
	three.Addresses = addrs("192.0.2.1")
	reconcile(t, a, three, ReasonAllocated, "192.0.2.1")
}

func TestAnExhaustedPoolStealsNothing(t *testing.T) {
	a := New(pools(t, poolObject("p", `"addresses":["192.0.2.1/32"]`)))
	young, old := service("x/young", 9), service("x/old", 1)
	reconcile(t, a, young, ReasonAllocated, "192.0.2.1")
	reconcile(t, a, old, ReasonExhausted)
	old.Addresses = addrs("192.0.2.1")
	if out := reconcile(t, a, old, ReasonAddressInUse); !strings.Contains(out.Text, "which x/young has") {
		t.Errorf("text: %s", out.Text)
	}
	reconcile(t, a, young, ReasonKept, "192.0.2.1")
}

// Two Services with an address are found at a start: the older keeps it.
func TestOfTwoWithAnAddressTheOlderKeepsIt(t *testing.T) {
	for _, first := range []bool{true, false} {
		a := New(pools(t, poolObject("p", three)))
		old, young := service("x/old", 1), service("x/young", 2)
		old.Status, young.Status = addrs("192.0.2.1"), addrs("192.0.2.1")
		order := []*Service{old, young}
		if !first {
			order = []*Service{young, old}
		}
		var losers []string
		for _, s := range order {
			losers = append(losers, a.Adopt(s, now)...)
		}
		if !slices.Equal(losers, []string{"x/young"}) {
			t.Errorf("losers: %v", losers)
		}
		reconcile(t, a, old, ReasonKept, "192.0.2.1")
		if out := reconcile(t, a, young, ReasonAllocated, "192.0.2.2"); !slices.Equal(out.Lost, addrs("192.0.2.1")) {
			t.Errorf("lost %v", out.Lost)
		}
		// It asks for the address: it waits.
		young.Status, young.Addresses = addrs("192.0.2.1"), addrs("192.0.2.1")
		reconcile(t, a, young, ReasonConflict)
	}
}

// metallb#2635: Services of another controller are left alone, and their addresses too.
func TestForeignAddressesAreNotGiven(t *testing.T) {
	a := New(pools(t, poolObject("p", three)))
	foreign := service("x/foreign", 9)
	foreign.Foreign, foreign.Status = true, addrs("192.0.2.1")
	a.Adopt(foreign, now)
	own := service("x/own", 1)
	reconcile(t, a, own, ReasonAllocated, "192.0.2.2")
	// A status that claims the address of a Service does not move it.
	foreign.Status = addrs("192.0.2.2")
	a.Adopt(foreign, now)
	reconcile(t, a, own, ReasonClaimed, "192.0.2.2")
}

// MetalLB reads the same pools and knows nothing of other classes: it gives an address that a
// Service has already. The Service keeps it, and is told.
func TestAClaimOfAnotherControllerIsReported(t *testing.T) {
	a := New(pools(t, poolObject("p", three)))
	own, foreign := service("x/own", 2), service("x/foreign", 1)
	reconcile(t, a, own, ReasonAllocated, "192.0.2.1")
	foreign.Foreign, foreign.Status = true, addrs("192.0.2.1", "192.0.2.3")
	a.Adopt(foreign, now)
	if got := a.Claimed(foreign.Name); !slices.Equal(got, []string{"x/own"}) {
		t.Errorf("it claims addresses of %v", got)
	}
	if out := reconcile(t, a, own, ReasonClaimed, "192.0.2.1"); !strings.Contains(out.Text, "192.0.2.1") || !strings.Contains(out.Text, "x/foreign") {
		t.Errorf("text: %s", out.Text)
	}
	foreign.Status = addrs("192.0.2.3")
	a.Adopt(foreign, now)
	reconcile(t, a, own, ReasonKept, "192.0.2.1")
	if got := a.Claimed(foreign.Name); got != nil {
		t.Errorf("it claims addresses of %v", got)
	}
}

// metallb#498, #1422: pools for namespaces and for Services, by priority.
func TestServiceAllocation(t *testing.T) {
	all := []string{
		poolObject("any", `"addresses":["192.0.2.0/28"]`),
		poolObject("later", `"addresses":["192.0.2.32/28"],"serviceAllocation":{"priority":20,"namespaces":["team"]}`),
		poolObject("first", `"addresses":["192.0.2.64/28"],"avoidBuggyIPs":true,"serviceAllocation":{"priority":10,"namespaceSelectors":[{"matchLabels":{"tier":"gold"}}]}`),
		poolObject("last", `"addresses":["192.0.2.96/28"],"serviceAllocation":{"namespaces":["team"]}`),
		poolObject("db", `"addresses":["192.0.2.128/28"],"serviceAllocation":{"priority":1,"serviceSelectors":[{"matchExpressions":[{"key":"app","operator":"In","values":["db"]}]}]}`),
		poolObject("manual", `"addresses":["192.0.2.160/28"],"autoAssign":false`),
	}
	for _, c := range []struct {
		name   string
		edit   func(*Service)
		reason string
		want   []string
	}{
		{"any namespace", func(*Service) {}, ReasonAllocated, []string{"192.0.2.0"}},
		{"namespace", func(s *Service) { s.Namespace = "team" }, ReasonAllocated, []string{"192.0.2.32"}},
		{"namespace label", func(s *Service) { s.Namespace = "team"; s.NamespaceLabels = map[string]string{"tier": "gold"} }, ReasonAllocated, []string{"192.0.2.64"}},
		{"Service label", func(s *Service) { s.Namespace = "team"; s.Labels = map[string]string{"app": "db"} }, ReasonAllocated, []string{"192.0.2.128"}},
		{"asks for a pool", func(s *Service) { s.PoolName = "manual" }, ReasonAllocated, []string{"192.0.2.160"}},
		{"asks for a pool of others", func(s *Service) { s.PoolName = "later" }, ReasonNoPool, nil},
		{"asks for no pool", func(s *Service) { s.PoolName = "absent" }, ReasonUnknownPool, nil},
		{"asks for an address", func(s *Service) { s.Addresses = addrs("192.0.2.161") }, ReasonAllocated, []string{"192.0.2.161"}},
		{"asks for an address of others", func(s *Service) { s.Addresses = addrs("192.0.2.33") }, ReasonNoPool, nil},
		{"asks for an address of no pool", func(s *Service) { s.Addresses = addrs("198.51.100.1") }, ReasonNotInPool, nil},
		{"asks for an address of another pool", func(s *Service) { s.Addresses, s.PoolName = addrs("192.0.2.1"), "manual" }, ReasonNotInPool, nil},
		{"asks for an IPv6 address", func(s *Service) { s.Addresses = addrs("2001:db8::1") }, ReasonRequest, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := service("x/s", 1)
			c.edit(s)
			reconcile(t, New(pools(t, all...)), s, c.reason, c.want...)
		})
	}
}

func TestAvoidBuggyIPs(t *testing.T) {
	a := New(pools(t, poolObject("p", `"addresses":["192.0.2.254-192.0.3.1"],"avoidBuggyIPs":true`)))
	if u := a.Usage(now); u[0].Available != 2 {
		t.Errorf("usage %+v", u)
	}
	reconcile(t, a, service("x/one", 1), ReasonAllocated, "192.0.2.254")
	reconcile(t, a, service("x/two", 1), ReasonAllocated, "192.0.3.1")
	reconcile(t, a, service("x/three", 1), ReasonExhausted)
}

func TestDualStackIsBothOrPending(t *testing.T) {
	v4, v6 := `"addresses":["192.0.2.1/32"]`, `"addresses":["2001:db8::1/128"]`
	s := service("x/s", 1)
	s.IPv6 = true
	a := New(pools(t, poolObject("four", v4), poolObject("six", v6)))
	if out := reconcile(t, a, s, ReasonExhausted); !strings.Contains(out.Text, "no free pair") {
		t.Error(out.Text)
	}
	a.SetPools(pools(t, poolObject("both", `"addresses":["192.0.2.7/32","2001:db8::7/128"]`)))
	reconcile(t, a, s, ReasonAllocated, "192.0.2.7", "2001:db8::7")
	s.IPv4 = false // the Service gives up a family, and keeps the address of the other
	reconcile(t, a, s, ReasonAllocated, "2001:db8::7")
}

// A Service of a family that becomes dual-stack keeps the address.
func TestAnotherFamilyMovesNoAddress(t *testing.T) {
	a := New(pools(t, poolObject("p", three), poolObject("q", `"addresses":["192.0.2.8/32","2001:db8::8/128"]`)))
	s := service("x/s", 1)
	reconcile(t, a, s, ReasonAllocated, "192.0.2.1")
	s.IPv6 = true
	s.PoolName = ""
	a.SetPools(pools(t, poolObject("p", three)))
	reconcile(t, a, s, ReasonExhausted, "192.0.2.1")
	a.SetPools(pools(t, poolObject("p", three+`,"autoAssign":true`), poolObject("r", `"addresses":["2001:db8::8/128"]`)))
	reconcile(t, a, s, ReasonExhausted, "192.0.2.1")
	a.SetPools(pools(t, poolObject("p", `"addresses":["192.0.2.1-192.0.2.3","2001:db8::8/128"]`)))
	reconcile(t, a, s, ReasonAllocated, "192.0.2.1", "2001:db8::8")
}

func TestSharedAddresses(t *testing.T) {
	sharing := func(name, key string, port uint16) *Service {
		s := service(name, 1)
		s.SharingKey, s.Ports = key, []Port{{Protocol: "TCP", Port: port}}
		return s
	}
	a := New(pools(t, poolObject("p", three)))
	web := sharing("x/web", "k", 80)
	reconcile(t, a, web, ReasonAllocated, "192.0.2.1")
	reconcile(t, a, sharing("x/tls", "k", 443), ReasonAllocated, "192.0.2.1")
	reconcile(t, a, sharing("x/again", "k", 80), ReasonAllocated, "192.0.2.2")
	local := sharing("x/local", "k", 8080)
	local.Endpoints, local.Addresses = "app=x", addrs("192.0.2.1")
	reconcile(t, a, local, ReasonAddressInUse)
	if free := a.Release(web.Name, now); free != nil {
		t.Errorf("released %v, which another has", free)
	}
	reconcile(t, a, sharing("x/third", "k", 80), ReasonAllocated, "192.0.2.1")
}

// A change of the request moves the Service, and only a request that can be met.
func TestOnlyTheServiceItselfMoves(t *testing.T) {
	a := New(pools(t, poolObject("p", three), poolObject("q", `"addresses":["192.0.2.9/32"]`)))
	s, other := service("x/s", 1), service("x/other", 2)
	reconcile(t, a, s, ReasonAllocated, "192.0.2.1")
	reconcile(t, a, other, ReasonAllocated, "192.0.2.2")
	s.Addresses = addrs("192.0.2.2")
	reconcile(t, a, s, ReasonAddressInUse, "192.0.2.1")
	s.Addresses = addrs("192.0.2.3")
	stale := *s
	reconcile(t, a, s, ReasonAllocated, "192.0.2.3")
	// The watch has not brought the new status yet.
	reconcile(t, a, &stale, ReasonAllocated, "192.0.2.3")
	s.Addresses, s.PoolName = nil, "q"
	reconcile(t, a, s, ReasonAllocated, "192.0.2.9")
}

// An allocation that has not arrived in the status is repeated, not replaced.
func TestAnAllocationIsRepeatedUntilItIsWritten(t *testing.T) {
	a := New(pools(t, poolObject("p", three)))
	for range 3 {
		s := service("x/s", 1)
		if out := a.Reconcile(s, now); !slices.Equal(out.Addresses, addrs("192.0.2.1")) {
			t.Fatalf("%+v", out)
		}
	}
}

func TestLargePoolsAreCounted(t *testing.T) {
	a := New(pools(t, poolObject("p", `"addresses":["2001:db8::/64","192.0.2.0/24"],"avoidBuggyIPs":true`)))
	reconcile(t, a, service("x/s", 1), ReasonAllocated, "192.0.2.1")
	if u := a.Usage(now); u[0] != (Usage{"p", "IPv4", 1, 0, 253}) || u[1] != (Usage{"p", "IPv6", 0, 0, 1 << 64}) {
		t.Errorf("usage %+v", u)
	}
}

// A Service that asks for another family, and nothing else, keeps its address: also if another pool
// has both families, and if no pool has the address any more.
func TestAFamilyMoreOrLessMovesNoAddress(t *testing.T) {
	both := poolObject("q", `"addresses":["192.0.2.8/32","2001:db8::8/128"]`)
	a := New(pools(t, poolObject("p", three), both))
	s := service("x/s", 1)
	reconcile(t, a, s, ReasonAllocated, "192.0.2.1")
	s.IPv6 = true
	reconcile(t, a, s, ReasonExhausted, "192.0.2.1")
	s.PoolName = "q" // asks for the other pool
	reconcile(t, a, s, ReasonAllocated, "192.0.2.8", "2001:db8::8")

	a = New(pools(t, both))
	s = service("x/s", 1)
	s.Status = addrs("203.0.113.1")
	reconcile(t, a, s, ReasonOutsideOfPool, "203.0.113.1")
	s.IPv6 = true
	reconcile(t, a, s, ReasonAllocated, "203.0.113.1", "2001:db8::8")
	a.SetPools(nil)
	s.IPv4 = false
	reconcile(t, a, s, ReasonAllocated, "2001:db8::8")

	a = New(pools(t, poolObject("p", `"addresses":["192.0.2.0-192.0.2.3","2001:db8::8/128"]`)))
	s = service("x/s", 1)
	reconcile(t, a, s, ReasonAllocated, "192.0.2.0")
	a.SetPools(pools(t, poolObject("p", `"addresses":["192.0.2.0-192.0.2.3","2001:db8::8/128"],"avoidBuggyIPs":true`)))
	s.IPv6 = true
	reconcile(t, a, s, ReasonAllocated, "192.0.2.0", "2001:db8::8")
}

// PreferDualStack is an address of each family where a pool has both, else of the first family
// that there is. The second comes when there is one; the first stays.
func TestPreferredFamilies(t *testing.T) {
	two := func(name string) *Service {
		s := service(name, 1)
		s.IPv6, s.Prefers = true, true
		return s
	}
	four, six := poolObject("four", `"addresses":["192.0.2.1-192.0.2.2"]`), poolObject("six", `"addresses":["2001:db8::1-2001:db8::2"]`)
	a := New(pools(t, four, six))
	s := two("x/first-six")
	reconcile(t, a, s, ReasonAllocated, "2001:db8::1")
	s = two("x/first-four")
	s.First4 = true
	reconcile(t, a, s, ReasonAllocated, "192.0.2.1")
	reconcile(t, a, s, ReasonAllocated, "192.0.2.1")

	a.SetPools(pools(t, poolObject("both", `"addresses":["192.0.2.1-192.0.2.2","2001:db8::1-2001:db8::2"]`)))
	reconcile(t, a, s, ReasonAllocated, "192.0.2.1", "2001:db8::2")
	reconcile(t, a, s, ReasonKept, "192.0.2.1", "2001:db8::2")
	s = two("x/third")
	reconcile(t, a, s, ReasonAllocated, "192.0.2.2") // the IPv6 addresses are given
	s = two("x/asks")
	s.Addresses = addrs("192.0.2.1")
	reconcile(t, a, s, ReasonAddressInUse)
	s = two("x/fourth")
	reconcile(t, a, s, ReasonExhausted)
}
