package worker

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
)

var (
	macReturn = net.HardwareAddr{2, 0, 0, 0, 0, 0x22}

	pod4  = netip.MustParseAddr("10.40.0.2")
	pod6  = netip.MustParseAddr("2001:db8:40::2")
	other = netip.MustParseAddr("198.51.100.9") // another address of the node
	hop4  = [3]netip.Addr{netip.MustParseAddr("169.254.77.1"), netip.MustParseAddr("169.254.77.2"), netip.MustParseAddr("169.254.77.3")}
	hop6  = [3]netip.Addr{netip.MustParseAddr("fd77::1"), netip.MustParseAddr("fd77::2"), netip.MustParseAddr("fd77::3")}
)

// newHostBench is a bench with pods and the node's own addresses behind the
// host veth; answers to clients' own addresses come back.
func newHostBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	behind := func(hop [3]netip.Addr, local bool) route.Path {
		return route.Path{Kind: route.Host, Local: local, Port: portHost, Interface: 9, MTU: 1500, NextHop: hop[0], LocalSource: hop[1], Source: hop[2]}
	}
	to := map[netip.Prefix]route.Path{
		netip.MustParsePrefix("2001:db8::/64"): {Kind: route.Attached, Port: portClient, MTU: 1500, Source: node6, LocalSource: node6},
		netip.MustParsePrefix("10.1.0.0/24"):   {Kind: route.Attached, Port: portServer, MTU: 1500, Source: snat4, LocalSource: snat4},
		netip.PrefixFrom(pod4, 32):             behind(hop4, false),
		netip.PrefixFrom(pod6, 128):            behind(hop6, false),
		netip.PrefixFrom(node4, 32):            behind(hop4, true),
		netip.PrefixFrom(node6, 128):           behind(hop6, true),
		netip.PrefixFrom(other, 32):            behind(hop4, true),
	}
	hops := []route.StaticHop{
		{Port: portClient, NextHop: client6, MAC: macOf(macClient), Src: macOf(macWeir), MTU: 1500},
		{Port: portServer, NextHop: endpoint4, MAC: macOf(macServer), Src: macOf(macWeirB), MTU: 1500},
	}
	for _, hop := range [][3]netip.Addr{hop4, hop6} {
		hops = append(hops,
			route.StaticHop{Port: portHost, NextHop: hop[0], MAC: macOf(macKernel), Src: macOf(macXDP), MTU: 1500},
			route.StaticHop{Port: portHost, NextHop: hop[1], MAC: macOf(macKernel), Src: macOf(macReturn), MTU: 1500})
	}
	b.routes(to, hops...)
	b.lb.node.Store(&Node{Addresses: snat.New(snat.Config{Lo: 61000, Hi: 65535}), ReturnPath: true})
	return b
}

// serveMode serves port 80 and 81 of the node's addresses, TCP and UDP, from
// port 8080 of an endpoint.
func (b *bench) serveMode(mode conntrack.Mode, ep netip.Addr) {
	b.t.Helper()
	s := table.Service{Name: "ns/web", Pools: []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: ap(ep, 8080), Local: true}}}}}
	frontend := node4
	if ep.Is6() {
		frontend = node6
	}
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		for _, port := range []uint16{80, 81} {
			s.Frontends = append(s.Frontends, table.Frontend{AddrPort: ap(frontend, port), Proto: proto, Mode: mode})
		}
	}
	if _, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil {
		b.t.Fatal(err)
	}
}

func TestTheClientsAddressIsKept(t *testing.T) {
	for _, mode := range []conntrack.Mode{conntrack.ModeDNAT, conntrack.ModeL2DSR, conntrack.ModeIPIP} {
		for _, ep := range []netip.Addr{pod4, pod6, node4, node6} {
			for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
				for _, partial := range []bool{false, true} {
					t.Run(fmt.Sprintf("mode=%d/%s/proto=%d/partial=%v", mode, ep, proto, partial), func(t *testing.T) {
						b := newHostBench(t)
						b.serveMode(mode, ep)
						req := request(ep.Is6(), proto)
						req.partial = partial
						f := b.one(portClient, req.build(t), portHost)
						want := req
						want.srcMAC, want.dstMAC, want.ttl, want.partial = macReturn, macKernel, 63, false
						want.dst = ap(ep, 8080)
						if w := want.build(t); !bytes.Equal(f, w) {
							t.Errorf("to the endpoint:\n got %x\nwant %x", f, w)
						}
						ans := packet{srcMAC: macKernel, dstMAC: macXDP, src: want.dst, dst: req.src, proto: proto, payload: 100, partial: partial, df: true}
						if proto == header.ProtoTCP {
							ans.flags, ans.seq, ans.ack, ans.payload = header.SYN|header.ACK, 5000, 1001, 0
						}
						g := b.one(portHost, ans.build(t), portClient)
						back := ans
						back.srcMAC, back.dstMAC, back.ttl, back.partial = macWeir, macClient, 63, false
						back.src = req.dst
						if w := back.build(t); !bytes.Equal(g, w) {
							t.Errorf("to the client:\n got %x\nwant %x", g, w)
						}
						b.framesHome()
					})
				}
			}
		}
	}
}

