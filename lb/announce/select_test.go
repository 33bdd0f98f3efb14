package announce

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// labelled are advertisements of 203.0.113.0/24 by labels, with local preferences from 100 on.
func labelled(values ...string) (out []Advertisement) {
	for i, v := range values {
		pref := 100 + uint32(i)
		out = append(out, Advertisement{
			Allow:      []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")},
			Selects:    func(labels map[string]string) bool { return labels["tier"] == v },
			Attributes: Attributes{LocalPref: &pref},
		})
	}
	return out
}

// An address is announced by the advertisements that select the Services of its owner's namespace.
// Those of other namespaces that share it neither withdraw it nor have it announced.
func TestAdvertisementsSelectServices(t *testing.T) {
	of := func(service, tier string, created int64) Frontend {
		namespace, _, _ := strings.Cut(service, "/")
		return Frontend{Service: service, Namespace: namespace, Created: created, Programmed: true, Endpoints: 1, Labels: map[string]string{"tier": tier}}
	}
	unlabelled := of("shop/web", "", 1)
	unlabelled.Labels = nil
	elsewhere := netip.MustParseAddr("198.51.100.1")
	for name, c := range map[string]struct {
		address netip.Addr
		list    []Frontend
		want    Reason
		detail  string
		pref    uint32
	}{
		"the first":                             {first, []Frontend{of("shop/web", "a", 1)}, Announced, "", 100},
		"the second":                            {first, []Frontend{of("shop/web", "b", 1)}, Announced, "", 101},
		"none":                                  {first, []Frontend{of("shop/web", "c", 1)}, NotAllowed, notSelected, 0},
		"without labels":                        {first, []Frontend{unlabelled}, NotAllowed, notSelected, 0},
		"no pool":                               {elsewhere, []Frontend{of("shop/web", "a", 1)}, NotAllowed, notAllowed, 0},
		"two ports":                             {first, []Frontend{of("shop/web", "a", 1), of("shop/web", "a", 1)}, Announced, "", 100},
		"two Services":                          {first, []Frontend{of("shop/web", "a", 1), of("shop/api", "a", 2)}, Announced, "", 100},
		"two Services, one is not":              {first, []Frontend{of("shop/web", "a", 1), of("shop/api", "b", 2)}, NotAllowed, notSelected, 0},
		"shared with another namespace":         {first, []Frontend{of("shop/web", "a", 1), of("other/api", "b", 2)}, Announced, "", 100},
		"of another namespace, which shares it": {first, []Frontend{of("shop/web", "c", 1), of("other/api", "b", 2)}, NotAllowed, notSelected, 0},
	} {
		var r Rule
		r.SetSettings(Settings{Advertisements: labelled("a", "b")})
		list := map[netip.Addr][]Frontend{c.address: c.list}
		out := r.Decide(&Node{}, list, begin)
		d := out.Decisions[0]
		if d.Reason != c.want || d.Detail != c.detail {
			t.Errorf("%s: %v, %q", name, d.Reason, d.Detail)
		}
		if got := firstUnmet(r.Explain(c.address, &Node{}, c.list, begin)); got.Reason != d.Reason || got.Detail != d.Detail {
			t.Errorf("%s: explained by %v, %q", name, got.Reason, got.Detail)
		}
		if c.want == Announced && (len(out.Routes) != 1 || *out.Routes[0].LocalPref != c.pref) || c.want != Announced && len(out.Routes) > 0 {
			t.Errorf("%s: routes %v", name, out.Routes)
		}
	}
}

// A label that changes withdraws at once, and an address that comes and goes by its labels settles for
// longer each time.
func TestLabelsThatChange(t *testing.T) {
	var r Rule
	r.SetSettings(Settings{Advertisements: labelled("a"), Settle: time.Second})
	list := func(tier string) map[netip.Addr][]Frontend {
		m := served(first)
		m[first][0].Labels = map[string]string{"tier": tier}
		return m
	}
	now := begin
	for range flapsAllowed + 1 {
		r.Decide(&Node{}, list("a"), now)
		now = now.Add(time.Second)
		if d := r.Decide(&Node{}, list("a"), now).Decisions[0]; d.Reason != Announced {
			t.Fatalf("after a second: %v", d)
		}
		if d := r.Decide(&Node{}, list("b"), now).Decisions[0]; d.Reason != NotAllowed {
			t.Fatalf("another label: %v", d)
		}
	}
	r.Decide(&Node{}, list("a"), now)
	if d := r.Decide(&Node{}, list("a"), now.Add(time.Second)).Decisions[0]; d.Reason != Settling {
		t.Errorf("after %d changes: %v", flapsAllowed+1, d)
	}
}

// What an earlier process announced stays announced if its advertisement still selects the Service.
func TestAdoptedAddressesAreSelected(t *testing.T) {
	for tier, want := range map[string]Reason{"a": Announced, "b": NotAllowed} {
		var r Rule
		r.SetSettings(Settings{Advertisements: labelled("a"), Settle: time.Hour})
		r.Adopt([]netip.Prefix{netip.PrefixFrom(first, 32)})
		m := served(first)
		m[first][0].Labels = map[string]string{"tier": tier}
		if d := r.Decide(&Node{}, m, begin).Decisions[0]; d.Reason != want {
			t.Errorf("tier %s: %v, want %v", tier, d.Reason, want)
		}
	}
}

// An address is announced on the interfaces of the L2Advertisements that select its Service.
func TestLinkAdvertisementsSelectServices(t *testing.T) {
	list := labelled("a", "b")
	for i := range list {
		list[i].Link, list[i].Interfaces = true, []string{"eth0", "eth1"}[i:i+1]
	}
	var r Rule
	r.SetSettings(Settings{Advertisements: list})
	for tier, want := range map[string][]string{"a": {"eth0"}, "b": {"eth1"}, "c": nil} {
		m := served(first)
		m[first][0].Labels = map[string]string{"tier": tier}
		r.Decide(&Node{}, m, begin)
		if got, on := r.OnLink(first); !slices.Equal(got, want) || on != (want != nil) {
			t.Errorf("tier %s: %v", tier, got)
		}
	}
	r.SetSettings(Settings{})
	if _, on := r.OnLink(first); on {
		t.Error("advertisements of before are asked for")
	}
}
