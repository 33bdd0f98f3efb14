package table

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/perf/growth"
)

// manyPorts is a Service of n ports at a load balancer address, each with its own pool of the same
// endpoints. changed replaces one of them.
func manyPorts(name string, n, endpoints int, changed bool) Service {
	s := Service{Name: name}
	for i := range n {
		p := Pool{Tier: "all", SlowStart: 160}
		for j := range endpoints {
			if changed && j == 0 {
				j = endpoints
			}
			p.Endpoints = append(p.Endpoints, Endpoint{AddrPort: netip.AddrPortFrom(v4(j), 8080)})
		}
		s.Pools = append(s.Pools, p)
		s.Frontends = append(s.Frontends, Frontend{
			AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, 1}), uint16(i+1)), Proto: 6, Kind: LoadBalancer, Pool: i})
	}
	return s
}

// portWork are the changes of a Service with many ports.
var portWork = []struct {
	name string
	work func(tb testing.TB, n int) func()
}{
	{"new", func(tb testing.TB, n int) func() {
		return applying(tb, New(Config{}), manyPorts("ns/a", n, 4, false))
	}},
	{"an endpoint changes", func(tb testing.TB, n int) func() {
		t := New(Config{})
		applying(tb, t, manyPorts("ns/a", n, 4, false))()
		return applying(tb, t, manyPorts("ns/a", n, 4, true))
	}},
	{"the ports in reverse", func(tb testing.TB, n int) func() {
		t := New(Config{})
		applying(tb, t, manyPorts("ns/a", n, 4, false))()
		s := manyPorts("ns/a", n, 4, false)
		for i, j := 0, n-1; i < j; i, j = i+1, j-1 {
			s.Frontends[i], s.Frontends[j] = s.Frontends[j], s.Frontends[i]
		}
		return applying(tb, t, s)
	}},
	{"another Service holds the frontends", func(tb testing.TB, n int) func() {
		t := New(Config{})
		applying(tb, t, manyPorts("ns/a", n, 4, false))()
		return func() {
			if _, err := t.Apply([]Service{manyPorts("ns/b", n, 4, false)}, nil); err != nil {
				tb.Fatal(err)
			}
			applying(tb, t, manyPorts("ns/a", n, 4, true))()
		}
	}},
}

func applying(tb testing.TB, t *Table, s Service) func() {
	return func() {
		if c, err := t.Apply([]Service{s}, nil); err != nil || len(c.Errors) > 0 {
			tb.Fatal(err, c.Errors)
		}
	}
}

func BenchmarkPorts(b *testing.B) {
	for _, c := range portWork {
		for _, n := range []int{1000, 8000} {
			b.Run(fmt.Sprintf("%s/ports=%d", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					work := c.work(b, n)
					b.StartTimer()
					work()
				}
			})
		}
	}
}

func TestWorkGrowsInProportionToPorts(t *testing.T) {
	for _, c := range portWork {
		r := growth.Ratio(500, 4000, func(n int) func() { return c.work(t, n) })
		if r > growth.Linear(500, 4000) {
			t.Errorf("%s: 4,000 ports take %.0f times the CPU time of 500", c.name, r)
		}
	}
}

// Each author of a Service can claim what another holds: thousands may wait for a frontend.
func TestWorkGrowsInProportionToClaims(t *testing.T) {
	r := growth.Ratio(1000, 8000, func(n int) func() {
		var put []Service
		for i := range n {
			put = append(put, manyPorts(fmt.Sprintf("ns/%d", i), 1, 1, false))
		}
		return func() {
			if _, err := New(Config{}).Apply(put, nil); err != nil {
				t.Fatal(err)
			}
		}
	})
	if r > growth.Linear(1000, 8000) {
		t.Errorf("8,000 claims to a frontend take %.0f times the CPU time of 1,000", r)
	}
}

// A Service whose endpoints change all the time takes no number that another needs.
func TestChangingEndpointsLeaveNumbersToOthers(t *testing.T) {
	tick := uint32(1 << 20)
	tables := New(Config{MaxEndpoints: 1000, Tick: func() uint32 { return tick }})
	for round := range 100 {
		busy := Service{Name: "a/busy", Pools: []Pool{{}}, Frontends: []Frontend{
			{AddrPort: netip.MustParseAddrPort("198.51.100.1:80"), Proto: 6, Kind: LoadBalancer}}}
		for i := range 200 {
			busy.Pools[0].Endpoints = append(busy.Pools[0].Endpoints, Endpoint{AddrPort: netip.AddrPortFrom(v4(round*200+i), 80)})
		}
		quiet := manyPorts("b/quiet", 1, 1, round%2 == 0)
		quiet.Frontends[0].AddrPort = netip.MustParseAddrPort("198.51.100.2:80")
		applying(t, tables, busy)()
		applying(t, tables, quiet)()
		tick += 2 * ticksPerSecond
	}
	if n := len(tables.endpoints.removed); n > 1000 {
		t.Errorf("%d removed numbers are remembered", n)
	}
}
