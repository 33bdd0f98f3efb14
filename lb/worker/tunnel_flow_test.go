package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// DESIGN: in these modes another load balancer's connection is taken up.
func TestAConnectionThatBeganElsewhereIsTakenUp(t *testing.T) {
	for mode, name := range modeNames {
		bothFamilies(t, name, func(t *testing.T, v6 bool) {
			b := newBench(t)
			ep := endpoint4
			if v6 {
				ep = endpoint6
			}
			b.serveDirect(mode, ep, nil)
			ack := request(v6, header.ProtoTCP)
			ack.flags, ack.payload = header.ACK, 5
			f := b.one(portClient, ack.build(t), portServer)
			want := ack
			want.ttl = 63
			want.srcMAC, want.dstMAC = macWeirB, macServer
			w := want.build(t)
			if mode != conntrack.ModeL2DSR {
				port, label, id := variable(f, header.EthernetLen, mode, v6)
				w = tunnelled(t, mode, v6, w, port, label, id)
			}
			if !bytes.Equal(f, w) {
				t.Errorf("\n got %x\nwant %x", f, w)
			}
			// One packet from nowhere weighs no more than a SYN.
			if n := b.states()[flowstate.SynSent]; n != 1 {
				t.Errorf("after one packet: %v", b.states())
			}
			b.one(portClient, ack.build(t), portServer)
			if n := b.states()[flowstate.Established]; n != 1 {
				t.Errorf("after two packets: %v", b.states())
			}
			b.framesHome()
		})
	}
}

func bothFamilies(t *testing.T, name string, test func(t *testing.T, v6 bool)) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("%s/v6=%v", name, v6), func(t *testing.T) { test(t, v6) })
	}
}

func (b *bench) states() map[flowstate.State]int {
	out := map[flowstate.State]int{}
	b.lb.flows.Range(func(r conntrack.Ref) bool { out[b.lb.flows.Conn(r).State()]++; return true })
	return out
}

func TestASynAfterTheClientsFinBeginsAnew(t *testing.T) {
	b := newBench(t)
	b.serveDirect(conntrack.ModeIPIP, endpoint4, nil)
	p := request(false, header.ProtoTCP)
	for _, flags := range []uint8{header.SYN, header.ACK, header.FIN | header.ACK, header.SYN} {
		p.flags = flags
		b.one(portClient, p.build(t), portServer)
	}
	if s := b.states(); s[flowstate.SynSent] != 1 || len(s) != 1 {
		t.Errorf("states %v", s)
	}
	if n := b.w.published.read().Values[counter.ReplacedFlows]; n != 1 {
		t.Errorf("%d reopened", n)
	}
}

// A router in between would send the packet back, since it knows the
// frontend's address as Weir's.
func TestL2DSRNeedsTheEndpointOnTheLink(t *testing.T) {
	beyond := netip.MustParseAddr("10.9.0.5")
	for _, established := range []bool{false, true} {
		t.Run(fmt.Sprintf("established=%v", established), func(t *testing.T) {
			b := newBench(t)
			req := request(false, header.ProtoUDP).build(t)
			if established {
				b.routeVia(beyond, beyond)
				b.serveDirect(conntrack.ModeL2DSR, beyond, nil)
				b.one(portClient, req, portServer)
			}
			b.routeVia(beyond, endpoint4)
			b.serveDirect(conntrack.ModeL2DSR, beyond, nil)
			b.one(portClient, req, -1)
			if b.drops()["not-l2-adjacent"] != 1 {
				t.Errorf("drops %v", b.drops())
			}
			said := ""
			b.w.unreachable.each(func(ep netip.AddrPort, via netip.Addr) { said = ep.String() + " via " + via.String() })
			if said != "10.9.0.5:80 via 10.1.0.5" {
				t.Errorf("noted %q", said)
			}
			b.serveDirect(conntrack.ModeIPIP, beyond, nil)
			b.forgetFlows()
			b.one(portClient, req, portServer)
			b.framesHome()
		})
	}
}

// routeVia gives the bench a route to addr by a next hop.
func (b *bench) routeVia(addr, nextHop netip.Addr) {
	b.routes(map[netip.Prefix]route.Path{
		netip.PrefixFrom(addr, addr.BitLen()): {Kind: route.Attached, Port: portServer, NextHop: nextHop, MTU: 1500, Source: snat4, LocalSource: snat4},
	}, route.StaticHop{Port: portServer, NextHop: nextHop, MAC: macOf(macServer), Src: macOf(macWeirB), MTU: pathMTU})
}

// routes replaces the bench's routes but those to clients. Flows ask again.
func (b *bench) routes(to map[netip.Prefix]route.Path, hops ...route.StaticHop) {
	to[netip.MustParsePrefix("192.0.2.0/24")] = route.Path{Kind: route.Attached, Port: portClient, MTU: 1500, Source: node4, LocalSource: node4}
	hops = append(hops, route.StaticHop{Port: portClient, NextHop: client4, MAC: macOf(macClient), Src: macOf(macWeir), MTU: 1500})
	b.lb.router = route.Static(to, hops)
	b.w.router, b.w.adjacencies = b.lb.router, b.lb.router.Adjacencies()
	b.lb.flows.Range(func(r conntrack.Ref) bool { b.lb.flows.Unsettle(r); return true })
	clear(b.w.hopCache[:])
}

