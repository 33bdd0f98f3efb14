package routes_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/routes"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

var (
	cfg  = routes.Config{Table: 177, Protocol: 119, RestoreEvery: 20 * time.Millisecond}
	vip4 = netip.MustParsePrefix("10.99.0.10/32")
	net4 = netip.MustParsePrefix("10.98.0.0/24")
	vip6 = netip.MustParsePrefix("fd99::10/128")
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newFleet(t *testing.T) *netlab.Fleet {
	t.Helper()
	labtest.Require(t)
	f, err := netlab.NewFleet(1)
	must(t, err)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// in runs f in the namespace of the node.
func in(t *testing.T, f *netlab.Fleet, do func() error) {
	t.Helper()
	must(t, f.Nodes[0].Do(do))
}

func set(t *testing.T, f *netlab.Fleet, s *routes.Speaker, want ...netip.Prefix) {
	t.Helper()
	var list []announce.Route
	for _, p := range want {
		list = append(list, announce.Route{Prefix: p})
	}
	in(t, f, func() error { return s.Set(list) })
}

func newSpeaker(t *testing.T, f *netlab.Fleet) (s *routes.Speaker) {
	t.Helper()
	in(t, f, func() (err error) { s, err = routes.New(cfg); return err })
	t.Cleanup(func() { must(t, s.Leave()) })
	return s
}

// table are the prefixes of all routes in the table.
func table(t *testing.T, f *netlab.Fleet) (out []string) {
	t.Helper()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := f.Nodes[0].Netlink().RouteListFiltered(family, &netlink.Route{Table: cfg.Table}, netlink.RT_FILTER_TABLE)
		must(t, err)
		for _, r := range list {
			out = append(out, r.Dst.String())
		}
	}
	slices.Sort(out)
	return out
}

// The table has the announced routes, and keeps those of others. The next process finds what the
// last one has left.
func TestWireTableHasTheAnnouncedRoutes(t *testing.T) {
	f := newFleet(t)
	lo, err := f.Nodes[0].Interface("lo")
	must(t, err)
	_, other, _ := net.ParseCIDR("10.97.0.0/16")
	must(t, f.Nodes[0].Netlink().RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: other, Table: cfg.Table, Protocol: 4, Scope: netlink.SCOPE_LINK}))
	check := func(want ...netip.Prefix) {
		t.Helper()
		texts := []string{other.String()}
		for _, p := range want {
			texts = append(texts, p.String())
		}
		slices.Sort(texts)
		if got := table(t, f); !slices.Equal(got, texts) {
			t.Errorf("table %v, want %v", got, texts)
		}
	}
	s := newSpeaker(t, f)
	set(t, f, s, vip4, net4, vip6)
	check(vip4, net4, vip6)
	set(t, f, s, vip4, vip6)
	check(vip4, vip6)

	in(t, f, s.Leave)
	next := newSpeaker(t, f)
	if got := next.Adopted(); len(got) != 2 || !slices.Contains(got, vip4) || !slices.Contains(got, vip6) {
		t.Errorf("adopted %v", got)
	}
	set(t, f, next, vip4)
	check(vip4)

	in(t, f, func() error { return routes.Cleanup(cfg) })
	check()
	set(t, f, next) // a route that is gone can be withdrawn
	set(t, f, next, vip6)
	check(vip6)
	in(t, f, next.Close)
	check()
}

// A route of another program to the same prefix stays. That of Weir is an error until it is gone.
func TestWireRoutesOfOthersAreNotReplaced(t *testing.T) {
	f := newFleet(t)
	lo, err := f.Nodes[0].Interface("lo")
	must(t, err)
	_, dst, _ := net.ParseCIDR(vip4.String())
	other := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Table: cfg.Table, Protocol: 4, Scope: netlink.SCOPE_LINK}
	must(t, f.Nodes[0].Netlink().RouteAdd(other))
	s := newSpeaker(t, f)
	want := []announce.Route{{Prefix: vip4}, {Prefix: vip6}}
	if err := s.Set(want); err == nil || !strings.Contains(err.Error(), "announce 10.99.0.10/32 in table 177: file exists") {
		t.Errorf("error %v", err)
	}
	if got := table(t, f); len(got) != 2 {
		t.Errorf("table %v", got)
	}
	must(t, s.Set(nil))
	if got := table(t, f); !slices.Equal(got, []string{vip4.String()}) {
		t.Errorf("the other's route is gone: %v", got)
	}
	must(t, f.Nodes[0].Netlink().RouteDel(other))
	must(t, s.Set(want))
}

// Routes come back after somebody has removed them.
func TestWireRemovedRoutesComeBack(t *testing.T) {
	f := newFleet(t)
	s := newSpeaker(t, f)
	must(t, s.Set([]announce.Route{{Prefix: vip4}, {Prefix: vip6}}))
	lo, err := f.Nodes[0].Interface("lo")
	must(t, err)
	must(t, f.Nodes[0].Netlink().LinkSetDown(lo))
	must(t, f.Nodes[0].Netlink().LinkSetUp(lo))
	for deadline := time.Now().Add(patience.For(10 * time.Second)); len(table(t, f)) != 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("table %v", table(t, f))
		}
	}
	must(t, s.Leave())
	if got := table(t, f); len(got) != 2 {
		t.Errorf("table %v", got)
	}
}

// A router follows the table by way of FRR and BIRD on the node.
func TestWireRoutingDaemonsRedistribute(t *testing.T) {
	hop4 := netlab.Host4(netlab.FleetNet, netlab.FleetRouter)
	hop6 := netlab.Host6(netlab.FleetNet, netlab.FleetRouter)
	for _, c := range []struct {
		name  string
		start func(*netlab.Fleet) (*router.Router, error)
		want  []netip.Prefix
	}{
		{"FRR", func(f *netlab.Fleet) (*router.Router, error) {
			return router.StartFRR(f.Nodes[0], f.Dir(), router.FRRBeside(cfg.Table, hop4))
		}, []netip.Prefix{vip4}},
		{"BIRD", func(f *netlab.Fleet) (*router.Router, error) {
			return router.StartBIRD(f.Nodes[0], f.Dir(), router.BIRDBeside(cfg.Table, hop4, hop6))
		}, []netip.Prefix{vip4, vip6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t)
			for _, err := range []error{router.FRRAvailable(), router.BIRDAvailable()} {
				if err != nil {
					labtest.Skip(t, err)
				}
			}
			ranges := []netip.Prefix{netip.MustParsePrefix("10.60.0.0/24"), netip.MustParsePrefix("fd60::/64")}
			r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Ranges: ranges}))
			must(t, err)
			beside, err := c.start(f)
			must(t, err)
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(r.Log(), beside.Log())
				}
			})
			s := newSpeaker(t, f)
			set(t, f, s, c.want...)
			for _, p := range c.want {
				untilHops(t, f, p, 1)
			}
			set(t, f, s)
			for _, p := range c.want {
				untilHops(t, f, p, 0)
			}
		})
	}
}

// untilHops waits until the router has a number of next hops to a prefix.
func untilHops(t *testing.T, f *netlab.Fleet, p netip.Prefix, want int) {
	t.Helper()
	for deadline := time.Now().Add(patience.For(30 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		hops, err := router.NextHops(f.Router, p)
		must(t, err)
		if len(hops) == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v has next hops %v, want %d", p, hops, want)
		}
	}
}
