package announce

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// An address has a route by each advertisement that allows it. Routes to the same prefix are one,
// with the communities of all.
func TestAdvertisementsAddRoutes(t *testing.T) {
	prefix := func(s string) netip.Prefix { return netip.MustParsePrefix(s) }
	pref, more := uint32(100), uint32(200)
	var r Rule
	r.SetSettings(Settings{
		Allow: []netip.Prefix{prefix("192.0.2.0/24")},
		Advertisements: []Advertisement{
			{Allow: []netip.Prefix{prefix("198.51.100.0/24")}, Attributes: Attributes{LocalPref: &pref, Communities: []uint32{1}}},
			{Allow: []netip.Prefix{prefix("198.51.100.0/24"), prefix("2001:db8::/32")}, Aggregate4: 24, Aggregate6: 64},
			{Allow: []netip.Prefix{prefix("198.51.100.10/32")}, Attributes: Attributes{LocalPref: &more, Communities: []uint32{1, 2}}},
		},
	})
	frontends := map[netip.Addr][]Frontend{}
	for _, a := range []string{"192.0.2.1", "198.51.100.10", "198.51.100.11", "2001:db8::7", "203.0.113.1"} {
		frontends[netip.MustParseAddr(a)] = []Frontend{{Service: "a", Programmed: true, Endpoints: 1}}
	}
	out := r.Decide(&Node{}, frontends, time.Unix(1000, 0))
	var got []string
	for _, x := range out.Routes {
		got = append(got, x.Prefix.String())
	}
	want := []string{"192.0.2.1/32", "198.51.100.0/24", "198.51.100.10/32", "198.51.100.11/32", "2001:db8::/64"}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("routes %v, want %v", got, want)
	}
	for _, x := range out.Routes {
		switch x.Prefix.String() {
		case "198.51.100.10/32":
			if !slices.Equal(x.Communities, []uint32{1, 2}) || *x.LocalPref != pref {
				t.Errorf("%+v", x)
			}
		case "198.51.100.11/32":
			if !slices.Equal(x.Communities, []uint32{1}) || *x.LocalPref != pref {
				t.Errorf("%+v", x)
			}
		default:
			if x.Communities != nil || x.LocalPref != nil {
				t.Errorf("%+v", x)
			}
		}
	}
	if d := out.Decisions[3]; d.Reason != NotAllowed {
		t.Errorf("%+v", d)
	}
}

// What was announced before need not settle, if it is served still.
func TestAdoptedAddressesNeedNotSettle(t *testing.T) {
	var r Rule
	r.SetSettings(Settings{Allow: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Settle: time.Minute})
	r.Adopt([]netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")})
	served := []Frontend{{Service: "a", Programmed: true, Endpoints: 1}}
	frontends := map[netip.Addr][]Frontend{
		netip.MustParseAddr("192.0.2.1"): served,
		netip.MustParseAddr("192.0.2.2"): {{Service: "b", Programmed: true, Elsewhere: true}},
		netip.MustParseAddr("192.0.2.3"): served,
	}
	out := r.Decide(&Node{}, frontends, time.Unix(1000, 0))
	for i, want := range []Reason{Announced, NotServed, Settling} {
		if got := out.Decisions[i].Reason; got != want {
			t.Errorf("%v: %v, want %v", out.Decisions[i].Address, got, want)
		}
	}
}

// An advertisement for some routers is told to them alone, and a router has the attributes of all
// advertisements for it. One for routers of other nodes announces nothing.
func TestAdvertisementsOfSomeRouters(t *testing.T) {
	address := netip.MustParseAddr("192.0.2.1")
	allow := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	of := func(community uint32, peers ...string) Advertisement {
		return Advertisement{Allow: allow, Peers: peers, Attributes: Attributes{Communities: []uint32{community}}}
	}
	none := of(9)
	none.Peers = []string{}
	for name, c := range map[string]struct {
		list []Advertisement
		want string // the communities of all, and by peer
	}{
		"all":             {[]Advertisement{of(1)}, "[1]"},
		"one":             {[]Advertisement{of(1, "a")}, "limited [] a [1]"},
		"two":             {[]Advertisement{of(1, "a", "b"), of(2, "b")}, "limited [] a [1] b [1 2]"},
		"all, and more":   {[]Advertisement{of(1), of(2, "b")}, "[1] b [1 2]"},
		"of other nodes":  {[]Advertisement{none}, "not-allowed: the advertisements that select it are for routers that this node does not have (peers)"},
		"of one, and not": {[]Advertisement{none, of(1, "a")}, "limited [] a [1]"},
	} {
		t.Run(name, func(t *testing.T) {
			var r Rule
			r.SetSettings(Settings{Advertisements: c.list})
			out := r.Decide(&Node{}, map[netip.Addr][]Frontend{address: {{Service: "a", Programmed: true, Endpoints: 1}}}, time.Unix(1000, 0))
			got := fmt.Sprintf("%v: %s", out.Decisions[0].Reason, out.Decisions[0].Detail)
			for _, x := range out.Routes {
				got = fmt.Sprint(x.Communities)
				if x.Limited {
					got = "limited " + got
				}
				for _, name := range slices.Sorted(maps.Keys(x.Peers)) {
					got += fmt.Sprintf(" %s %v", name, x.Peers[name].Communities)
				}
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
