package announce

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// A node that announces an aggregate gets the packets to all addresses in it. It says which of
// them other nodes alone serve.
func TestLossesOfAggregates(t *testing.T) {
	frontend := func(endpoints int, elsewhere bool) []Frontend {
		return []Frontend{{Service: "shop/web", Programmed: true, Endpoints: endpoints, Elsewhere: elsewhere}}
	}
	served, local, empty := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	for _, c := range []struct {
		name      string
		aggregate int
		frontends map[netip.Addr][]Frontend
		lost      []Loss
	}{
		{"a Local Service with endpoints elsewhere", 24, map[netip.Addr][]Frontend{served: frontend(1, false), local: frontend(0, true)},
			[]Loss{{local, netip.MustParsePrefix("192.0.2.0/24"), "shop/web"}}},
		{"no aggregate", 0, map[netip.Addr][]Frontend{served: frontend(1, false), local: frontend(0, true)}, nil},
		{"the aggregate is not announced", 24, map[netip.Addr][]Frontend{local: frontend(0, true)}, nil},
		{"no endpoint on any node", 24, map[netip.Addr][]Frontend{served: frontend(1, false), empty: frontend(0, false)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Rule
			r.SetSettings(Settings{Allow: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Aggregate4: c.aggregate})
			out := r.Decide(&Node{}, c.frontends, time.Unix(1000, 0))
			if got := r.Losses(&out, c.frontends); !slices.Equal(got, c.lost) {
				t.Errorf("%+v, want %+v", got, c.lost)
			}
		})
	}
}
