package worker

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// routers is a bench with flows of two clients, each behind another router.
type routers struct {
	*bench
	clients           []netip.Prefix
	macs              [][6]byte
	requests, answers [2]packet
}

var routerAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.51"), netip.MustParseAddr("192.0.2.52")}

func byRouter(i int) route.Path {
	return route.Path{Kind: route.Attached, Port: portClient, Interface: portClient + 1, NextHop: routerAddrs[i], MTU: 1500}
}

func endpointPath(mtu uint32) route.Path {
	return route.Path{Kind: route.Attached, Port: portServer, MTU: mtu, Source: snat4, LocalSource: snat4}
}

func newRouters(t *testing.T, proto uint8) *routers {
	b := &routers{
		bench: newBench(t), macs: [][6]byte{{2, 0, 0, 0, 1, 1}, {2, 0, 0, 0, 1, 2}},
		clients: []netip.Prefix{netip.MustParsePrefix("45.0.0.0/8"), netip.MustParsePrefix("46.0.0.0/8")},
	}
	routes := map[netip.Prefix]route.Path{netip.MustParsePrefix("10.1.0.0/24"): endpointPath(1400)}
	hops := []route.StaticHop{{Port: portServer, NextHop: endpoint4, MAC: macOf(macServer), Src: macOf(macWeirB), MTU: 1400}}
	for i := range b.clients {
		routes[b.clients[i]] = byRouter(i)
		hops = append(hops, route.StaticHop{Port: portClient, NextHop: routerAddrs[i], MAC: b.macs[i], Src: macOf(macWeir), MTU: 1500})
	}
	b.routes(routes, hops...)
	for i, net := range b.clients {
		req := request(false, proto)
		req.src = ap(net.Addr().Next(), 40000)
		b.requests[i], b.answers[i] = req, b.established(req)
		b.requests[i].flags, b.answers[i].flags = header.ACK, header.ACK
		b.requests[i].seq, b.requests[i].ack, b.answers[i].seq = req.seq+1, 1, 1
	}
	return b
}

// exchange has a request and an answer of client i forwarded. It returns the router that the
// answer goes to, and how many routes were looked up.
func (b *routers) exchange(i int) (router int, lookups uint64) {
	b.t.Helper()
	before := b.w.counts[counter.RouteLookups]
	b.one(portClient, b.requests[i].build(b.t), portServer)
	got := b.one(portServer, b.answers[i].build(b.t), portClient)
	return slices.Index(b.macs, [6]byte(got[:6])), b.w.counts[counter.RouteLookups] - before
}

func (b *routers) check(when string, i, router int, lookups uint64) {
	b.t.Helper()
	if r, n := b.exchange(i); r != router || n != lookups {
		b.t.Errorf("%s: the answer to client %d goes to router %d after %d look-ups, want router %d after %d",
			when, i, r, n, router, lookups)
	}
}

// Flows of two clients behind different routers. When the route to a client changes, the
// next answer to that client takes it; no packet of the other flow looks up a route.
func TestRouteChangeTakesEffectOnTheFlowsThatItConcerns(t *testing.T) {
	for name, proto := range map[string]uint8{"UDP": header.ProtoUDP, "TCP": header.ProtoTCP} {
		t.Run(name, func(t *testing.T) {
			b := newRouters(t, proto)
			b.settle() // others look up once
			b.lb.router.SetRoute(b.clients[0], byRouter(1))
			b.check("after a change", 0, 1, 1) // of the answer
			b.check("after it", 0, 1, 0)
			b.check("after it", 1, 1, 0)
			b.lb.router.SetRoute(netip.PrefixFrom(endpoint4, 32), endpointPath(1000))
			b.check("after a change towards the endpoint", 0, 1, 1) // of the request
			b.framesHome()
		})
	}
}

// settle brings flows to the fast path, TCP flows when they are not young any more.
func (b *routers) settle() {
	b.t.Helper()
	const young = conntrack.TicksPerSecond / 4
	for begun := b.lb.flows.Tick(); b.lb.flows.Tick()-begun <= young; {
		time.Sleep(10 * time.Millisecond)
	}
	for i := range b.clients {
		b.check("before a change", i, i, 0)
	}
	b.lb.flows.Range(func(r conntrack.Ref) bool {
		if b.lb.flows.NextHop(r)>>32 == 0 || b.lb.flows.NextHop(r.Other())>>32 == 0 {
			b.t.Fatal("a flow is not on the fast path")
		}
		return true
	})
}

