package route

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/gaissmai/bart"
	"golang.org/x/sys/unix"
)

// kernelWith is a host with eth0 (1, attached) and eth1 (2, not attached).
func kernelWith(routes ...kernelRoute) *kernelState {
	return &kernelState{
		links: map[int]*link{
			1: {index: 1, name: "eth0", mtu: 1500, up: true}, 2: {index: 2, name: "eth1", mtu: 9000, up: true},
		},
		addresses: []address{
			{index: 1, prefix: netip.MustParsePrefix("192.0.2.1/24")},
			{index: 2, prefix: netip.MustParsePrefix("198.51.100.1/24")},
		},
		routes: routes,
	}
}

func to(dst string, hops ...hop) kernelRoute {
	return kernelRoute{table: unix.RT_TABLE_MAIN, kind: unix.RTN_UNICAST, dst: netip.MustParsePrefix(dst), hops: hops}
}

func via(index int, gateway string) hop {
	h := hop{index: index, weight: 1}
	if gateway != "" {
		h.gateway = netip.MustParseAddr(gateway)
	}
	return h
}

// built is the table that a kernel state gives.
func built(k *kernelState, cfg Config) *Table {
	w := Watcher{cfg: cfg}
	w.table.Store(&Table{local: new(bart.Table[*entry]), main: new(bart.Table[*entry])})
	b := newBuilder(k, &cfg)
	t, _ := w.replaceTables(b, b.build())
	t.epoch = 1
	return t
}

var eth0Attached = Config{Interfaces: []Interface{{Index: 1, Port: 0}}, HostVeth: testHostVeth}

func TestEqualCostHopsShareFlowsByWeight(t *testing.T) {
	a, b := via(1, "192.0.2.10"), via(1, "192.0.2.11")
	a.weight, b.weight = 3, 1
	table := built(kernelWith(to("0.0.0.0/0", a, b)), eth0Attached)
	count := map[netip.Addr]int{}
	const n = 40000
	for i := range uint32(n) {
		p, ok := table.Lookup(packetTo(netip.MustParseAddr("203.0.113.1")), i*(1<<32/n))
		if !ok {
			t.Fatal("no route")
		}
		count[p.NextHop]++
	}
	if c := count[a.gateway]; c < n*74/100 || c > n*76/100 {
		t.Errorf("%d of %d flows by the hop with three quarters of the weight", c, n)
	}
	for _, hash := range []uint32{0, 1<<32 - 1} {
		if _, ok := table.Lookup(packetTo(netip.MustParseAddr("203.0.113.1")), hash); !ok {
			t.Errorf("hash %#x finds no path", hash)
		}
	}
}

func TestDeadHopsAreLeftOut(t *testing.T) {
	dead, down, live := via(1, "192.0.2.10"), via(1, "192.0.2.11"), via(1, "192.0.2.12")
	dead.flags, down.flags = unix.RTNH_F_DEAD, unix.RTNH_F_LINKDOWN
	for _, tc := range []struct {
		name string
		hops []hop
		want string // "" = no route
	}{
		{"live before one without a carrier", []hop{dead, down, live}, "192.0.2.12"},
		{"without a carrier when there is no other", []hop{dead, down}, "192.0.2.11"},
		{"dead only", []hop{dead}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table := built(kernelWith(to("203.0.113.0/24", tc.hops...)), eth0Attached)
			for _, hash := range []uint32{0, 1 << 31, 1<<32 - 1} {
				p, ok := table.Lookup(packetTo(netip.MustParseAddr("203.0.113.1")), hash)
				if got := p.NextHop; ok != (tc.want != "") || ok && got.String() != tc.want {
					t.Errorf("hash %#x: %v %v", hash, got, ok)
				}
			}
		})
	}
}

func TestRouteWhoseBestHopsAreDeadFallsToTheNextMetric(t *testing.T) {
	dead := via(1, "192.0.2.10")
	dead.flags = unix.RTNH_F_DEAD
	best, worse := to("203.0.113.0/24", dead), to("203.0.113.0/24", via(1, "192.0.2.20"))
	worse.metric = 100
	p, _ := built(kernelWith(worse, best), eth0Attached).Lookup(packetTo(netip.MustParseAddr("203.0.113.1")), 0)
	if p.NextHop.String() != "192.0.2.20" {
		t.Errorf("by %s", p.NextHop)
	}
}

