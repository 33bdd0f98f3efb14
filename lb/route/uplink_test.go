package route

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// An answer leaves by the interface of arrival where the route does, or a default route of any metric.
func TestAnswersByArrival(t *testing.T) {
	cfg := Config{Interfaces: []Interface{{Index: 1, Port: 0}, {Index: 2, Port: 1}}, HostVeth: testHostVeth, AnswerByArrival: true}
	second := to("0.0.0.0/0", via(2, "198.51.100.9"))
	second.metric = 100
	third := to("0.0.0.0/0", via(2, "198.51.100.10"))
	third.metric = 200
	throughOther := to("0.0.0.0/0", via(3, "198.51.100.11"))
	throughOther.metric = 300
	local := to("203.0.113.77/32")
	local.kind, local.table = unix.RTN_LOCAL, unix.RT_TABLE_LOCAL
	refused := to("203.0.113.66/32")
	refused.kind = unix.RTN_BLACKHOLE
	k := kernelWith(
		to("0.0.0.0/0", via(1, "192.0.2.9")), second, third, throughOther, local, refused,
		to("203.0.113.0/24", via(1, "192.0.2.10"), via(2, "198.51.100.20")), to("203.0.114.0/24", via(1, "192.0.2.11")),
	)
	table := built(k, cfg)
	for _, tc := range []struct {
		to   string
		in   int
		want string // "": no path
	}{
		{"8.8.8.8", 1, "192.0.2.9"},
		{"8.8.8.8", 2, "198.51.100.9"},
		{"8.8.8.8", 3, "192.0.2.9"},
		{"8.8.8.8", 4, "192.0.2.9"},
		{"203.0.113.1", 1, "192.0.2.10"},
		{"203.0.113.1", 2, "198.51.100.20"},
		{"203.0.114.1", 2, "198.51.100.9"},
		{"203.0.113.77", 2, testHostVeth.Gateway4.String()},
		{"203.0.113.66", 2, ""},
		{"2001:db8::1", 2, ""},
	} {
		p, ok := table.LookupAnswer(packetTo(netip.MustParseAddr(tc.to)), tc.in, 1<<31)
		if got := p.NextHop; ok != (tc.want != "") || ok && got.String() != tc.want {
			t.Errorf("to %s, interface %d: %v %v, want %s", tc.to, tc.in, got, ok, tc.want)
		}
	}
	if v4, v6 := netip.IPv4Unspecified(), netip.IPv6Unspecified(); !table.Uplink(2, v4) || table.Uplink(3, v4) || table.Uplink(2, v6) {
		t.Error("the uplinks are others")
	}
	// Without any other route.
	if p, ok := built(kernelWith(second), cfg).LookupAnswer(packetTo(netip.MustParseAddr("8.8.8.8")), 2, 0); !ok || p.NextHop.String() != "198.51.100.9" {
		t.Errorf("%v, %v", p.NextHop, ok)
	}
	cfg.AnswerByArrival = false
	if built(k, cfg).Uplink(2, netip.IPv4Unspecified()) {
		t.Error("uplinks are known that nobody asks for")
	}
}
