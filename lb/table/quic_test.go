package table

import (
	"net/netip"
	"testing"
)

func TestAFrontendKnowsItsServers(t *testing.T) {
	tb := New(Config{})
	vip4, vip6 := netip.MustParseAddrPort("192.0.2.1:443"), netip.MustParseAddrPort("[2001:db8::1]:443")
	e := func(text string) Endpoint { return Endpoint{AddrPort: netip.MustParseAddrPort(text), Local: true} }
	s := Service{
		Name: "ns/web", Policy: &Policy{QUICConnectionID: QUICConnectionID{Offset: 1, Length: 2}},
		Pools: []Pool{{Endpoints: []Endpoint{e("10.0.0.1:443"), e("10.0.0.2:443")}}, {Endpoints: []Endpoint{e("[fd00::1]:443")}}},
		Frontends: []Frontend{
			{AddrPort: vip4, Proto: 17}, {AddrPort: vip4, Proto: 6}, {AddrPort: vip6, Proto: 17, Pool: 1},
		},
		Listed: []ListedEndpoint{
			{AddrPort: netip.MustParseAddrPort("10.0.0.3:443"), Proto: 17, Local: true, Port: 443},
			{AddrPort: netip.MustParseAddrPort("10.0.0.4:443"), Proto: 6, Local: true},
		},
	}
	apply := func(s Service) (udp4, udp6, tcp *FrontendEntry) {
		t.Helper()
		if c, err := tb.Apply([]Service{s}, nil); err != nil || len(c.Errors) != 0 {
			t.Fatal(err, c.Errors)
		}
		look := func(ap netip.AddrPort, proto uint8) *FrontendEntry {
			k := MakeKey(ap, proto)
			return tb.Load().Lookup(&k)
		}
		return look(vip4, 17), look(vip6, 17), look(vip4, 6)
	}
	number := func(text string) uint32 {
		return numberOf(t, tb, "ns/web", 443, text, 17)
	}
	udp4, udp6, tcp := apply(s)
	for _, text := range []string{"10.0.0.1:443", "10.0.0.2:443", "10.0.0.3:443"} {
		if got := udp4.QUICEndpoint(number(text)); got == nil || got.AddrPort.String() != text || !got.Local {
			t.Errorf("%s: %+v", text, got)
		}
		if got := udp6.QUICEndpoint(number(text)); got != nil {
			t.Errorf("%s by an IPv6 frontend: %+v", text, got)
		}
	}
	if got := udp6.QUICEndpoint(number("[fd00::1]:443")); got == nil {
		t.Error("the IPv6 endpoint is not known")
	}
	for _, n := range []uint32{0, 1000, 1<<32 - 1} {
		if got := udp4.QUICEndpoint(n); got != nil {
			t.Errorf("%d: %+v", n, got)
		}
	}
	if !udp4.FollowsConnectionIDs() || tcp.FollowsConnectionIDs() {
		t.Error("UDP alone goes by connection IDs")
	}
	if again, _, _ := apply(s); again != udp4 {
		t.Error("a frontend of which nothing changed is another one")
	}
	id := []byte{7, 1, 2, 3}
	four, ok4 := udp4.CIDKey(id)
	six, ok6 := udp6.CIDKey(id)
	if !ok4 || !ok6 || four == six {
		t.Errorf("keys %x and %x", four, six)
	}

	s.Listed = nil
	left, _, _ := apply(s)
	if got := left.QUICEndpoint(number("10.0.0.3:443")); got != nil {
		t.Errorf("gone from the slices: %+v", got)
	}
	if udp4.QUICEndpoint(number("10.0.0.3:443")) == nil {
		t.Error("the earlier snapshot has changed")
	}
	s.Policy = nil
	without, _, _ := apply(s)
	if without.FollowsConnectionIDs() || without.QUICEndpoint(number("10.0.0.1:443")) != nil {
		t.Error("a Service without the annotation goes by connection IDs")
	}
}
