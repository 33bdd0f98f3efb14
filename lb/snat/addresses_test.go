package snat

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var (
	egress4, egress6 = addr("10.0.0.1"), addr("2001:db8::1")
	node4, node6     = addr("203.0.113.1"), addr("2001:db8:1::1")
)

// shared is the source at an address of the node.
func shared(a netip.Addr, lo, hi uint16) Source { return Source{Addr: a, Lo: lo, Hi: hi, Shared: true} }

// endpoint is an endpoint as a pool has it.
func endpoint(a string, local bool) *table.EndpointEntry {
	k := table.MakeKey(netip.AddrPortFrom(addr(a), 0), 0)
	return &table.EndpointEntry{W0: k.W0, W1: k.W1, Family: uint8(k.W2 >> 24), Local: local}
}

// example has a pool in IPv4 only.
func example() Addresses {
	return New(Config{
		Pool: []Source{Exclusive(addr("10.0.1.1")), shared(addr("10.0.1.2"), 61000, 61999)},
		Lo:   61000, Hi: 65535,
		Listeners: []Listener{
			{node4, addr("169.254.1.9")}, {node6, addr("fd00::9")},
			// The same first bytes in the other family.
			{addr("cb00:7101::"), addr("169.254.1.8")},
		},
		Owned: []Source{shared(egress6, 61000, 65535), shared(egress4, 61000, 65535), Exclusive(addr("fd00::9"))},
	})
}

func TestSource(t *testing.T) {
	attached := func(source netip.Addr) *route.Path {
		return &route.Path{Kind: route.Attached, Source: source}
	}
	behind := func(local bool) *route.Path {
		return &route.Path{
			Kind: route.Host, Local: local,
			Source: addr("169.254.1.1"), LocalSource: addr("169.254.1.2"),
		}
	}
	for _, tt := range []struct {
		name string
		path *route.Path
		ep   *table.EndpointEntry
		hash uint64
		want Source
	}{
		{"the first of the pool", attached(egress4), endpoint("10.9.0.1", false), 0, Exclusive(addr("10.0.1.1"))},
		{"the second by the hash's high half", attached(egress4), endpoint("10.9.0.1", false), 1 << 32, shared(addr("10.0.1.2"), 61000, 61999)},
		{"the low half does not choose", attached(egress4), endpoint("10.9.0.1", false), 1, Exclusive(addr("10.0.1.1"))},
		{"a family without a pool", attached(egress6), endpoint("2001:db8::9", false), 7 << 32, shared(egress6, 61000, 65535)},
		{"an egress interface without an address", attached(netip.Addr{}), endpoint("2001:db8::9", false), 0, Source{}},
		{"behind the kernel", behind(false), endpoint("10.9.0.1", false), 0, Exclusive(addr("169.254.1.1"))},
		{"behind the kernel on this node", behind(false), endpoint("10.9.0.1", true), 0, Exclusive(addr("169.254.1.2"))},
		{"an address of the node", behind(true), endpoint("203.0.113.1", false), 0, Exclusive(addr("169.254.1.9"))},
		{"an IPv6 address of the node", behind(true), endpoint("2001:db8:1::1", false), 0, Exclusive(addr("fd00::9"))},
		{"another address of the node", behind(true), endpoint("203.0.113.2", false), 0, Exclusive(addr("169.254.1.2"))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := example()
			got, ok := a.Source(tt.path, tt.ep, tt.hash)
			if want := tt.want.Addr.IsValid(); ok != want || ok && got != tt.want {
				t.Errorf("%v %v, want %v", got, ok, tt.want)
			}
		})
	}
}

// The alternatives go through the pool, and never name the first choice again.
func TestOtherSource(t *testing.T) {
	var pool []Source
	for i := range byte(5) {
		pool = append(pool, Exclusive(netip.AddrFrom4([4]byte{10, 0, 1, i})))
	}
	a := New(Config{Pool: pool})
	path, ep := &route.Path{Kind: route.Attached}, endpoint("10.9.0.1", false)
	for hash := range uint64(7) {
		first, _ := a.Source(path, ep, hash<<32)
		seen := map[netip.Addr]bool{first.Addr: true}
		for n := 1; n < len(pool); n++ {
			s, ok := a.OtherSource(path, ep, hash<<32, n)
			if !ok || seen[s.Addr] {
				t.Fatalf("hash %d: alternative %d is %v %v", hash, n, s, ok)
			}
			seen[s.Addr] = true
		}
		if s, ok := a.OtherSource(path, ep, hash<<32, len(pool)); ok {
			t.Errorf("hash %d: one too many: %v", hash, s)
		}
	}
	if s, ok := a.OtherSource(&route.Path{Kind: route.Host}, ep, 0, 1); ok {
		t.Errorf("behind the kernel there is an alternative: %v", s)
	}
	if s, ok := a.OtherSource(path, endpoint("2001:db8::9", false), 0, 1); ok {
		t.Errorf("a family without a pool has an alternative: %v", s)
	}
}