// The next packet of a flow asks for the way again when routes have changed:
// it must leave by the same MAC address.
func TestTheReturnPathOutlivesAChangeOfRoutes(t *testing.T) {
	b := newHostBench(t)
	b.serveMode(conntrack.ModeDNAT, pod4)
	req := request(false, header.ProtoUDP).build(t)
	first := b.one(portClient, req, portHost)
	b.lb.flows.Range(func(r conntrack.Ref) bool { b.lb.flows.Unsettle(r); return true })
	clear(b.w.hopCache[:])
	if again := b.one(portClient, req, portHost); !bytes.Equal(first, again) {
		t.Errorf("\n got %x\nwant %x", again, first)
	}
}

// modeOf is the mode of the only flow.
func (b *bench) modeOf() conntrack.Mode {
	b.t.Helper()
	var m conntrack.Mode
	n := 0
	b.lb.flows.Range(func(r conntrack.Ref) bool {
		m = b.lb.flows.Entry(r).Mode
		n++
		return true
	})
	if n != 1 {
		b.t.Fatalf("%d flows", n)
	}
	return m
}

func TestWhereTheAnswerWouldNotComeBackItIsNAT(t *testing.T) {
	kept := func(*bench, *packet) {}
	for _, tt := range []struct {
		name    string
		ep      netip.Addr
		proto   uint8
		prepare func(*bench, *packet)
		want    conntrack.Mode
		in, out int
	}{
		{"a pod", pod4, header.ProtoTCP, kept, conntrack.ModeDNAT, portClient, portHost},
		{"no connection marks", pod4, header.ProtoTCP, func(b *bench, _ *packet) { b.lb.node.Load().ReturnPath = false }, conntrack.ModeNAT, portClient, portHost},
		{"an attached interface", endpoint4, header.ProtoTCP, kept, conntrack.ModeNAT, portClient, portServer},
		{"a client on the node", pod4, header.ProtoTCP, func(_ *bench, p *packet) { p.src = ap(other, 40000) }, conntrack.ModeNAT, portHost, portHost},
		{"a datagram server on the address that the kernel prefers", node4, header.ProtoUDP, kept, conntrack.ModeDNAT, portClient, portHost},
		{"a datagram server on another address", other, header.ProtoUDP, kept, conntrack.ModeNAT, portClient, portHost},
		{"a TCP server on another address", other, header.ProtoTCP, kept, conntrack.ModeDNAT, portClient, portHost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newHostBench(t)
			b.serveMode(conntrack.ModeDNAT, tt.ep)
			p := request(false, tt.proto)
			tt.prepare(b, &p)
			b.one(tt.in, p.build(t), tt.out)
			if m := b.modeOf(); m != tt.want {
				t.Errorf("mode %d, want %d", m, tt.want)
			}
			b.framesHome()
		})
	}
}

// A client may use one port towards two frontends. Where both lead to one
// endpoint it could not tell the connections apart: the second one gets nat.
func TestTwoFrontendsOneClientPortOneEndpoint(t *testing.T) {
	b := newHostBench(t)
	b.serveMode(conntrack.ModeDNAT, pod4)
	req := request(false, header.ProtoUDP)
	b.one(portClient, req.build(t), portHost)
	second := req
	second.dst = ap(node4, 81)
	f := b.one(portClient, second.build(t), portHost)
	port := uint16(f[34])<<8 | uint16(f[35])
	want := second
	want.srcMAC, want.dstMAC, want.ttl = macXDP, macKernel, 63
	want.src, want.dst = ap(hop4[1], port), ap(pod4, 8080)
	if w := want.build(t); !bytes.Equal(f, w) {
		t.Errorf("\n got %x\nwant %x", f, w)
	}
	for _, c := range []struct{ to, frontend netip.AddrPort }{{req.src, req.dst}, {want.src, second.dst}} {
		ans := packet{srcMAC: macKernel, dstMAC: macXDP, src: ap(pod4, 8080), dst: c.to, proto: header.ProtoUDP, payload: 5}
		g := b.one(portHost, ans.build(t), portClient)
		back := ans
		back.srcMAC, back.dstMAC, back.ttl, back.src, back.dst = macWeir, macClient, 63, c.frontend, req.src
		if w := back.build(t); !bytes.Equal(g, w) {
			t.Errorf("answer to %v:\n got %x\nwant %x", c.to, g, w)
		}
	}
	b.framesHome()
}

// What has no flow goes nowhere: it came from the kernel.
func TestAnAnswerWithoutAFlowIsNotPunted(t *testing.T) {
	b := newHostBench(t)
	ans := packet{srcMAC: macKernel, dstMAC: macXDP, src: ap(pod4, 8080), dst: ap(client4, 40000), proto: header.ProtoUDP}
	b.one(portHost, ans.build(t), -1)
	if b.drops()[DropPuntLoop.String()] != 1 {
		t.Errorf("drops %v", b.drops())
	}
}

// A tag names a network on the way in; beyond the host veth it would name another.
func TestPacketsToTheHostVethLoseTheirTags(t *testing.T) {
	b := newHostBench(t)
	b.serveMode(conntrack.ModeDNAT, pod4)
	req := request(false, header.ProtoUDP)
	plain := req.build(t)
	tagged := append(append(append([]byte{}, plain[:12]...), 0x81, 0, 0, 100), plain[12:]...)
	want := req
	want.srcMAC, want.dstMAC, want.ttl, want.dst = macReturn, macKernel, 63, ap(pod4, 8080)
	for range 3 { // the first makes the flow, the others are established
		if f := b.one(portClient, tagged, portHost); !bytes.Equal(f, want.build(t)) {
			t.Errorf("\n got %x\nwant %x", f, want.build(t))
		}
	}
	b.framesHome()
}
