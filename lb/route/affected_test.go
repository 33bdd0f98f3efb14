package route

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/gaissmai/bart"
	"pgregory.net/rapid"
)

// pathBy is a path out of a port, by a gateway unless that is empty.
func pathBy(port int, gateway string, mtu uint32) Path {
	p := Path{Kind: Attached, Port: port, MTU: mtu}
	if gateway != "" {
		p.NextHop = netip.MustParseAddr(gateway)
	}
	return p
}

// A change of routes concerns the flows to the destinations whose path changes, and the next
// hops by which they went: flows over all other next hops must not look up again.
func TestChangeOfRoutesConcernsTheNextHopsOfThePathsThatChange(t *testing.T) {
	const (
		a, b, c        = "192.0.2.1", "192.0.2.2", "192.0.2.3" // routers
		near, far, out = "10.1.0.5", "10.1.9.5", "10.2.0.5"    // hosts on the link
	)
	routes := map[string]Path{
		"0.0.0.0/0": pathBy(0, a, 1500), "44.0.0.0/8": pathBy(0, b, 1500), "45.0.0.0/8": pathBy(0, c, 1500),
		"10.1.0.0/16": pathBy(1, "", 1500), "10.2.0.0/16": pathBy(1, "", 1500),
	}
	for _, tt := range []struct {
		name, prefix string
		path         Path
		want         []string
	}{
		{"another gateway", "44.0.0.0/8", pathBy(0, c, 1500), []string{b}},
		{"another MTU", "45.0.0.0/8", pathBy(0, c, 1400), []string{c}},
		{"another source alone", "45.0.0.0/8", Path{Kind: Attached, NextHop: netip.MustParseAddr(c), MTU: 1500, Source: netip.MustParseAddr(a)}, nil},
		{"a longer prefix", "44.1.0.0/16", pathBy(0, c, 1500), []string{b}},
		{"a longer prefix by the same gateway", "44.1.0.0/16", pathBy(0, b, 1500), nil},
		{"a prefix that only the default route covers", "46.0.0.0/8", pathBy(0, b, 1500), []string{a}},
		{"the default route", "0.0.0.0/0", pathBy(0, b, 1500), []string{a}},
		{"a part of a link", "10.1.0.0/24", pathBy(0, a, 1500), []string{near}},
		{"a link", "10.1.0.0/16", pathBy(0, a, 1500), []string{near, far}},
		{"a host", far + "/32", Path{Kind: Blackhole}, []string{far}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			static := make(map[netip.Prefix]Path)
			for p, path := range routes {
				static[netip.MustParsePrefix(p)] = path
			}
			var hops []StaticHop
			for port, addrs := range [][]string{{a, b, c}, {near, far, out}} {
				for _, addr := range addrs {
					hops = append(hops, StaticHop{Port: port, NextHop: netip.MustParseAddr(addr)})
				}
			}
			w := Static(static, hops)
			stamps := make(map[string]uint32)
			for i := range w.nextHops.adj[1:] {
				stamps[w.nextHops.adj[1+i].NextHop().String()] = w.nextHops.adj[1+i].Stamp()
			}
			w.SetRoute(netip.MustParsePrefix(tt.prefix), tt.path)
			var got []string
			for i := range w.nextHops.adj[1:] {
				if a := &w.nextHops.adj[1+i]; a.Stamp() != stamps[a.NextHop().String()] {
					got = append(got, a.NextHop().String())
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("concerns %v, want %v", got, tt.want)
			}
		})
	}
}

// drawEntries draws the routes of a table to 16 addresses.
func drawEntries(t *rapid.T, name string) map[netip.Prefix]*entry {
	gateways := []string{"", "192.0.2.1", "192.0.2.2"}
	entries := make(map[netip.Prefix]*entry)
	for i := range rapid.IntRange(0, 6).Draw(t, name) {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(0, 15).Draw(t, "address"))})
		p := netip.PrefixFrom(addr, rapid.IntRange(27, 32).Draw(t, fmt.Sprint(name, i))).Masked()
		e := &entry{kind: Attached}
		for range rapid.IntRange(0, 2).Draw(t, "paths") {
			path := pathBy(rapid.IntRange(0, 1).Draw(t, "port"), rapid.SampledFrom(gateways).Draw(t, "gateway"), 1500)
			path.MTU -= rapid.SampledFrom([]uint32{0, 100}).Draw(t, "mtu")
			if rapid.IntRange(0, 7).Draw(t, "host") == 0 {
				path.Kind, path.Port, path.NextHop = Host, 2, netip.MustParseAddr("169.254.0.1")
				path.LocalSource = netip.MustParseAddr(rapid.SampledFrom([]string{"169.254.0.2", "169.254.0.3"}).Draw(t, "local"))
			}
			e.paths = append(e.paths, path)
		}
		switch len(e.paths) {
		case 0:
			e.kind = rapid.SampledFrom([]Kind{Blackhole, NoRoute}).Draw(t, "none")
		case 2:
			e.cumWeight = rapid.SampledFrom([][]uint32{{1 << 31, 1<<32 - 1}, {1 << 30, 1<<32 - 1}}).Draw(t, "weights")
		}
		entries[p] = e
	}
	return entries
}

