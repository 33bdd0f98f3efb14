package announce

import (
	"net/netip"
	"slices"
	"testing"
)

// Addresses of an L2Advertisement make no route, and those of other advertisements alone are not
// announced on a link.
func TestLinkAdvertisements(t *testing.T) {
	prefix := func(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
	s := Settings{
		Allow: prefix("192.0.2.0/26"),
		Advertisements: []Advertisement{
			{Allow: prefix("192.0.2.64/26")},
			{Allow: prefix("192.0.2.128/26"), Link: true},
			{Allow: prefix("192.0.2.192/26"), Link: true, Interfaces: []string{"eth1"}},
		},
	}
	var r Rule
	r.SetSettings(s)
	var addresses []netip.Addr
	for _, text := range []string{"192.0.2.1", "192.0.2.65", "192.0.2.129", "192.0.2.193", "198.51.100.1"} {
		addresses = append(addresses, netip.MustParseAddr(text))
	}
	out := r.Decide(&Node{}, served(addresses...), begin)
	for _, c := range []struct {
		address    string
		on         bool
		interfaces []string
	}{
		{"192.0.2.1", true, nil}, {"192.0.2.65", false, nil}, {"192.0.2.129", true, nil}, {"192.0.2.193", true, []string{"eth1"}}, {"198.51.100.1", false, nil},
	} {
		a := netip.MustParseAddr(c.address)
		if interfaces, on := r.OnLink(a); on != c.on || !slices.Equal(interfaces, c.interfaces) {
			t.Errorf("%s: %v %v", a, interfaces, on)
		}
	}
	if got := out.Routes; len(got) != 2 || got[0].Prefix.String() != "192.0.2.1/32" || got[1].Prefix.String() != "192.0.2.65/32" {
		t.Errorf("routes %v", got)
	}
}
