package route

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A node with two attached uplinks, one that is not, a bridge of pods and a bridge
// over an attached interface.
func kernelWithPods(routes ...kernelRoute) *kernelState {
	links := map[int]*link{}
	for index, l := range []link{
		1: {name: "eth0", kind: "device"}, 2: {name: "eth1", kind: "device"}, 3: {name: "eth2", kind: "device"},
		4: {name: "cni0", kind: "bridge"}, 5: {name: "vethpod", kind: "veth", master: 4}, 6: {name: "flannel.1", kind: "vxlan"},
		7: {name: "br0", kind: "bridge"}, 8: {name: "eth3", kind: "device", master: 7},
		9: {name: "br1", kind: "bridge"}, 10: {name: "eth4", kind: "device", master: 9},
		11: {name: "bond0", kind: "bond"}, 12: {name: "eth5", kind: "device", master: 11},
	} {
		if index > 0 {
			l.index, l.mtu, l.up = index, 1500, true
			links[index] = &l
		}
	}
	return &kernelState{links: links, routes: routes}
}

func TestReversePaths(t *testing.T) {
	cfg := Config{HostVeth: testHostVeth, Interfaces: []Interface{{Index: 1, Port: 0}, {Index: 2, Port: 1}, {Index: 8, Port: 2}, {Index: 12, Port: 3}}}
	blackhole := to("203.0.113.0/24")
	blackhole.kind = unix.RTN_BLACKHOLE
	k := kernelWithPods(
		to("0.0.0.0/0", via(1, "192.0.2.254")), to("::/0", via(1, "fe80::1"), via(2, "fe80::1")), blackhole,
		to("192.0.2.0/24", via(1, "")), to("198.51.100.0/24", via(2, "")),
		to("11.0.0.0/8", via(1, "192.0.2.254")), to("12.0.0.0/8", via(1, "192.0.2.254"), via(2, "198.51.100.254")),
		to("10.244.1.0/24", via(4, "")), to("10.244.0.0/16", via(6, "")), to("10.3.0.0/24", via(3, "")),
		to("10.7.0.0/24", via(7, "")), to("10.9.0.0/24", via(9, "")), to("10.11.0.0/24", via(11, "")),
		to("10.20.0.0/16", via(6, ""), via(3, "10.3.0.1")), to("fe80::/64", via(4, "")),
		to("2001:db8:9::/48", via(2, "fe80::1"), via(1, "fe80::1")), to("2001:db8:5::/48", via(4, "")),
	)
	for _, tc := range []struct {
		name, source string
		kind         Kind
		def, inside  bool
		by           []int // of the interfaces 1 (eth0), 2 (eth1), 8 (eth3 below br0) and 11 (bond0)
		withoutVeth  Kind  // if another
	}{
		{"default", "9.9.9.9", Attached, true, false, []int{1}, NoRoute},
		{"on the link", "192.0.2.7", Attached, false, false, []int{1}, NoRoute},
		{"on the other link", "198.51.100.7", Attached, false, false, []int{2}, NoRoute},
		{"a prefix with the default's next hop", "11.0.0.1", Attached, true, false, []int{1}, NoRoute},
		{"two next hops", "12.0.0.1", Attached, false, false, []int{1, 2}, NoRoute},
		{"pods of this node", "10.244.1.5", Host, false, true, nil, NoHostVeth},
		{"pods of another", "10.244.2.5", Host, false, true, nil, NoHostVeth},
		{"an uplink that is not attached", "10.3.0.7", Host, false, false, nil, NoHostVeth},
		{"a bridge over an attached interface", "10.7.0.7", Host, false, false, []int{8}, NoHostVeth},
		{"a bridge over another interface", "10.9.0.7", Host, false, false, nil, NoHostVeth},
		{"a bond", "10.11.0.7", Attached, false, false, []int{11}, NoRoute},
		{"an overlay or an uplink", "10.20.0.7", Host, false, false, nil, NoHostVeth},
		{"blackhole", "203.0.113.7", Blackhole, false, false, nil, NoRoute},
		{"link-local", "fe80::7", Host, false, false, []int{1, 2, 8, 11}, NoHostVeth},
		{"pods of IPv6", "2001:db8:5::7", Host, false, true, nil, NoHostVeth},
		{"IPv6 default", "2001:db8::7", Attached, true, false, []int{1, 2}, NoRoute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, hosted := range []bool{true, false} {
				cfg, kind := cfg, tc.kind
				if !hosted {
					cfg.HostVeth = nil
					if tc.withoutVeth != NoRoute {
						kind = tc.withoutVeth
					}
				}
				r := built(k, cfg).Reverse(packetTo(netip.MustParseAddr(tc.source)))
				if r.Kind() != kind || r.Default() != tc.def || r.Inside() != tc.inside {
					t.Errorf("kind %v, default %v, inside %v", r.Kind(), r.Default(), r.Inside())
				}
				for _, index := range []int{1, 2, 8, 11} {
					want := false
					for _, i := range tc.by {
						want = want || i == index
					}
					if r.By(index) != want {
						t.Errorf("by %d: %v, want %v", index, !want, want)
					}
				}
			}
		})
	}
	if r := built(kernelWithPods(), cfg).Reverse(packetTo(netip.MustParseAddr("9.9.9.9"))); r.Kind() != NoRoute || r.By(1) || r.Default() {
		t.Errorf("without a route: %+v", r)
	}
}

// Halves of the address space stand for a default route, as OpenVPN has them.
func TestHalvesAreDefaultRoutes(t *testing.T) {
	k := kernelWithPods(to("0.0.0.0/1", via(6, "")), to("128.0.0.0/1", via(6, "")), to("2000::/3", via(6, "")))
	for _, a := range []string{"9.9.9.9", "192.0.2.1", "2001:db8::1"} {
		if r := built(k, eth0Attached).Reverse(packetTo(netip.MustParseAddr(a))); !r.Default() || r.Inside() {
			t.Errorf("%s: %+v", a, r)
		}
	}
}

// A change of the reverse path alone is a change of the table.
func TestABridgesPortChangesTheTable(t *testing.T) {
	k := kernelWithPods(to("10.9.0.0/24", via(9, "")))
	before := newBuilder(k, &eth0Attached).build()[unix.RT_TABLE_MAIN]
	k.links[10].master = 0
	after := newBuilder(k, &eth0Attached).build()[unix.RT_TABLE_MAIN]
	p := netip.MustParsePrefix("10.9.0.0/24")
	if before[p].equal(after[p]) || before[p].reverse.inside || !after[p].reverse.inside {
		t.Errorf("before %+v, after %+v", before[p].reverse, after[p].reverse)
	}
}
