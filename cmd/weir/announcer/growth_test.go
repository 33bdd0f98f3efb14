package announcer

import (
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/perf/growth"
)

func TestLingeringGrowsInProportionToPorts(t *testing.T) {
	prepare := func(n int) func() {
		a := table.Service{Name: "ns/many", Pools: []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: netip.MustParseAddrPort("10.0.0.1:80")}}}}}
		for port := range uint16(n) {
			a.Frontends = append(a.Frontends, table.Frontend{
				AddrPort: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.1"), port+1), Proto: 6, Kind: table.LoadBalancer, Port: port + 1,
			})
		}
		tables := table.New(table.Config{})
		if _, err := tables.Apply([]table.Service{a}, nil); err != nil {
			t.Fatal(err)
		}
		had, none := frontendsOf(&a), a
		none.Pools = []table.Pool{{}}
		return func() {
			var l lingering
			l.time.Store(int64(time.Hour))
			l.follow([]announce.Decision{{Address: netip.MustParseAddr("203.0.113.1"), Reason: announce.Announced}}, nil, time.Now())
			l.keep([]table.Service{none}, nil, map[string][]announcedFrontend{a.Name: had}, tables.Load(), time.Now())
		}
	}
	if r := growth.Ratio(500, 4000, prepare); r > growth.Linear(500, 4000) {
		t.Errorf("4,000 ports take %.0f times the CPU time of 500", r)
	}
}
