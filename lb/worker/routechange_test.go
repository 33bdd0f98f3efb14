package worker

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// Flows of two clients behind different routers. When the route to a client changes, the
// next answer to that client takes it; no packet of the other flow looks up a route.
func TestRouteChangeTakesEffectOnTheFlowsThatItConcerns(t *testing.T) {
	for name, proto := range map[string]uint8{"UDP": header.ProtoUDP, "TCP": header.ProtoTCP} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			routers := []netip.Addr{netip.MustParseAddr("192.0.2.51"), netip.MustParseAddr("192.0.2.52")}
			macs := [][6]byte{{2, 0, 0, 0, 1, 1}, {2, 0, 0, 0, 1, 2}}
			by := func(i int) route.Path {
				return route.Path{Kind: route.Attached, Port: portClient, Interface: portClient + 1, NextHop: routers[i], MTU: 1500}
			}
			clients := []netip.Prefix{netip.MustParsePrefix("45.0.0.0/8"), netip.MustParsePrefix("46.0.0.0/8")}
			routes := map[netip.Prefix]route.Path{
				netip.MustParsePrefix("10.1.0.0/24"): {Kind: route.Attached, Port: portServer, MTU: 1400, Source: snat4, LocalSource: snat4},
			}
			hops := []route.StaticHop{{Port: portServer, NextHop: endpoint4, MAC: macOf(macServer), Src: macOf(macWeirB), MTU: 1400}}
			for i := range clients {
				routes[clients[i]] = by(i)
				hops = append(hops, route.StaticHop{Port: portClient, NextHop: routers[i], MAC: macs[i], Src: macOf(macWeir), MTU: 1500})
			}
			b.routes(routes, hops...)

			var requests, answers [2]packet
			for i, net := range clients {
				req := request(false, proto)
				req.src = ap(net.Addr().Next(), 40000)
				requests[i], answers[i] = req, b.established(req)
			}
			exchange := func(i, router int) uint64 {
				t.Helper()
				before := b.w.counts[counter.RouteLookups]
				b.one(portClient, requests[i].build(t), portServer)
				if got := b.one(portServer, answers[i].build(t), portClient); [6]byte(got[:6]) != macs[router] {
					t.Errorf("client %d: the answer goes to %x, want router %x", i, got[:6], macs[router])
				}
				return b.w.counts[counter.RouteLookups] - before
			}
			for i := range clients {
				requests[i].flags, answers[i].flags = header.ACK, header.ACK
				if n := exchange(i, i); n != 0 {
					t.Errorf("client %d: %d look-ups before a change", i, n)
				}
			}

			b.lb.router.SetRoute(clients[0], by(1))
			if n := exchange(0, 1); n != 1 {
				t.Errorf("the flow that is concerned: %d look-ups, want that of the answer", n)
			}
			if n := exchange(0, 1) + exchange(1, 1); n != 0 {
				t.Errorf("flows that look up no more: %d look-ups", n)
			}
			b.lb.router.SetRoute(netip.PrefixFrom(endpoint4, 32), route.Path{Kind: route.Attached, Port: portServer, MTU: 1000, Source: snat4, LocalSource: snat4})
			if n := exchange(0, 1); n != 1 {
				t.Errorf("after a change towards the endpoint: %d look-ups, want that of the request", n)
			}
			b.framesHome()
		})
	}
}

// established begins a flow with request req, and returns the answer to it.
func (b *bench) established(req packet) packet {
	b.t.Helper()
	f := b.one(portClient, req.build(b.t), portServer)
	ans := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), proto: req.proto, df: true}
	ans.dst = ap(snat4, uint16(f[34])<<8|uint16(f[35]))
	if ans.proto == header.ProtoTCP {
		ans.flags = header.SYN | header.ACK
	}
	b.one(portServer, ans.build(b.t), portClient)
	req.flags = header.ACK
	b.one(portClient, req.build(b.t), portServer)
	return ans
}
