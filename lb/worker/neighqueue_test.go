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
		for port := range uint16(2 * neighQueueShare) {
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

// A burst to a next hop that is not resolved yet waits as a whole, where others leave it the
// room. A second next hop gets its share of a full queue, and costs the first the packets
// beyond its own.
func TestABurstWaitsForItsNextHop(t *testing.T) {
	b := newBench(t)
	other := netip.MustParseAddr("10.1.0.100")
	hop := func(a netip.Addr) route.StaticHop {
		return route.StaticHop{Port: portServer, NextHop: a, MAC: macOf(macServer), Src: macOf(macWeirB), MTU: 1500}
	}
	path := route.Path{Kind: route.Attached, Port: portServer, MTU: 1500, Source: snat4, LocalSource: snat4}
	b.routes(map[netip.Prefix]route.Path{netip.MustParsePrefix("10.1.0.0/24"): path}, hop(endpoint4), hop(other))
	client := uint16(1000)
	burst := func(to netip.Addr, packets int) {
		b.serve(to, endpoint6)
		b.lb.router.SetState(portServer, to, route.Resolving)
		for range packets {
			client++
			p := request(false, header.ProtoUDP)
			p.src = ap(client4, client)
			b.give(portClient, p.build(t))
			b.w.Round()
		}
	}
	answers := func(from netip.Addr) int {
		b.lb.router.SetState(portServer, from, route.Valid)
		before := len(b.q[portServer].Out)
		for range 4 {
			b.w.Round()
		}
		return len(b.q[portServer].Out) - before
	}
	inOrder := func() {
		for i := 1; i < len(b.w.neighQueue); i++ {
			if int32(b.w.neighQueue[i].order-b.w.neighQueue[i-1].order) < 0 {
				t.Errorf("packet %d leaves before %d", b.w.neighQueue[i-1].order, b.w.neighQueue[i].order)
			}
		}
	}

	burst(endpoint4, 100)
	if n := answers(endpoint4); n != 100 || len(b.drops()) != 0 {
		t.Errorf("%d of 100 packets left (drops %v)", n, b.drops())
	}
	burst(endpoint4, neighQueuePerClass+10)
	burst(other, 2*neighQueueShare)
	inOrder()
	if n := answers(other); n != 2*neighQueueShare {
		t.Errorf("%d packets left for the next hop that came later (drops %v)", n, b.drops())
	}
	if n := answers(endpoint4); n != neighQueuePerClass-2*neighQueueShare {
		t.Errorf("%d packets left for the first (drops %v)", n, b.drops())
	}
}

// A packet waits for the kernel's answer, and the neighbor is flushed before the worker sees
// it. No other packet comes: this one has the next hop asked for again.
func TestAQueuedPacketAsksAgainAfterAFlush(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before route.State // when the packet comes
		probed bool        // the kernel was asked for it since
		ticks  uint32
		want   int // requests after the flush
	}{
		{"after it asked", route.Unresolved, true, 0, 1},
		{"while the kernel is asking", route.Resolving, false, 0, 1},
		{"before it was asked for", route.Unresolved, false, 0, 0},
		{"when it could not be asked for", route.Unresolved, false, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.lb.router.SetState(portServer, endpoint4, tt.before)
			b.give(portClient, request(false, header.ProtoUDP).build(t))
			b.w.Round()
			b.lb.router.Requested(0)
			if len(b.w.neighQueue) != 1 {
				t.Fatalf("%d packets wait", len(b.w.neighQueue))
			}

			if tt.probed {
				b.lb.router.SetState(portServer, endpoint4, route.Resolving)
			}
			b.lb.router.SetState(portServer, endpoint4, route.Unresolved) // flushed
			b.w.tick += tt.ticks
			for range 3 {
				b.w.releaseQueued()
			}
			if n := len(b.lb.router.Requested(0)); n != tt.want {
				t.Errorf("%d requests after the flush, want %d", n, tt.want)
			}

			b.lb.router.SetState(portServer, endpoint4, route.Valid)
			b.w.releaseQueued()
			b.w.Round()
			if n := len(b.q[portServer].Out); n != 1 {
				t.Errorf("%d packets left (drops %v)", n, b.drops())
			}
		})
	}
}

// The first request for a neighbor is lost, and the kernel asks again a second later: the
// packet is still there.
func TestAQueuedPacketOutlivesALostRequest(t *testing.T) {
	b := newBench(t)
	b.lb.router.SetState(portServer, endpoint4, route.Resolving)
	b.give(portClient, request(false, header.ProtoTCP).build(t))
	b.w.Round()
	b.w.tick += 3*secondTicks - 1
	b.w.releaseQueued()
	b.lb.router.SetState(portServer, endpoint4, route.Valid)
	b.w.releaseQueued()
	b.w.Round()
	if n := len(b.q[portServer].Out); n != 1 {
		t.Errorf("%d packets left (drops %v)", n, b.drops())
	}
	if n := b.counted().ResentSYNs; n != 0 {
		t.Errorf("the SYN that waited counts as %d that came again", n)
	}
}
