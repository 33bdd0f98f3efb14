package worker

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// endpointNumbered is an endpoint as the tables show it.
func endpointNumbered(n uint32, addr string) *table.EndpointEntry {
	a := netip.MustParseAddr(addr)
	b := a.As4()
	return &table.EndpointEntry{ID: n, Family: 4, W0: uint64(binary.LittleEndian.Uint32(b[:])), AddrPort: netip.AddrPortFrom(a, 80)}
}

// A cached route of an endpoint is not used for another endpoint that was given its number
// or has the same place. Nor is it used after the routes have changed.
func TestRememberedWaysAreTheEndpointsOwn(t *testing.T) {
	b := newBench(t)
	hop := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	routes := func(first, second string) {
		to := map[netip.Prefix]route.Path{}
		var hops []route.StaticHop
		for dst, next := range map[string]string{"10.1.0.0/24": first, "10.2.0.0/24": second} {
			to[netip.MustParsePrefix(dst)] = route.Path{Kind: route.Attached, Port: portServer, NextHop: hop(next), MTU: 1500}
			hops = append(hops, route.StaticHop{Port: portServer, NextHop: hop(next), MTU: 1500})
		}
		b.routes(to, hops...)
	}
	w := b.w
	routes("10.9.0.1", "10.9.0.2")
	w.beginRound()
	for range 2 {
		for _, test := range []struct {
			number     uint32
			addr, next string
		}{
			{7, "10.1.0.5", "10.9.0.1"},
			{7, "10.2.0.5", "10.9.0.2"},                  // the number is another's now
			{7 + routeCacheSize, "10.1.0.6", "10.9.0.1"}, // as is its place
		} {
			for _, what := range []string{"at first", "again"} {
				k, ok := w.routeTo(&pkt{}, endpointNumbered(test.number, test.addr), 0)
				if !ok || k.path.NextHop != hop(test.next) {
					t.Errorf("%s %s: %v by %v, want %s", test.addr, what, ok, k.path.NextHop, test.next)
				}
				n, _ := w.router.Adjacency(portServer, hop(test.next))
				if uint32(k.nextHop&0xffff) != n || n == 0 {
					t.Errorf("%s %s: adjacency %d, want %d", test.addr, what, k.nextHop&0xffff, n)
				}
			}
		}
	}
	if _, ok := w.routeTo(&pkt{}, endpointNumbered(9, "10.77.0.1"), 0); ok {
		t.Error("a way to where there is none")
	}
	routes("10.9.0.3", "10.9.0.2")
	w.beginRound()
	w.epoch++ // a static table's is always the same
	if k, _ := w.routeTo(&pkt{}, endpointNumbered(7, "10.1.0.5"), 0); k.path.NextHop != hop("10.9.0.3") {
		t.Errorf("after a change of routes by %v", k.path.NextHop)
	}
}
