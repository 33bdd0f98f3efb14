package worker

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// A host on the clients' link sends from addresses that do not exist: what endpoints
// answer to them waits in vain. That must cost neither a client that exists nor an
// endpoint its place, whoever of them comes last.
func TestPacketsToNobodyDoNotKeepOthersFromWaiting(t *testing.T) {
	b := newBench(t)
	hops := []route.StaticHop{{Port: portServer, NextHop: endpoint4, MAC: macOf(macServer), Src: macOf(macWeirB), MTU: 1500}}
	honest := netip.MustParseAddr("192.0.2.200")
	hops = append(hops, route.StaticHop{Port: portClient, NextHop: honest, MAC: macOf(macClient), Src: macOf(macWeir), MTU: 1500})
	b.routes(map[netip.Prefix]route.Path{netip.MustParsePrefix("10.1.0.0/24"): {Kind: route.Attached, Port: portServer, MTU: 1500, Source: snat4, LocalSource: snat4},
		netip.MustParsePrefix("198.51.100.0/24"): {Kind: route.Attached, Port: portClient, MTU: 1500, Source: node4, LocalSource: node4}}, hops...)
	b.serve(endpoint4, endpoint6)
	// answer makes a flow of a client and has its endpoint answer.
	answer := func(client netip.AddrPort) {
		req := request(false, header.ProtoUDP)
		req.src = client
		f := b.one(portClient, req.build(t), portServer)
		ans := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), proto: header.ProtoUDP, payload: 9}
		ans.dst = ap(snat4, binary.BigEndian.Uint16(f[34:]))
		b.give(portServer, ans.build(t))
		b.w.Round()
	}
	nobody := netip.MustParseAddr("198.51.100.0")
	for range 60 {
		nobody = nobody.Next()
		for port := range uint16(neighQueuePerNextHop) {
			answer(netip.AddrPortFrom(nobody, 1000+port))
		}
	}
	b.lb.router.SetState(portClient, honest, route.Resolving)
	answer(netip.AddrPortFrom(honest, 5000))
	b.lb.router.SetState(portServer, endpoint4, route.Resolving)
	b.give(portClient, request(false, header.ProtoUDP).build(t)) // to the endpoint
	b.w.Round()
	b.lb.router.SetState(portClient, honest, route.Valid)
	b.w.Round()
	if n := len(b.q[portClient].Out); n != 1 {
		t.Errorf("%d answers left for the client that exists (drops %v)", n, b.drops())
	}
	b.lb.router.SetState(portServer, endpoint4, route.Valid)
	b.w.Round()
	if n := len(b.q[portServer].Out); n != 1 {
		t.Errorf("%d packets left for the endpoint (drops %v)", n, b.drops())
	}
	if len(b.w.neighQueue) > neighQueuePerClass || b.drops()["neighbor-queue-full"] == 0 {
		t.Errorf("%d packets wait, drops %v", len(b.w.neighQueue), b.drops())
	}
}
