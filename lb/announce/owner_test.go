package announce

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// web is a frontend of the Service that was given the address; the others are of Services that
// have it as well.
func web(endpoints int) Frontend {
	return Frontend{Service: "shop/web", Namespace: "shop", Created: 10, Programmed: true, Endpoints: endpoints}
}

func external(f Frontend) Frontend {
	f.External = true
	return f
}

// Who else has an address withdraws it from its owner only from the same namespace, and with
// spec.externalIPs does not announce it in place of the owner either.
func TestAnAddressIsItsOwners(t *testing.T) {
	away := Frontend{Service: "evil/local", Namespace: "evil", Created: 20, Programmed: true, Elsewhere: true}
	old, here, unprogrammed := away, away, away
	old.Created = 1
	here.Endpoints, here.Elsewhere = 1, false
	unprogrammed.Programmed = false
	changed, webChanged := old, web(1)
	changed.Changed, webChanged.Changed = true, true
	own := away
	own.Service, own.Namespace = "shop/local", "shop"
	webAway := web(0)
	webAway.Elsewhere = true
	for name, c := range map[string]struct {
		list []Frontend
		want Reason
	}{
		"an external IP, Local, endpoints away":               {[]Frontend{web(1), external(away)}, Announced},
		"an older external IP, Local, endpoints away":         {[]Frontend{web(1), external(old)}, Announced},
		"an external IP without room":                         {[]Frontend{web(1), external(unprogrammed)}, Announced},
		"a shared address, Local, endpoints away":             {[]Frontend{web(1), away}, Announced},
		"a shared address without room":                       {[]Frontend{web(1), unprogrammed}, Announced},
		"an older Service shares, its endpoints away":         {[]Frontend{web(1), old}, NotServed},
		"an older Service that shares has become Local":       {[]Frontend{web(1), changed}, Announced},
		"both have changed, the older is away":                {[]Frontend{webChanged, changed}, NotServed},
		"alone, has become Local, endpoints away":             {[]Frontend{changed}, NotServed},
		"has changed, and an external IP is older":            {[]Frontend{webChanged, external(old)}, Announced},
		"the same namespace, Local, endpoints away":           {[]Frontend{web(1), own}, NotServed},
		"an external IP of the same namespace":                {[]Frontend{web(1), external(own)}, NotServed},
		"external IPs alone, the younger is away":             {[]Frontend{external(web(1)), external(away)}, Announced},
		"external IPs alone, the older is away":               {[]Frontend{external(web(1)), external(old)}, NotServed},
		"the owner has none, an external IP is served":        {[]Frontend{web(0), external(here)}, NotServed},
		"the owner has none, who shares the address has":      {[]Frontend{web(0), here}, Announced},
		"the owner has none, who shares it is without room":   {[]Frontend{web(0), {Service: "evil/a", Namespace: "evil", Created: 20, Endpoints: 1}}, NotServed},
		"the owner's are away, who shares the address is not": {[]Frontend{webAway, here}, NotServed},
	} {
		t.Run(name, func(t *testing.T) {
			for _, reversed := range []bool{false, true} {
				list := slices.Clone(c.list)
				if reversed {
					slices.Reverse(list)
				}
				r := settled(settings(), first)
				frontends := map[netip.Addr][]Frontend{first: list}
				d := r.Decide(&Node{}, frontends, begin.Add(time.Minute)).Decisions[0]
				if d.Reason != c.want {
					t.Errorf("%v, %q, want %v", d.Reason, d.Detail, c.want)
				}
				if got := firstUnmet(r.Explain(first, &Node{}, list, begin.Add(time.Minute))); got.Reason != d.Reason {
					t.Errorf("explained as %v, decided %v", got.Reason, d.Reason)
				}
			}
		})
	}
}

// Addresses that nobody was given do not displace others at the limit.
func TestExternalIPsDisplaceNoAddressAtTheLimit(t *testing.T) {
	s := settings()
	s.MaxAddresses = 1
	evil := external(Frontend{Service: "evil/a", Namespace: "evil", Programmed: true, Endpoints: 1})
	r := settled(s, first)
	frontends := map[netip.Addr][]Frontend{first: {evil}, second: {web(1)}}
	r.Decide(&Node{}, frontends, begin)
	out := r.Decide(&Node{}, frontends, begin.Add(time.Minute))
	if a, b := out.Decisions[0].Reason, out.Decisions[1].Reason; a != TooMany || b != Announced {
		t.Errorf("%v, %v", a, b)
	}
}

// An explanation names the Services that do not count.
func TestExplainNamesTheServicesThatDoNotCount(t *testing.T) {
	list := []Frontend{web(1), external(Frontend{Service: "evil/a", Namespace: "evil", Created: 20, Programmed: true, Elsewhere: true})}
	r := settled(settings(), first)
	r.Decide(&Node{}, map[netip.Addr][]Frontend{first: list}, begin)
	c := r.Explain(first, &Node{}, list, begin)[NotServed-1]
	if !c.Met || !strings.Contains(c.Detail, "evil/a") || !strings.Contains(c.Detail, "shop/web") {
		t.Errorf("%+v", c)
	}
}

// Whatever Services of other namespaces do with external IPs, routers are told of the addresses
// of an owner as without them.
func TestExternalIPsOfOthersChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alone, beside := &Rule{}, &Rule{}
		s := settings()
		s.EmptyFor = 5 * time.Second
		alone.SetSettings(s)
		beside.SetSettings(s)
		now := begin
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "pause")) * time.Millisecond)
			draw := func(f Frontend) Frontend {
				f.Programmed = rapid.IntRange(0, 5).Draw(t, "programmed") > 0
				if f.Endpoints = rapid.IntRange(0, 1).Draw(t, "endpoints"); f.Endpoints == 0 {
					f.Elsewhere = rapid.Bool().Draw(t, "elsewhere")
				}
				return f
			}
			list := []Frontend{draw(web(0))}
			all := slices.Clone(list)
			for range rapid.IntRange(0, 3).Draw(t, "others") {
				all = append(all, external(draw(Frontend{Service: "evil/a", Namespace: "evil", Created: rapid.Int64Range(0, 20).Draw(t, "created")})))
			}
			a := alone.Decide(&Node{}, map[netip.Addr][]Frontend{first: list}, now)
			b := beside.Decide(&Node{}, map[netip.Addr][]Frontend{first: all}, now)
			if a.Decisions[0] != b.Decisions[0] || len(a.Routes) != len(b.Routes) || a.Next != b.Next {
				t.Fatalf("alone %+v, beside %+v: %+v", a, b, all)
			}
		}
	})
}