// There is no wire to such an endpoint: the translated packet goes through the
// kernel, and a connection that began elsewhere is refused as in that mode.
func TestAnEndpointOnThisNodeGetsTranslatedPackets(t *testing.T) {
	here := netip.MustParseAddr("10.244.0.5")
	for mode, name := range modeNames {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.routes(map[netip.Prefix]route.Path{
				netip.PrefixFrom(here, 32): {Kind: route.Host, Port: portHost, MTU: 1500, NextHop: snat4, Source: snat4, LocalSource: snat4},
			}, route.StaticHop{Port: portHost, NextHop: snat4, MAC: macOf(macKernel), Src: macOf(macXDP), MTU: 1500})
			b.serveDirect(mode, here, nil)
			req := request(false, header.ProtoUDP)
			f := b.one(portClient, req.build(t), portHost)
			want := req
			want.srcMAC, want.dstMAC, want.ttl = macXDP, macKernel, 63
			want.src, want.dst = ap(snat4, binary.BigEndian.Uint16(f[34:])), ap(here, 80)
			if w := want.build(t); !bytes.Equal(f, w) {
				t.Errorf("\n got %x\nwant %x", f, w)
			}
			ack := request(false, header.ProtoTCP)
			ack.flags = header.ACK
			isReset(t, b.one(portClient, ack.build(t), portClient))
			b.framesHome()
		})
	}
}

func TestTheTTLCountsInEveryMode(t *testing.T) {
	for mode, name := range modeNames {
		for _, flags := range []uint8{header.SYN, header.ACK} {
			b := newBench(t)
			b.serveDirect(mode, endpoint4, nil)
			p := request(false, header.ProtoTCP)
			p.flags, p.ttl = flags, 1
			isICMP(11, 0)(t, b.one(portClient, p.build(t), portClient))
			if b.drops()["ttl-exceeded"] != 1 {
				t.Errorf("%s: drops %v", name, b.drops())
			}
		}
	}
}

func TestAFrameWithoutRoomIsDropped(t *testing.T) {
	b := newBench(t)
	b.serveDirect(conntrack.ModeIPIP, endpoint4, nil)
	b.give(portClient, request(false, header.ProtoUDP).build(t))
	d := &b.q[portClient].In[0]
	near := d.Addr&^b.w.frameMask + 10
	copy(b.w.area[near:], b.w.area[d.Addr:d.Addr+uint64(d.Len)])
	d.Addr = near
	if got := b.round(); len(got[portServer]) != 0 || b.drops()["unsupported"] != 1 {
		t.Errorf("%d left, drops %v", len(got[portServer]), b.drops())
	}
	b.framesHome()
}

func TestMSSOfASynIsClamped(t *testing.T) {
	for _, tt := range []struct {
		name    string
		clamp   uint16
		mode    conntrack.Mode
		v6      bool
		partial bool
		want    uint16
	}{
		{"off", 0, conntrack.ModeIPIP, false, false, 1460},
		{"fixed", 1200, conntrack.ModeIPIP, false, false, 1200},
		{"fixed, partial checksum", 1200, conntrack.ModeIPIP, false, true, 1200},
		{"auto ipip", table.MSSClampAuto, conntrack.ModeIPIP, false, false, pathMTU - 20 - 40},
		{"auto gue", table.MSSClampAuto, conntrack.ModeGUE, false, false, pathMTU - 32 - 40},
		{"auto ipip IPv6", table.MSSClampAuto, conntrack.ModeIPIP, true, false, pathMTU - 20 - 60},
		{"auto l2dsr", table.MSSClampAuto, conntrack.ModeL2DSR, false, false, pathMTU - 40},
		{"larger than announced", 9000, conntrack.ModeIPIP, false, false, 1460},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.serveDirect(tt.mode, endpoint4, &table.Policy{MSSClamp: tt.clamp})
			req := request(tt.v6, header.ProtoTCP)
			req.partial, req.mss = tt.partial, 1460
			want := req
			want.ttl, want.partial, want.mss = 63, false, tt.want
			want.srcMAC, want.dstMAC = macWeirB, macServer
			for range 2 { // a SYN sent again too
				f := b.one(portClient, req.build(t), portServer)
				inner := f[header.EthernetLen+overhead(tt.mode, false):]
				if w := want.build(t)[header.EthernetLen:]; !bytes.Equal(inner, w) {
					t.Errorf("\n got %x\nwant %x", inner, w)
				}
			}
		})
	}
}

func TestNoAllocationPerEncapsulatedPacket(t *testing.T) {
	for mode, name := range modeNames {
		b := newBench(t)
		b.serveDirect(mode, endpoint4, nil)
		large := request(false, header.ProtoUDP)
		large.df, large.payload = false, 3000
		for kind, f := range map[string][]byte{"fits": request(false, header.ProtoUDP).build(t), "fragmented": large.build(t)} {
			n := testing.AllocsPerRun(200, func() {
				b.give(portClient, f)
				b.w.beginRound()
				b.w.receive()
				b.w.endRound()
				for _, q := range b.q {
					q.Out = q.Out[:0]
				}
			})
			if n != 0 {
				t.Errorf("%s, %s: %v allocations per packet", name, kind, n)
			}
		}
		b.framesHome()
	}
}

// RFC 9293, section 3.10.7.1: two that answer RSTs with RSTs would never end.
func TestNoResetIsAnsweredWithAReset(t *testing.T) {
	for mode, name := range modeNames {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := table.Service{Name: "ns/web", Pools: []table.Pool{{}}, Frontends: []table.Frontend{{AddrPort: ap(node4, 80), Proto: header.ProtoTCP, Mode: mode}}}
			if _, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil {
				t.Fatal(err)
			}
			rst := request(false, header.ProtoTCP)
			rst.flags = header.RST
			b.one(portClient, rst.build(t), -1)
			if b.drops()["no-endpoint"] != 1 {
				t.Errorf("drops %v", b.drops())
			}
			rst.flags = header.ACK
			isReset(t, b.one(portClient, rst.build(t), portClient))
			b.framesHome()
		})
	}
}
