package announce

import (
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/growth"
)

// Whoever may write advertisements must not stall a node by many of them.
func TestDecisionsGrowInProportionToAddressesAndAdvertisements(t *testing.T) {
	prepare := func(n int) func() {
		s := Settings{Aggregate4: 24}
		frontends := map[netip.Addr][]Frontend{}
		all := make([]netip.Prefix, 0, n)
		for i := range n {
			a := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1})
			p, _ := a.Prefix(24)
			all = append(all, p)
			s.Advertisements = append(s.Advertisements, Advertisement{Allow: []netip.Prefix{p}, Aggregate4: 24})
			frontends[a] = []Frontend{{Service: "x/a", Programmed: true, Endpoints: i % 2, Elsewhere: true}}
		}
		s.Allow = all
		return func() {
			var r Rule
			r.SetSettings(s)
			out := r.Decide(&Node{}, frontends, time.Unix(1, 0))
			if len(out.Routes) != n/2 || len(r.Losses(&out, frontends)) != 0 {
				t.Errorf("%d routes", len(out.Routes))
			}
		}
	}
	if r := growth.Ratio(500, 4000, prepare); r > growth.Linear(500, 4000) {
		t.Errorf("4,000 take %.0f times the CPU time of 500", r)
	}
}
