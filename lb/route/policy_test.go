package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/gaissmai/bart"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// packetTo is a packet to an address.
func packetTo(a netip.Addr) *Packet { return &Packet{Dst: netip.AddrPortFrom(a, 0)} }

// kernelsPath is the kernel's answer for a packet that it would forward (ip route get).
func kernelsPath(c *conn, p *Packet) string {
	family, src, dst := uint8(unix.AF_INET), p.Src.Addr().AsSlice(), p.Dst.Addr().AsSlice()
	if p.Dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	req := c.request(unix.RTM_GETROUTE, unix.NLM_F_REQUEST)
	req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Dst_len: uint8(8 * len(dst)), Src_len: uint8(8 * len(src))}})
	port := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	for kind, v := range map[int][]byte{
		unix.RTA_DST: dst, unix.RTA_SRC: src, unix.RTA_IIF: nl.Uint32Attr(uint32(p.In)), unix.RTA_IP_PROTO: {p.Proto},
		unix.RTA_SPORT: port(p.Src.Port()), unix.RTA_DPORT: port(p.Dst.Port()),
		unix.RTA_UID: nl.Uint32Attr(0), // as of a packet that is forwarded
	} {
		req.AddData(nl.NewRtAttr(kind, v))
	}
	path := "none"
	err := req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(m []byte) bool {
		var h hop
		if e := attributes(m[unix.SizeofRtMsg:], func(kind uint16, v []byte) error { h.attribute(kind, v); return nil }); e != nil {
			path = e.Error()
			return false
		}
		if path = fmt.Sprint(h.index, " ", h.gateway); m[7] != unix.RTN_UNICAST {
			path = "none" // IPv6 gives a route of that type
		}
		return false
	})
	for _, none := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL} {
		if errors.Is(err, none) {
			return "none"
		}
	}
	if err != nil {
		return err.Error()
	}
	return path
}

// ourPath is the same by a table.
func ourPath(t *Table, p *Packet) string {
	path, ok := t.Lookup(p, 0)
	if !ok {
		return "none"
	}
	hop := path.NextHop
	if hop == p.Dst.Addr() {
		hop = netip.Addr{}
	}
	return fmt.Sprint(path.Interface, " ", hop)
}

// ruled is a node with routing tables, of which random rules choose.
type ruled struct {
	*namespace
	*rand.Rand
	in []int
}

func newRuled(t *testing.T, seed uint64) ruled {
	node, _ := lan(t)
	node.addr("i0", "2001:db8:1::1/64")
	for _, f := range []string{"ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"} {
		node.sysctl(f, "1")
	}
	for _, f := range []string{"all", "e0", "i0"} {
		node.sysctl("ipv4/conf/"+f+"/rp_filter", "0")
	}
	r := ruled{node, rand.New(rand.NewPCG(seed, 1)), []int{node.index("e0"), node.index("i0")}}
	links := [][2]string{{"192.0.2.", "e0"}, {"198.51.100.", "i0"}, {"2001:db8::", "e0"}, {"2001:db8:1::", "i0"}}
	for table := range 5 {
		for i, dst := range []string{"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "::/0", "fd00::/8", "fd00:1::/32"} {
			if r.IntN(3) == 0 {
				continue
			}
			link := links[i/3*2+r.IntN(2)]
			route := node.route(dst, link[0]+fmt.Sprint(2+table), link[1])
			if route.Table = 1000 + table; table == 4 {
				route.Table = unix.RT_TABLE_MAIN
			}
			if r.IntN(5) == 0 {
				route.Type, route.Gw = []int{unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT, unix.RTN_THROW}[r.IntN(4)], nil
				route.LinkIndex = 0
			}
			node.must(node.RouteAdd(route))
		}
	}
	return r
}

var ruleAddresses = map[int][]string{
	unix.AF_INET:  {"10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "172.16.0.0/12"},
	unix.AF_INET6: {"fd00::/8", "fd00:1::/32", "fd00:1::3/128", "2001:db8:7::/48"},
}

// rule draws a routing rule.
func (r *ruled) rule(priority int) *netlink.Rule {
	n := netlink.NewRule()
	n.Priority, n.Family = priority, []int{unix.AF_INET, unix.AF_INET6}[r.IntN(2)]
	pick := func(list []string) string { return list[r.IntN(len(list))] }
	conditions := []func(){
		func() { n.Src = prefix(pick(ruleAddresses[n.Family])) },
		func() { n.Dst = prefix(pick(ruleAddresses[n.Family])) },
		func() { n.IifName = pick([]string{"e0", "i0", "lo", "away"}) },
		func() { n.OifName = "e0" },
		func() { n.Mark = 0x40 },
		func() { n.IPProto = []int{unix.IPPROTO_TCP, unix.IPPROTO_UDP}[r.IntN(2)] },
		func() { n.Dport = netlink.NewRulePortRange(443, 443) },
		func() { n.Sport = netlink.NewRulePortRange(2500, 2500) },
		func() { n.Dport = netlink.NewRulePortRange(80, uint16(80+r.IntN(400))) },
		func() { n.Sport = netlink.NewRulePortRange(1000, uint16(1000+r.IntN(4000))) },
		func() { n.Invert = true },
		func() { n.SuppressPrefixlen = []int{0, 8, 31}[r.IntN(3)] },
		func() { n.UIDRange = netlink.NewRuleUIDRange(uint32(r.IntN(2)), 2000) },
	}
	for range r.IntN(3) {
		conditions[r.IntN(len(conditions))]()
	}
	if n.Table = 1000 + r.IntN(5); n.Table == 1004 {
		n.Table = unix.RT_TABLE_MAIN
	}
	if r.IntN(8) == 0 && n.SuppressPrefixlen < 0 {
		n.Table, n.Type = 0, []uint8{unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT}[r.IntN(3)]
	}
	return n
}

// packet draws a packet that the node would forward.
func (r *ruled) packet() *Packet {
	family := []int{unix.AF_INET, unix.AF_INET6}[r.IntN(2)]
	addr := func() netip.Addr {
		a := netip.MustParsePrefix(ruleAddresses[family][r.IntN(4)]).Addr()
		for range r.IntN(4) {
			a = a.Next()
		}
		return a
	}
	at := func(ports ...uint16) netip.AddrPort {
		return netip.AddrPortFrom(addr(), ports[r.IntN(len(ports))])
	}
	return &Packet{
		Src: at(999, 1000, 2500, 4000), Dst: at(79, 80, 200, 443),
		Proto: []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}[r.IntN(2)], In: r.in[r.IntN(2)],
	}
}