// to is the tuple of a UDP packet to a destination.
func to(ap netip.AddrPort) *conntrack.Key {
	src := addr("192.0.2.1")
	if ap.Addr().Is6() {
		src = addr("2001:db8::99")
	}
	k := conntrack.MakeKey(netip.AddrPortFrom(src, 1234), ap, conntrack.ProtoUDP)
	return &k
}

func TestOwnsTuple(t *testing.T) {
	a := example()
	for _, tt := range []struct {
		dst          string
		owns, shares bool
	}{
		{"10.0.0.1:61000", true, true},
		{"10.0.0.1:65535", true, true},
		{"10.0.0.1:60999", false, false},
		{"10.0.0.2:61000", false, false},
		{"[2001:db8::1]:62000", true, true},
		{"[2001:db8::1]:80", false, false},
		{"[2001:db8::2]:62000", false, false},
		{"[fd00::9]:1024", true, false},
		{"[fd00::9]:1023", false, false},
		{"[a00:1::]:62000", false, false}, // the bytes of 10.0.0.1, in the other family
	} {
		k := to(netip.MustParseAddrPort(tt.dst))
		if owns, shares := a.OwnsTuple(k); owns != tt.owns || shares != tt.shares {
			t.Errorf("%s: owned %v, shared %v", tt.dst, owns, shares)
		}
	}
}

// Every address is found, whatever places the others took, and an address with two ranges in both.
func TestOwnsManyAddresses(t *testing.T) {
	for n := range 70 {
		cfg := Config{}
		at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(i), 1}) }
		for i := range n {
			cfg.Owned = append(cfg.Owned, shared(at(i), 61000, 61999), Source{Addr: at(i), Lo: 63000, Hi: 63999})
		}
		a := New(cfg)
		for i := range 256 {
			for port, want := range map[uint16][2]bool{61500: {true, true}, 62500: {}, 63500: {true, false}} {
				if i >= n {
					want = [2]bool{}
				}
				owned, shared := a.OwnsTuple(to(netip.AddrPortFrom(at(i), port)))
				if owned != want[0] || shared != want[1] {
					t.Errorf("%d addresses: %v:%d: owned %v, shared %v", n, at(i), port, owned, shared)
				}
			}
		}
	}
}

// A snapshot keeps nothing of its Config.
func TestASnapshotDoesNotChange(t *testing.T) {
	cfg := Config{Pool: []Source{Exclusive(egress4)}, Owned: []Source{Exclusive(egress4)}}
	a := New(cfg)
	cfg.Pool[0].Addr, cfg.Owned[0].Addr = addr("10.0.0.9"), addr("10.0.0.9")
	s, _ := a.Source(&route.Path{Kind: route.Attached}, endpoint("10.9.0.1", false), 0)
	if owned, _ := a.OwnsTuple(to(netip.AddrPortFrom(egress4, 2000))); s.Addr != egress4 || !owned {
		t.Errorf("the snapshot changed to %v", s)
	}
}

func TestNoAllocationPerFlow(t *testing.T) {
	a := example()
	path, ep := &route.Path{Kind: route.Host, Local: true}, endpoint("203.0.113.1", false)
	pooled, k := &route.Path{Kind: route.Attached}, to(netip.AddrPortFrom(egress4, 80))
	if n := testing.AllocsPerRun(100, func() {
		a.Source(path, ep, 1)
		a.Source(pooled, ep, 1)
		a.OtherSource(pooled, ep, 1, 1)
		a.OwnsTuple(k)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSource(b *testing.B) {
	a := example()
	path, ep := &route.Path{Kind: route.Attached}, endpoint("10.9.0.1", false)
	b.ReportAllocs()
	for hash := uint64(0); b.Loop(); hash += 1 << 31 {
		a.Source(path, ep, hash)
	}
}

func BenchmarkOwnsTuple(b *testing.B) {
	cfg := Config{}
	for i := range uint32(16) {
		var ip [4]byte
		binary.BigEndian.PutUint32(ip[:], 0x0a000000+i)
		cfg.Owned = append(cfg.Owned, Exclusive(netip.AddrFrom4(ip)))
	}
	a := New(cfg)
	k := to(netip.MustParseAddrPort("10.0.0.15:80"))
	b.ReportAllocs()
	for b.Loop() {
		a.OwnsTuple(k)
	}
}