func TestPathsThroughTheKernel(t *testing.T) {
	encap := via(1, "192.0.2.9")
	encap.encap = true
	for _, tc := range []struct {
		name string
		r    kernelRoute
		cfg  Config
		kind Kind
		mtu  uint32
	}{
		{"interface that is not attached", to("203.0.113.0/24", via(2, "198.51.100.9")), eth0Attached, Host, 1500},
		{"encapsulated", to("203.0.113.0/24", encap), eth0Attached, Host, 1500},
		{"attached", to("203.0.113.0/24", via(1, "192.0.2.9")), eth0Attached, Attached, 1500},
		{"lower MTU of the route", kernelRoute{table: unix.RT_TABLE_MAIN, kind: unix.RTN_UNICAST, mtu: 1400,
			dst: netip.MustParsePrefix("203.0.113.0/24"), hops: []hop{via(2, "")}}, eth0Attached, Host, 1400},
		{"no host veth", to("203.0.113.0/24", via(2, "198.51.100.9")), Config{Interfaces: eth0Attached.Interfaces}, NoHostVeth, 0},
		{"through the host veth itself", to("203.0.113.0/24", via(testHostVeth.Index, "")), eth0Attached, NoRoute, 0},
		{"throw", kernelRoute{table: unix.RT_TABLE_MAIN, kind: unix.RTN_THROW, dst: netip.MustParsePrefix("203.0.113.0/24")}, eth0Attached, NoRoute, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, ok := built(kernelWith(tc.r), tc.cfg).Lookup(packetTo(netip.MustParseAddr("203.0.113.1")), 0)
			if p.Kind != tc.kind || p.MTU != tc.mtu || ok != (tc.kind == Attached || tc.kind == Host) {
				t.Errorf("%+v %v", p, ok)
			}
			if p.Kind == Host && (p.Source != testHostVeth.Forward4 || p.LocalSource != testHostVeth.Local4 || p.NextHop != testHostVeth.Gateway4) {
				t.Errorf("%+v", p)
			}
		})
	}
}

func TestLocalTableAgainstMain(t *testing.T) {
	any4 := kernelRoute{table: unix.RT_TABLE_LOCAL, kind: unix.RTN_LOCAL, dst: netip.MustParsePrefix("10.0.0.0/8"), hops: []hop{via(1, "")}}
	k := kernelWith(any4, to("10.1.0.0/16", via(1, "192.0.2.9")))
	inner := netip.MustParseAddr("10.1.2.3")
	// One trie: the longer prefix wins.
	if p, _ := built(k, eth0Attached).Lookup(packetTo(inner), 0); p.Kind != Attached {
		t.Errorf("merged tables: %+v", p)
	}
	// Two: the local table is asked first.
	k.rules.custom4 = true
	if p, _ := built(k, eth0Attached).Lookup(packetTo(inner), 0); !p.Local {
		t.Errorf("separate tables: %+v", p)
	}
	if !built(k, Config{}).Local(inner) {
		t.Error("without a host veth the host's own address is not known as local")
	}
}

func TestBondLeadsOutOfItsAttachedMembers(t *testing.T) {
	k := kernelWith(to("203.0.113.0/24", via(10, "192.0.2.9")))
	k.links[10] = &link{index: 10, kind: "bond", mtu: 1500, up: true}
	k.links[11] = &link{index: 11, master: 10, mtu: 1500, up: true}
	k.links[12] = &link{index: 12, master: 10, mtu: 1500, up: true}
	k.links[13] = &link{index: 13, master: 10, mtu: 1500}
	cfg := Config{Interfaces: []Interface{{11, 1}, {12, 2}, {13, 3}}, HostVeth: testHostVeth}
	table := built(k, cfg)
	var ports []int
	for _, hash := range []uint32{0, 1 << 30, 1 << 31, 1<<32 - 1} {
		p, ok := table.Lookup(packetTo(netip.MustParseAddr("203.0.113.1")), hash)
		if !ok || p.Kind != Attached {
			t.Fatalf("%+v", p)
		}
		ports = append(ports, p.Port)
	}
	slices.Sort(ports)
	if got := slices.Compact(ports); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("ports %v, want the two members that are up", got)
	}
}

