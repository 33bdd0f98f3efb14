package addresspool

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/growth"
)

// Whoever may write these objects must not stall all nodes by many of them.
func TestDecodingGrowsInProportionToTheObjects(t *testing.T) {
	each := func(n int, f func(i int) string) string {
		var out []string
		for i := range n {
			out = append(out, f(i))
		}
		return strings.Join(out, ",")
	}
	many := func(kind string, spec func(i, n int) string) func(n int) []string {
		return func(n int) (list []string) {
			for i := range n {
				list = append(list, object(kind, fmt.Sprint(kind, i), spec(i, n)))
			}
			return list
		}
	}
	one := func(kind, format string, item func(i int) string) func(n int) []string {
		return func(n int) []string { return []string{object(kind, "one", fmt.Sprintf(format, each(n, item)))} }
	}
	prefix := func(i int) string { return fmt.Sprintf(`"10.%d.%d.0/24"`, i/256, i%256) }
	name := func(i int) string { return fmt.Sprintf(`"IPAddressPool%d"`, i) }
	pools := many("IPAddressPool", func(i, _ int) string { return fmt.Sprintf(`"addresses":[%s]`, prefix(i)) })
	profiles := many("BFDProfile", func(int, int) string { return "" })
	with := func(shapes ...func(n int) []string) func(n int) []string {
		return func(n int) (list []string) {
			for _, s := range shapes {
				list = append(list, s(n)...)
			}
			return list
		}
	}
	const peer = `"myASN":64512,"peerASN":64513,"peerAddress":"10.%d.%d.1","bfdProfile":"BFDProfile%d"`
	for what, shape := range map[string]func(n int) []string{
		"pools":                     pools,
		"addresses of a pool":       one("IPAddressPool", `"addresses":[%s]`, prefix),
		"overlapping addresses":     one("IPAddressPool", `"addresses":[%s]`, func(int) string { return `"10.0.0.0/24"` }),
		"pools of an advertisement": with(pools, one("BGPAdvertisement", `"ipAddressPools":[%s]`, name)),
		"peers of an advertisement": one("BGPAdvertisement", `"peers":[%s]`, name),
		"advertisements of all":     with(pools, many("BGPAdvertisement", func(int, int) string { return "" })),
		"advertisements of a pool":  with(pools, many("BGPAdvertisement", func(i, _ int) string { return fmt.Sprintf(`"localPref":%d,"ipAddressPools":[%s]`, i, name(i)) })),
		"advertisements of no pool": with(pools, many("L2Advertisement", func(i, n int) string { return fmt.Sprintf(`"ipAddressPools":[%s]`, name(i+n)) })),
		"L2Advertisements of all":   with(pools, many("L2Advertisement", func(int, int) string { return "" })),
		"communities":               one("Community", `"communities":[%s]`, func(i int) string { return fmt.Sprintf(`{"name":"c%d","value":"1:%d"}`, i, i) }),
		"peers":                     with(profiles, many("BGPPeer", func(i, _ int) string { return fmt.Sprintf(peer, i/256, i%256, i) })),
		"unknown fields":            one("BGPPeer", `%s`, func(i int) string { return fmt.Sprintf(`"f%d":1`, i) }),
	} {
		t.Run(what, func(t *testing.T) {
			prepare := func(n int) func() {
				var list []Object
				for _, json := range shape(n) {
					list = append(list, Object{JSON: []byte(json)})
				}
				return func() { Decode(list).Announcement(Node{Name: "n", Links: true, Labels: map[string]string{}}) }
			}
			if r := growth.Ratio(500, 4000, prepare); r > growth.Linear(500, 4000) {
				t.Errorf("4,000 take %.0f times the CPU time of 500", r)
			} else {
				t.Logf("%.1f", r)
			}
		})
	}
}

func TestAllocationGrowsInProportionToPoolsAndServices(t *testing.T) {
	prepare := func(n int) func() {
		var specs []string
		for i := range n {
			specs = append(specs, poolObject(fmt.Sprint("p", i), fmt.Sprintf(`"addresses":["10.%d.%d.0/24"]`, i/256, i%256)))
		}
		config := decode(specs...)
		return func() {
			a := New(config.Pools)
			for i := range n {
				s := service(fmt.Sprint("x/s", i), 1)
				s.Status = []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1})}
				a.Adopt(s, now)
				a.Reconcile(s, now)
			}
			a.Usage(now)
			for i := range n {
				a.Release(fmt.Sprint("x/s", i), now.Add(time.Duration(i)*RestTime))
			}
		}
	}
	if r := growth.Ratio(500, 4000, prepare); r > growth.Linear(500, 4000) {
		t.Errorf("4,000 take %.0f times the CPU time of 500", r)
	}
}
