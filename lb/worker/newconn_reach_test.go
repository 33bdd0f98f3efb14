package worker

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// New flows begin at the endpoint that can be reached, none of them with an error. The other has them again as
// soon as its next hop answers.
func TestNewFlowsBeginAtEndpointsInReach(t *testing.T) {
	for name, lost := range map[string]netip.Addr{
		"no route": netip.MustParseAddr("172.31.0.1"), "blackhole": netip.MustParseAddr("203.0.113.5"), "silent next hop": narrow4,
	} {
		for mode, modeName := range map[conntrack.Mode]string{conntrack.ModeNAT: "nat", conntrack.ModeIPIP: "ipip"} {
			for _, sticky := range []int{0, 60} {
				t.Run(fmt.Sprintf("%s, %s, affinity %d s", name, modeName, sticky), func(t *testing.T) {
					b := newBench(t)
					b.serveAt(table.Pool{AffinitySeconds: sticky}, mode, lost, endpoint4)
					if lost == narrow4 {
						b.lb.router.SetState(portServer, narrow4, route.Failed)
					}
					client, asked := client4, []netip.Addr(nil)
					flow := func(proto uint8) netip.Addr {
						client = client.Next()
						p := request(false, proto)
						p.src = ap(client, 40000)
						b.give(portClient, p.build(t))
						return b.sentTo(b.round())
					}
					for range 16 {
						for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
							asked = append(asked, b.lb.router.Requested(0)...)
							if at := flow(proto); at != endpoint4 {
								t.Fatalf("a flow of protocol %d begins at %s", proto, at)
							}
							if again := b.lb.router.Requested(0); len(again) > 1 {
								t.Errorf("a packet asks for %v", again)
							} else {
								asked = append(asked, again...)
							}
						}
					}
					if lost != narrow4 {
						return
					}
					if !slices.Equal(slices.Compact(asked), []netip.Addr{narrow4}) {
						t.Error("nothing asks whether the next hop answers again")
					}
					b.lb.router.SetState(portServer, narrow4, route.Valid)
					for range 64 {
						if flow(header.ProtoTCP) == narrow4 {
							return
						}
					}
					t.Error("no flow begins at the endpoint whose next hop answers again")
				})
			}
		}
	}
}

// In place of an endpoint that cannot be reached, one is preferred whose last attempt has not failed, and one
// that fails to none. A flow for which its endpoint has no SNAT port left waits for no silent next hop.
func TestNewFlowsPreferEndpointsThatAnswer(t *testing.T) {
	const failing, well = "10.1.0.101", "10.1.0.102"
	for _, c := range []struct {
		name      string
		endpoints []string
		ports     int // SNAT ports of each endpoint; 0: enough
		want      string
	}{
		{"one fails", []string{"10.1.0.100", failing, well}, 0, well},
		{"all that can be reached fail", []string{"10.1.0.100", failing}, 0, failing},
		{"no port is left", []string{"10.1.0.100", well}, 4, well},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := route.Path{Kind: route.Attached, Port: portServer, MTU: 1500, Source: snat4, LocalSource: snat4}
			var hops []route.StaticHop
			var list []netip.Addr
			for _, a := range c.endpoints {
				list = append(list, netip.MustParseAddr(a))
				hops = append(hops, route.StaticHop{Port: portServer, NextHop: list[len(list)-1], MAC: macOf(macServer), Src: macOf(macWeirB), MTU: 1500})
			}
			// begin has 32 clients begin a flow each, while the first endpoint is in a state.
			begin := func(first route.State, ports int) (at []string, b *bench) {
				b = newBench(t)
				b.routes(map[netip.Prefix]route.Path{netip.MustParsePrefix("10.1.0.0/24"): path}, hops...)
				b.serveAt(table.Pool{}, conntrack.ModeNAT, list...)
				b.lb.router.SetState(portServer, list[0], first)
				for n := range uint32(20) {
					if ep, _, ok := b.lb.tables.Endpoint(n); ok && ep.Addr().String() == failing {
						b.lb.attempts.Refused(n, 1)
					}
				}
				if ports > 0 {
					b.fewPorts(ports)
				}
				client := client4
				for range 32 {
					client = client.Next()
					p := request(false, header.ProtoUDP)
					p.src = ap(client, 40000)
					b.give(portClient, p.build(t))
					to := ""
					for _, f := range b.round()[portServer] {
						to = dstOf(f).String()
					}
					at = append(at, to)
					b.keepFlows()
				}
				return at, b
			}
			chosen, _ := begin(route.Valid, 0)
			got, b := begin(route.Failed, c.ports)
			moved, refused := 0, 0
			for i, to := range got {
				switch {
				case to == "":
					refused++
				case chosen[i] != c.endpoints[0]:
				case to == c.want:
					moved++
				default:
					t.Errorf("a flow moves to %s", to)
				}
			}
			if want := max(0, 32-cmp.Or(c.ports, 32)); moved == 0 || refused != want || len(b.w.neighQueue) != 0 {
				t.Errorf("%d moved, %d refused, want %d; %d packets wait, drops %v", moved, refused, want, len(b.w.neighQueue), b.drops())
			}
		})
	}
}

// A SYN that waits for a next hop which does not answer goes to another endpoint. The error is for the client
// alone whose SYN no other endpoint takes; one that has sent it again meanwhile gets none.
func TestASYNThatWaitsInVainGoesElsewhere(t *testing.T) {
	for _, c := range []struct {
		name      string
		endpoints []netip.Addr
		resent    bool
		sent      int // to the other endpoint
		told      int // errors
	}{
		{"another endpoint", []netip.Addr{narrow4, endpoint4}, false, 1, 0},
		{"another endpoint has it meanwhile", []netip.Addr{narrow4, endpoint4}, true, 1, 0},
		{"no other endpoint", []netip.Addr{narrow4}, false, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.serveAt(table.Pool{}, conntrack.ModeNAT, c.endpoints...)
			b.lb.router.SetState(portServer, narrow4, route.Resolving)
			p := request(false, header.ProtoTCP)
			for len(b.w.neighQueue) == 0 {
				p.src = ap(client4, p.src.Port()+1)
				b.give(portClient, p.build(t))
				b.round()
			}
			limit := ratelimit.NewPrefixes([2]uint64{1, 2})
			limit.Set(ratelimit.PrefixLimit{PerSecond: 1, Bits4: 24})
			for limit.Take(uint64(binary.LittleEndian.Uint32(client4.AsSlice())), 4, b.w.tick) {
			}
			b.w.cfg.Prefixes = limit // the connection was admitted: it counts once
			var sent, told int
			count := func(out [3][][]byte) {
				sent, told = sent+len(out[portServer]), told+len(out[portClient])
				if len(out[portServer]) > 0 && dstOf(out[portServer][0]) != endpoint4 {
					t.Errorf("sent to %s", dstOf(out[portServer][0]))
				}
			}
			if c.resent {
				count(b.after(secondTicks, p))
			}
			for _, s := range []route.State{route.Failed, route.Resolving, route.Failed} {
				b.lb.router.SetState(portServer, narrow4, s)
				tick := b.w.tick
				b.w.beginRound()
				b.w.tick = tick + 1
				count(b.roundAtTheSameTime())
			}
			if sent != c.sent || told != c.told {
				t.Errorf("%d sent to the other endpoint, %d errors, drops %v", sent, told, b.drops())
			}
			b.framesHome()
		})
	}
}
