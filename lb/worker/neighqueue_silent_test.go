package worker

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// An endpoint has not answered, and a packet to it comes: the link may have returned. It has the
// next hop asked for again, as with the kernel, and waits for the answer to that request, whatever
// the result of an earlier request is.
func TestAFailureOfThePastRefusesNoPacketToAnEndpoint(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before []route.State // when the packet comes
		after  []route.State // once it waits
		asks   int           // while it waits
		sent   bool          // in the end, else refused
	}{
		{"failed, and answers now", []route.State{route.Failed}, []route.State{route.Resolving, route.Valid}, 0, true},
		{"failed, and does not answer", []route.State{route.Failed}, []route.State{route.Resolving, route.Failed}, 0, false},
		{"fails, and answers then", []route.State{route.Resolving}, []route.State{route.Failed, route.Resolving, route.Valid}, 1, true},
		{"fails twice", []route.State{route.Resolving}, []route.State{route.Failed, route.Resolving, route.Failed}, 1, false},
		{"not asked for yet, and does not answer", []route.State{route.Unresolved}, []route.State{route.Resolving, route.Failed}, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			for _, s := range tt.before {
				b.lb.router.SetState(portServer, endpoint4, s)
			}
			b.give(portClient, request(false, header.ProtoUDP).build(t))
			b.w.Round()
			if n := len(b.lb.router.Requested(0)); n != 1 {
				t.Errorf("the packet asks %d times", n)
			}
			for _, s := range tt.after {
				if len(b.w.neighQueue) != 1 || len(b.q[portClient].Out)+len(b.q[portServer].Out) != 0 {
					t.Fatalf("before it is %v: %d packets wait, drops %v", s, len(b.w.neighQueue), b.drops())
				}
				b.lb.router.SetState(portServer, endpoint4, s)
				b.w.releaseQueued()
				b.w.releaseQueued()
			}
			b.w.Round()
			if n := len(b.lb.router.Requested(0)); n != tt.asks {
				t.Errorf("%d requests, want %d", n, tt.asks)
			}
			sent, refused := len(b.q[portServer].Out), len(b.q[portClient].Out)
			if tt.sent && (sent != 1 || refused != 0) || !tt.sent && (sent != 0 || refused != 1 || b.drops()["neighbor-unresolved"] != 1) {
				t.Errorf("%d packets left, %d answers, drops %v", sent, refused, b.drops())
			}
		})
	}
}

// An endpoint that does not answer takes no more places than before, and its packets wait no longer
// than others.
func TestPacketsToAFailedEndpointWaitInBounds(t *testing.T) {
	b := newBench(t)
	b.lb.router.SetState(portServer, endpoint4, route.Failed)
	for i := range 20 {
		p := request(false, header.ProtoUDP)
		p.src = ap(client4, uint16(1000+i))
		b.give(portClient, p.build(t))
		b.w.Round()
	}
	if n := b.drops()["neighbor-queue-full"]; len(b.w.neighQueue) != neighQueueShare || n != 20-neighQueueShare {
		t.Errorf("%d packets wait, drops %v", len(b.w.neighQueue), b.drops())
	}
	b.w.tick += neighQueueTicks
	b.w.releaseQueued()
	b.w.Round()
	if n := b.drops()["neighbor-unresolved"]; len(b.w.neighQueue) != 0 || n != neighQueueShare {
		t.Errorf("%d packets wait still, drops %v", len(b.w.neighQueue), b.drops())
	}
}

func TestAFailedClientIsRefusedAtOnce(t *testing.T) {
	c := converse(t, false, header.ProtoUDP)
	c.lb.router.SetState(portClient, client4, route.Failed)
	c.lb.router.Requested(0)
	c.answer.srcMAC, c.answer.dstMAC = macServer, macWeirB
	c.give(portServer, c.answer.build(t))
	c.w.Round()
	if asked := c.lb.router.Requested(0); len(asked) != 0 || len(c.w.neighQueue) != 0 || c.drops()["neighbor-unresolved"] != 1 {
		t.Errorf("asked for %v, %d packets wait, drops %v", asked, len(c.w.neighQueue), c.drops())
	}
}

// Packets wait for many endpoints that do not answer. They take the place of no packet within the
// share of an endpoint that may: it has been flushed, or is new.
func TestPacketsToSilentEndpointsDisplaceNoOthers(t *testing.T) {
	b := newBench(t)
	path := route.Path{Kind: route.Attached, Port: portServer, MTU: 1500, Source: snat4, LocalSource: snat4}
	hop := func(a netip.Addr) route.StaticHop {
		return route.StaticHop{Port: portServer, NextHop: a, MAC: macOf(macServer), Src: macOf(macWeirB), MTU: 1500}
	}
	hops := []route.StaticHop{hop(endpoint4)}
	var silent []netip.Addr
	for a := netip.MustParseAddr("10.1.0.100"); len(silent) < 40; a = a.Next() {
		silent, hops = append(silent, a), append(hops, hop(a))
	}
	b.routes(map[netip.Prefix]route.Path{netip.MustParsePrefix("10.1.0.0/24"): path}, hops...)
	client := uint16(1000)
	to := func(endpoints ...netip.Addr) {
		for _, a := range endpoints {
			b.serve(a, endpoint6)
			for range neighQueueShare {
				client++
				p := request(false, header.ProtoUDP)
				p.src = ap(client4, client)
				b.give(portClient, p.build(t))
				b.w.Round()
			}
		}
	}
	for _, a := range silent {
		b.lb.router.SetState(portServer, a, route.Failed)
	}
	to(silent[:20]...)
	b.lb.router.SetState(portServer, endpoint4, route.Resolving)
	to(endpoint4)
	to(silent[20:]...)
	if len(b.w.neighQueue) != neighQueuePerClass || b.drops()["neighbor-queue-full"] == 0 {
		t.Errorf("%d packets wait, drops %v", len(b.w.neighQueue), b.drops())
	}
	b.lb.router.SetState(portServer, endpoint4, route.Valid)
	b.w.Round()
	if n := len(b.q[portServer].Out); n != neighQueueShare {
		t.Errorf("%d packets left for the endpoint that answers (drops %v)", n, b.drops())
	}
}