// Of any rules the watcher chooses as the kernel does.
func TestRoutingRulesAreFollowed(t *testing.T) {
	needRoot(t)
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := newRuled(t, seed)
			w := r.watch(Config{HostVeth: testHostVeth}, "e0", "i0")
			c, err := dial(r.ns)
			r.must(err)
			defer c.close()
			packets := make([]*Packet, 300)
			for i := range packets {
				packets[i] = r.packet()
			}
			var rules []*netlink.Rule
			for round := range 12 {
				rules = append(rules, r.rule(100+round))
				r.must(r.RuleAdd(rules[round]))
				if round%4 == 3 { // and less again
					r.must(r.RuleDel(rules[round-2]))
				}
				eventually(t, fmt.Sprint("difference from the kernel with ", spoken(c)), "", func() string {
					for _, p := range packets {
						if own, want := ourPath(w.Load(), p), kernelsPath(c, p); own != want {
							return fmt.Sprintf("%+v: %s, the kernel's %s", *p, own, want)
						}
						if path, ok := w.Load().Lookup(p, 0); ok && !slices.Contains(w.Load().Paths(p.Dst, p.Proto), path) {
							return fmt.Sprintf("%+v: %+v is none of the paths %+v", *p, path, w.Load().Paths(p.Dst, p.Proto))
						}
					}
					return ""
				})
			}
			if list := w.Unfollowed.Rules(); len(list) > 0 {
				t.Errorf("not followed: %v", list)
			}
		})
	}
}

// spoken are the rules of the kernel.
func spoken(c *conn) string {
	list, err := c.rules()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%+v", list)
}

// The paths of all packets to a destination are those of the rules that may be for it.
func TestPathsOfAllPackets(t *testing.T) {
	routes := func(kinds ...Kind) (y policy) {
		for i, k := range kinds {
			own := new(bart.Table[*entry])
			if k != NoRoute {
				own.Insert(netip.MustParsePrefix("10.0.0.0/8"), &entry{kind: k, paths: []Path{{Kind: k, Interface: i + 1}}})
			}
			y = append(y, policyRule{rule{is4: true, suppress: -1}, own})
		}
		return y
	}
	for _, tt := range []struct {
		name string
		y    policy
		edit func(y policy)
		want string
	}{
		{"the first rule has all", routes(Attached, Host), func(policy) {}, "[1]"},
		{"the first table has no route", routes(NoRoute, Host), func(policy) {}, "[2]"},
		{"by source", routes(Attached, Host), func(y policy) { y[0].src = netip.MustParsePrefix("192.0.2.0/24") }, "[1 2]"},
		{"by interface", routes(Attached, Host), func(y policy) { y[0].in = 7 }, "[1 2]"},
		{"by another destination", routes(Attached, Host), func(y policy) { y[0].dst = netip.MustParsePrefix("10.2.0.0/16") }, "[2]"},
		{"not by that destination", routes(Attached, Host), func(y policy) { y[0].dst, y[0].not = netip.MustParsePrefix("10.2.0.0/16"), true }, "[1]"},
		{"not by source", routes(Attached, Host), func(y policy) { y[0].src, y[0].not = netip.MustParsePrefix("192.0.2.0/24"), true }, "[1 2]"},
		{"by port", routes(Attached, Host), func(y policy) { y[0].dports = portRange{80, 80} }, "[1]"},
		{"by another protocol", routes(Attached, Host), func(y policy) { y[0].proto = unix.IPPROTO_UDP }, "[2]"},
		{"an end", routes(Attached, Host), func(y policy) { y[0].ends, y[0].end = true, Blackhole }, "[]"},
		{"an end by source", routes(Attached, Host), func(y policy) { y[0].ends, y[0].sports = true, portRange{1, 2} }, "[2]"},
		{"suppressed", routes(Attached, Host), func(y policy) { y[0].suppress = 8 }, "[2]"},
	} {
		tt.edit(tt.y)
		table := Table{local: new(bart.Table[*entry]), main: new(bart.Table[*entry]), policy4: tt.y}
		got := []int{}
		for _, p := range table.Paths(netip.MustParseAddrPort("10.1.0.1:80"), unix.IPPROTO_TCP) {
			got = append(got, p.Interface)
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%s: paths by interfaces %v, want %s", tt.name, got, tt.want)
		}
	}
}