// changedEntries draws another state of a table: most of the entries stay.
func changedEntries(t *rapid.T, name string, entries map[netip.Prefix]*entry) map[netip.Prefix]*entry {
	now := maps.Clone(entries)
	for p := range entries {
		if rapid.IntRange(0, 3).Draw(t, "gone "+p.String()) == 0 {
			delete(now, p)
		}
	}
	for p, e := range drawEntries(t, name) {
		if rapid.Bool().Draw(t, "added "+p.String()) {
			now[p] = e
		}
	}
	return now
}

// Whatever changes, a flow whose next hop or MTU is another now has had a next hop that is
// affected.
func TestEveryPathThatChangesHasAnAffectedNextHop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		local, main := drawEntries(t, "local"), drawEntries(t, "main")
		old, now := &Table{}, &Table{}
		old.local, _ = update(nil, nil, local)
		old.main, _ = update(nil, nil, main)

		var localChanges, mainChanges []routeChange
		now.local, localChanges = update(old.local, local, changedEntries(t, "local now", local))
		now.main, mainChanges = update(old.main, main, changedEntries(t, "main now", main))
		flowsLearn(t, old, now, affectedBy(old, now, localChanges, mainChanges))
	})
}

// The same where routing rules choose among tables.
func TestEveryPathThatChangesUnderRulesHasAnAffectedNextHop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := map[int]*bart.Table[*entry]{}, map[int]*bart.Table[*entry]{}
		changes := map[int][]routeChange{}
		for table := range 3 {
			name := fmt.Sprint("table ", table)
			entries := drawEntries(t, name)
			before[table], _ = update(nil, nil, entries)
			if after[table] = before[table]; rapid.Bool().Draw(t, name+" changes") {
				after[table], changes[table] = update(before[table], entries, changedEntries(t, name+" now", entries))
			}
		}
		old, now := &Table{}, &Table{}
		for range rapid.IntRange(1, 4).Draw(t, "rules") {
			r := rule{is4: true, table: rapid.IntRange(0, 2).Draw(t, "table"), suppress: rapid.SampledFrom([]int{-1, -1, 28, 30}).Draw(t, "suppress")}
			old.policy4 = append(old.policy4, policyRule{r, before[r.table]})
			now.policy4 = append(now.policy4, policyRule{r, after[r.table]})
		}
		flowsLearn(t, old, now, affectedUnderRules(before, changes))
	})
}

// flowsLearn fails if a flow goes by another path now and its next hop is not affected.
func flowsLearn(t *rapid.T, old, now *Table, affected *affectedHops) {
	for i := range byte(32) {
		p := Packet{Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, i}), 1)}
		for _, hash := range []uint32{0, 1<<30 + 1, 1<<31 + 1} {
			was, ok := old.Lookup(&p, hash)
			is, still := now.Lookup(&p, hash)
			if !ok {
				continue
			}
			if (!still || was.Kind != is.Kind || was.Port != is.Port || was.NextHop != is.NextHop || was.MTU != is.MTU) &&
				!affected.has(makeHopKey(was.Port, was.NextHop)) {
				t.Fatalf("%s went by %v and goes by %v: flows do not learn of it", p.Dst, was, is)
			}
			if was.Kind == Host && (!still || is.Kind != Host || was.LocalSource != is.LocalSource) &&
				!affected.has(makeHopKey(was.Port, was.LocalSource)) {
				t.Fatalf("%s had the local source %v and has %v: flows do not learn of it", p.Dst, was.LocalSource, is.LocalSource)
			}
		}
	}
}

// The flow table keeps words of the process before, which must not be good in the next.
func TestStampsOfTwoProcessesDiffer(t *testing.T) {
	hops := []StaticHop{{NextHop: netip.MustParseAddr("192.0.2.1")}}
	seen := make(map[uint32]bool)
	for range 8 {
		seen[Static(nil, hops).nextHops.adj[1].Stamp()] = true
	}
	if len(seen) == 1 {
		t.Errorf("eight watchers begin with the stamps %v", seen)
	}
}
