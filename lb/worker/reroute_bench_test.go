package worker

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/route"
)

// BenchmarkReroute moves all flows from a router to another and back, per flow.
func BenchmarkReroute(b *testing.B) {
	const n = 1 << 18
	flows, err := conntrack.Open(conntrack.Config{MaxFlows: n + n/4, Workers: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer flows.Close()
	client := netip.MustParsePrefix("45.0.0.0/8")
	hops := []route.StaticHop{{Port: portServer, NextHop: endpoint4, MTU: 1400}}
	for _, a := range routerAddrs {
		hops = append(hops, route.StaticHop{Port: portClient, NextHop: a, MTU: 1500})
	}
	router := route.Static(map[netip.Prefix]route.Path{
		netip.MustParsePrefix("10.1.0.0/24"): endpointPath(1400), client: byRouter(0),
	}, hops)
	number, _ := router.Adjacency(portClient, routerAddrs[0])
	path := byRouter(0)
	word := nextHopRef(router.Adjacencies()[number].Stamp(), &path, number)
	w := flows.Worker(0)
	w.Online()
	for i := range n {
		r, outcome := w.Create(&conntrack.NewFlow{
			Client:   conntrack.MakeKey(netip.AddrPortFrom(netip.AddrFrom4([4]byte{45, byte(i >> 16), byte(i >> 8), byte(i)}), 999), ap(vip4, 53), conntrack.ProtoUDP),
			Endpoint: netip.AddrPortFrom(endpoint4, 53), Mode: conntrack.ModeDNAT,
		})
		if outcome != conntrack.Created {
			b.Fatalf("outcome %d", outcome)
		}
		flows.TrackUDP(r.Other(), flows.Tick())
		flows.Settle(r.Other(), word)
	}
	w.Offline()
	moved := 0
	router.SetReroute(func(affected []bool) { moved += Reroute(flows, router, affected) })
	b.ResetTimer()
	for i := range b.N {
		router.SetRoute(client, byRouter(1-i%2))
	}
	b.StopTimer()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(moved), "ns/flow")
}