func TestSource(t *testing.T) {
	p := netip.MustParsePrefix
	addr := func(index int, s string, flags int) address {
		a := address{index: index, prefix: p(s), flags: flags}
		if a.prefix.Addr().IsLinkLocalUnicast() {
			a.scope = unix.RT_SCOPE_LINK
		}
		return a
	}
	for _, tc := range []struct {
		name  string
		addrs []address
		r     kernelRoute
		want  string
	}{
		{"preferred source of the route", []address{addr(1, "192.0.2.1/24", 0)},
			kernelRoute{dst: p("0.0.0.0/0"), prefsrc: netip.MustParseAddr("203.0.113.9"), hops: []hop{via(1, "192.0.2.9")}}, "203.0.113.9"},
		{"address in the gateway's network", []address{addr(1, "198.51.100.1/24", 0), addr(1, "192.0.2.1/24", 0)},
			to("0.0.0.0/0", via(1, "192.0.2.9")), "192.0.2.1"},
		{"not a secondary", []address{addr(1, "192.0.2.1/24", 0), addr(1, "192.0.2.2/24", unix.IFA_F_SECONDARY)},
			to("0.0.0.0/0", via(1, "192.0.2.9")), "192.0.2.1"},
		{"borrowed from another interface", []address{addr(2, "198.51.100.1/32", 0)},
			to("0.0.0.0/0", via(1, "192.0.2.9")), "198.51.100.1"},
		{"never the host veth's", []address{addr(testHostVeth.Index, "169.254.77.1/24", 0)},
			to("0.0.0.0/0", via(1, "192.0.2.9")), "invalid IP"},
		{"IPv6 with a link-local gateway", []address{addr(1, "fe80::1/64", 0), addr(1, "2001:db8::1/64", 0)},
			to("::/0", via(1, "fe80::9")), "2001:db8::1"},
		{"tentative is not usable", []address{addr(1, "2001:db8::1/64", unix.IFA_F_TENTATIVE), addr(2, "2001:db8:1::1/64", 0)},
			to("::/0", via(1, "fe80::9")), "2001:db8:1::1"},
		{"deprecated only when there is no other", []address{addr(1, "2001:db8::1/64", unix.IFA_F_DEPRECATED), addr(1, "2001:db8::2/64", 0)},
			to("::/0", via(1, "fe80::9")), "2001:db8::2"},
		{"deprecated when there is no other", []address{addr(1, "2001:db8::1/64", unix.IFA_F_DEPRECATED)},
			to("::/0", via(1, "fe80::9")), "2001:db8::1"},
		{"no temporary one", []address{addr(1, "2001:db8::aaaa/64", unix.IFA_F_TEMPORARY), addr(1, "2001:db8::2/64", 0)},
			to("::/0", via(1, "fe80::9")), "2001:db8::2"},
		{"global towards global", []address{addr(1, "fd00::1/64", 0), addr(1, "2001:db8::2/64", 0)},
			to("2001:db8:9::/48", via(1, "fe80::9")), "2001:db8::2"},
		{"unique local towards unique local", []address{addr(1, "2001:db8::2/64", 0), addr(1, "fd00::1/64", 0)},
			to("fd00:9::/48", via(1, "fe80::9")), "fd00::1"},
		{"link-local towards link-local", []address{addr(1, "2001:db8::2/64", 0), addr(1, "fe80::1/64", 0)},
			to("fe80::/64", via(1, "")), "fe80::1"},
		{"link-local means nothing beyond the link", []address{addr(1, "fe80::1/64", 0)},
			to("2001:db8:9::/48", via(1, "fe80::9")), "invalid IP"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := kernelWith()
			k.addresses = tc.addrs
			b := newBuilder(k, &eth0Attached)
			if got := b.source(&tc.r, &tc.r.hops[0]).String(); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

func TestRules(t *testing.T) {
	rule := func(priority, table int, change func(*kernelRule)) kernelRule {
		r := kernelRule{
			priority: priority, table: table, family: unix.AF_INET, action: actionTable,
			uids: [2]uint32{1, 0}, suppressLength: -1, suppressGroup: -1,
		}
		if change != nil {
			change(&r)
		}
		return r
	}
	standard := []kernelRule{rule(0, 255, nil), rule(32766, 254, nil), rule(32767, 253, nil)}
	vrfs := map[int]*link{1: {index: 1, name: "eth1", master: 9}, 9: {index: 9, name: "red", kind: "vrf"}}
	for _, tc := range []struct {
		name              string
		extra             kernelRule
		links             map[int]*link
		followed, ignored int // beyond the standard ones
	}{
		{"local table moved", rule(100, 255, nil), nil, 1, 0},
		{"marked packets", rule(9, 2004, func(r *kernelRule) { r.mark, r.mask = 0x200, 0xf00 }), nil, 0, 0},
		{"packets that are not marked", rule(9, 51820, func(r *kernelRule) { r.mark, r.mask, r.not = 0xca6c, 0xffff, true }), nil, 1, 0},
		{"source", rule(10, 200, func(r *kernelRule) { r.src = netip.MustParsePrefix("10.0.0.0/8") }), nil, 1, 0},
		{"answers from an endpoint", rule(10, 200, func(r *kernelRule) { r.in = "eth1" }), vrfs, 1, 0},
		{"an interface that is not there", rule(10, 200, func(r *kernelRule) { r.in = "eth1" }), nil, 0, 0},
		{"sockets of the host", rule(10, 200, func(r *kernelRule) { r.out = "eth1" }), nil, 0, 0},
		{"packets of the host", rule(10, 200, func(r *kernelRule) { r.in = "lo" }), nil, 0, 0},
		{"a user's sockets", rule(10, 200, func(r *kernelRule) { r.uids = [2]uint32{7, 9} }), nil, 0, 0},
		{"pods by the main table", rule(10, 254, func(r *kernelRule) { r.dst = netip.MustParsePrefix("10.0.0.7/32") }), nil, 1, 0},
		{"main without its default route", rule(10, 254, func(r *kernelRule) { r.suppressLength = 0 }), nil, 1, 0},
		{"everything to another table", rule(10, 200, nil), nil, 1, 0},
		{"nothing may go", rule(10, 0, func(r *kernelRule) { r.action = actionProhibit }), nil, 1, 0},
		{"nothing", rule(10, 0, func(r *kernelRule) { r.action = actionNop }), nil, 0, 0},
		{"VRFs' rule without a VRF", rule(1000, 0, func(r *kernelRule) { r.vrf = true }), nil, 0, 0},
		{"VRFs' rule with a VRF", rule(1000, 0, func(r *kernelRule) { r.vrf = true }), vrfs, 0, 1},
		{"type of service", rule(10, 200, func(r *kernelRule) { r.tos = 0x10 }), nil, 0, 1},
		{"groups of interfaces", rule(10, 200, func(r *kernelRule) { r.suppressGroup = 3 }), nil, 0, 1},
		{"a condition of a new kernel", rule(10, 200, func(r *kernelRule) { r.unknown = 99 }), nil, 0, 1},
		{"to another rule", rule(10, 0, func(r *kernelRule) { r.action = actionGoto }), nil, 0, 1},
		{"of marked packets to another rule", rule(10, 0, func(r *kernelRule) { r.action, r.mark, r.mask = actionGoto, 1, 1 }), nil, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := judgeRules(append(slices.Clone(standard), tc.extra), tc.links)
			if !got.custom4 || len(got.followed) != 3+tc.followed || len(got.ignored) != tc.ignored {
				t.Errorf("%+v", got)
			}
		})
	}
	if got := judgeRules(standard, nil); got.custom4 || len(got.ignored) > 0 {
		t.Errorf("default rules: %+v", got)
	}
}