// With Reroute no packet of a flow on the fast path looks up a route if the new next hop is
// known.
func TestRerouteLeavesFlowsOnTheFastPath(t *testing.T) {
	for name, proto := range map[string]uint8{"UDP": header.ProtoUDP, "TCP": header.ProtoTCP} {
		t.Run(name, func(t *testing.T) {
			b := newRouters(t, proto)
			b.settle()
			rerouted := 0
			b.lb.router.SetReroute(func(affected []bool) {
				rerouted = Reroute(b.lb.flows, b.lb.router, affected)
			})
			b.lb.router.SetRoute(b.clients[0], byRouter(1))
			if rerouted != 1 {
				t.Errorf("%d directions have another next hop, want that of the answers to a client", rerouted)
			}
			b.check("after a change", 0, 1, 0)
			b.check("after a change", 1, 1, 0)
			b.lb.router.SetRoute(b.clients[0], byRouter(0))
			b.check("after the change back", 0, 0, 0)

			b.lb.router.SetRoute(netip.PrefixFrom(endpoint4, 32), endpointPath(1000))
			b.check("after the path's MTU changed", 0, 0, 1) // of the request
			b.lb.router.SetState(portClient, routerAddrs[1], route.Unresolved)
			b.lb.router.SetRoute(b.clients[0], byRouter(1))
			if rerouted != 0 {
				t.Errorf("%d directions have a next hop that is not resolved", rerouted)
			}
			b.lb.router.SetState(portClient, routerAddrs[1], route.Valid)
			b.check("after the next hop was resolved", 0, 1, 1)
			b.framesHome()
		})
	}
}

// A connection that begins while Reroute runs goes by the new route: no flow's next hop is for it.
func TestNewConnectionsDoNotWaitForReroute(t *testing.T) {
	b := newRouters(t, header.ProtoTCP)
	ran := false
	b.lb.router.SetReroute(func([]bool) {
		ran = true
		req := request(false, header.ProtoTCP)
		req.src = ap(b.clients[0].Addr().Next(), 40001)
		b.requests[0], b.answers[0] = req, b.established(req)
		b.requests[0].flags, b.answers[0].flags = header.ACK, header.ACK
		b.requests[0].seq, b.requests[0].ack, b.answers[0].seq = req.seq+1, 1, 1
		if r, _ := b.exchange(0); r != 1 {
			t.Errorf("the answer goes to router %d", r)
		}
	})
	b.lb.router.SetRoute(b.clients[0], byRouter(1))
	if !ran {
		t.Error("the route has not changed")
	}
	b.framesHome()
}

// Routes change beside the worker: each answer goes to either router, and at last to that of
// the last change.
func TestRerouteBesideAWorker(t *testing.T) {
	b := newRouters(t, header.ProtoTCP)
	b.lb.router.SetReroute(func(affected []bool) { Reroute(b.lb.flows, b.lb.router, affected) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			b.lb.router.SetRoute(b.clients[0], byRouter(1-i%2))
		}
		b.lb.router.SetRoute(b.clients[0], byRouter(1))
	}()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		if r, _ := b.exchange(0); r < 0 || ended && r != 1 {
			t.Fatalf("the answer goes to router %d; changes ended: %v", r, ended)
		}
	}
	b.framesHome()
}

// established begins a flow with request req, and returns the answer to it.
func (b *bench) established(req packet) packet {
	b.t.Helper()
	f := b.one(portClient, req.build(b.t), portServer)
	ans := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), proto: req.proto, df: true}
	ans.dst = ap(snat4, uint16(f[34])<<8|uint16(f[35]))
	if ans.proto == header.ProtoTCP {
		ans.flags, ans.ack = header.SYN|header.ACK, req.seq+1
	}
	b.one(portServer, ans.build(b.t), portClient)
	req.flags, req.seq, req.ack = header.ACK, req.seq+1, 1
	b.one(portClient, req.build(b.t), portServer)
	return ans
}

// The numbers of a segment on the fast path outlive a change of the next hop: a RST of the next
// number ends the connection.
func TestRerouteKeepsTheNumbersOfSegments(t *testing.T) {
	b := newRouters(t, header.ProtoTCP)
	b.lb.router.SetReroute(func(affected []bool) { Reroute(b.lb.flows, b.lb.router, affected) })
	req := request(false, header.ProtoTCP)
	req.src = ap(b.clients[0].Addr().Next(), 40001)
	f := b.one(portClient, req.build(t), portServer)
	ans := b.answers[0]
	ans.dst = ap(snat4, uint16(f[34])<<8|uint16(f[35]))
	ans.flags, ans.ack = header.SYN|header.ACK, 1001
	b.one(portServer, ans.build(t), portClient)
	req.flags, ans.flags = header.ACK, header.ACK
	req.seq, req.ack, ans.seq = 1001, 1, 1
	for begun := b.lb.flows.Tick(); b.lb.flows.Tick()-begun < 8; { // beyond the first quarter of a second
		for seen := b.lb.flows.Tick(); b.lb.flows.Tick() == seen; {
			time.Sleep(10 * time.Millisecond)
		}
		req.payload, ans.payload = 100, 200
		b.one(portClient, req.build(t), portServer)
		b.one(portServer, ans.build(t), portClient)
		req.seq, req.ack, ans.seq, ans.ack = req.seq+100, ans.seq+200, ans.seq+200, req.seq+100
	}
	b.lb.router.SetRoute(b.clients[0], byRouter(1))
	ans.flags, ans.payload = header.RST, 0
	b.one(portServer, ans.build(t), portClient)
	if n := b.states()[flowstate.Close]; n != 1 {
		t.Errorf("after a RST %v", b.states())
	}
	b.framesHome()
}
