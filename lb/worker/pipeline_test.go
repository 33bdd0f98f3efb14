package worker

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

func TestAFlowIsTranslatedBothWays(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
			for _, partial := range []bool{false, true} {
				t.Run(fmt.Sprintf("v6=%v/proto=%d/partial=%v", v6, proto, partial), func(t *testing.T) {
					b := newBench(t)
					req := request(v6, proto)
					req.partial = partial
					f := b.one(portClient, req.build(t), portServer)

					snat, ep := snat4, endpoint4
					if v6 {
						snat, ep = snat6, endpoint6
					}
					var p header.Packet
					if header.Parse(f, len(f), &p) != header.OK {
						t.Fatal("what was sent does not parse")
					}
					port := uint16(f[p.L4])<<8 | uint16(f[p.L4+1])
					if port < 61000 {
						t.Errorf("SNAT port %d", port)
					}
					want := req
					want.srcMAC, want.dstMAC, want.ttl, want.partial = macWeirB, macServer, 63, false
					want.src, want.dst = ap(snat, port), ap(ep, 8080)
					if w := want.build(t); !bytes.Equal(f, w) {
						t.Errorf("to the endpoint:\n got %x\nwant %x", f, w)
					}

					ans := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(ep, 8080), dst: ap(snat, port), proto: proto, payload: 200, partial: partial, df: true}
					if proto == header.ProtoTCP {
						ans.flags, ans.seq, ans.ack, ans.payload = header.SYN|header.ACK, 5000, 1001, 0
					}
					g := b.one(portServer, ans.build(t), portClient)
					back := ans
					back.srcMAC, back.dstMAC, back.ttl, back.partial = macWeir, macClient, 63, false
					back.src, back.dst = req.dst, req.src
					if w := back.build(t); !bytes.Equal(g, w) {
						t.Errorf("to the client:\n got %x\nwant %x", g, w)
					}
					if n := b.lb.flows.Flows(); n != 1 {
						t.Errorf("%d flows", n)
					}
					b.framesHome()
				})
			}
		}
	}
}

func TestUDPWithoutChecksumStaysWithout(t *testing.T) {
	b := newBench(t)
	req := request(false, header.ProtoUDP)
	req.noSum = true
	f := b.one(portClient, req.build(t), portServer)
	if f[40] != 0 || f[41] != 0 {
		t.Errorf("checksum %x", f[40:42])
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name   string
		in     int
		packet packet
		out    int // -1: nothing
		reason Drop
		check  func(t *testing.T, f []byte)
	}{
		{"TCP to an empty frontend gets RST", portClient, packet{dst: ap(empty4, 80), proto: header.ProtoTCP, flags: header.SYN}, portClient, DropNoEndpoint, isReset},
		{"UDP to an empty frontend gets ICMP", portClient, packet{dst: ap(empty4, 80), proto: header.ProtoUDP}, portClient, DropNoEndpoint, isICMP(3, 3)},
		{"an empty Local policy is silent", portClient, packet{dst: ap(empty4, 81), proto: header.ProtoTCP, flags: header.SYN}, -1, DropNoLocalEndpoint, nil},
		{"unknown TCP to a frontend gets RST after the takeover", portClient, packet{dst: ap(node4, 80), proto: header.ProtoTCP, flags: header.ACK}, portClient, DropNoConntrackEntry, isReset},
		{"unknown RST is not answered", portClient, packet{dst: ap(node4, 80), proto: header.ProtoTCP, flags: header.RST}, -1, DropNoConntrackEntry, nil},
		{"TCP without a flow to an SNAT port gets RST", portServer, packet{src: ap(endpoint4, 8080), dst: ap(snat4, 62000), proto: header.ProtoTCP, flags: header.ACK}, portServer, DropNoConntrackEntry, isReset},
		{"UDP without a flow to an SNAT port is dropped", portServer, packet{src: ap(endpoint4, 8080), dst: ap(snat4, 62000), proto: header.ProtoUDP}, -1, DropNoConntrackEntry, nil},
		{"TTL 1 gets ICMP time exceeded", portClient, packet{dst: ap(node4, 80), proto: header.ProtoUDP, ttl: 1}, portClient, DropTTL, isICMP(11, 0)},
		{"too large with DF gets ICMP fragmentation needed", portClient, packet{dst: ap(node4, 80), proto: header.ProtoUDP, payload: 1450, df: true}, portClient, DropTooBig, isICMP(3, 4)},
		{"not a frontend from the host veth is dropped", portHost, packet{dst: ap(node4, 22), proto: header.ProtoTCP, flags: header.SYN}, -1, DropPuntLoop, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			p := tt.packet
			if !p.src.IsValid() {
				p.src = ap(client4, 40000)
			}
			p.srcMAC, p.dstMAC = macClient, macWeir
			f := b.one(tt.in, p.build(t), tt.out)
			if tt.check != nil {
				tt.check(t, f)
			}
			if b.drops()[tt.reason.String()] != 1 {
				t.Errorf("counted %v, want %s", b.drops(), tt.reason)
			}
			b.framesHome()
		})
	}
}

func isReset(t *testing.T, f []byte) {
	t.Helper()
	tcp, ok := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeTCP).(*layers.TCP)
	if !ok || !tcp.RST {
		t.Errorf("not a RST: %x", f)
	}
}

func isICMP(typ, code uint8) func(*testing.T, []byte) {
	return func(t *testing.T, f []byte) {
		t.Helper()
		icmp, ok := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
		if !ok || icmp.TypeCode != layers.CreateICMPv4TypeCode(typ, code) {
			t.Errorf("not ICMP %d/%d: %x", typ, code, f)
		}
	}
}

func TestWhatIsNotOursGoesBackToTheKernel(t *testing.T) {
	b := newBench(t)
	p := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 40000), dst: ap(node4, 22), proto: header.ProtoTCP, flags: header.SYN, partial: true}
	f := b.one(portClient, p.build(t), portHost)
	want := p
	want.srcMAC, want.dstMAC, want.partial = macXDP, macKernel, false
	if w := want.build(t); !bytes.Equal(f, w) {
		t.Errorf("got %x\nwant %x", f, w)
	}
	b.framesHome()
}

func TestMidstreamTCPGoesToTheKernelDuringTakeover(t *testing.T) {
	b := newBench(t)
	b.w.takeoverUntil = b.lb.flows.Tick() + 1000
	p := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 40000), dst: ap(node4, 80), proto: header.ProtoTCP, flags: header.ACK, seq: 9}
	b.one(portClient, p.build(t), portHost)
}

func TestHeldPacketsFollowTheirNeighbor(t *testing.T) {
	b := newBench(t)
	b.lb.router.SetState(portServer, endpoint4, route.Resolving)
	req := request(false, header.ProtoUDP).build(t)
	b.one(portClient, req, -1)
	b.framesHome()
	b.lb.router.SetState(portServer, endpoint4, route.Valid)
	if got := b.round(); len(got[portServer]) != 1 {
		t.Fatalf("held packet was not sent: %v", b.drops())
	}
	b.lb.router.SetState(portServer, endpoint4, route.Resolving)
	b.one(portClient, req, -1)
	b.lb.router.SetState(portServer, endpoint4, route.Resolving)
	b.lb.router.SetState(portServer, endpoint4, route.Failed)
	got := b.round()
	if len(got[portClient]) != 1 {
		t.Fatalf("no answer for a packet held in vain: %v", b.drops())
	}
	isICMP(3, 1)(t, got[portClient][0])
	b.framesHome()
}

func TestAFullTransmitRingLosesOnlyWhatDoesNotFit(t *testing.T) {
	b := newBench(t)
	b.q[portServer].Room = 5
	for i := range 20 {
		p := request(false, header.ProtoUDP)
		p.src = ap(client4, uint16(1000+i))
		b.give(portClient, p.build(t))
	}
	got := b.round()
	if n := len(got[portServer]); n < 5 || n > 10 {
		t.Errorf("%d sent", n)
	}
	if b.drops()["transmit-ring-full"] != uint64(20-len(got[portServer])) {
		t.Errorf("drops %v, %d sent", b.drops(), len(got[portServer]))
	}
	b.framesHome()
}

func TestUDPFlowOfAGoneEndpointSelectsAnew(t *testing.T) {
	b := newBench(t)
	b.w.cfg.EndpointRemovalGrace = 0
	b.w.removed.graceTicks = 0
	req := request(false, header.ProtoUDP).build(t)
	b.one(portClient, req, portServer)
	b.serve(netip.Addr{}, endpoint6)
	isICMP(3, 3)(t, b.one(portClient, req, portClient))
	b.serve(endpoint4, endpoint6)
	b.one(portClient, req, portServer)
	b.framesHome()
}

func TestNoAllocationPerPacket(t *testing.T) {
	b := newBench(t)
	syn := request(false, header.ProtoTCP)
	b.one(portClient, syn.build(t), portServer)
	ack := syn
	ack.flags, ack.payload = header.ACK, 64
	half := ack.build(t)
	drop := half[:30]
	port := uint16(1)
	kinds := map[string]func() []byte{
		"half-open": func() []byte { return half },
		"drop":      func() []byte { return drop },
		"new": func() []byte {
			// Another source port each time, with its checksum kept right.
			port++
			f := syn.buildOnce(t)
			old := f[34:36]
			c := uint16(f[50]) | uint16(f[51])<<8
			delta := uint64(^(uint16(old[0]) | uint16(old[1])<<8)) + uint64(port>>8|port<<8)
			f[34], f[35] = byte(port>>8), byte(port)
			c = header.Update(c, delta)
			f[50], f[51] = byte(c), byte(c>>8)
			return f
		},
	}
	for name, next := range kinds {
		n := testing.AllocsPerRun(500, func() {
			b.give(portClient, next())
			b.w.beginRound()
			b.w.receive()
			b.w.endRound()
			for _, q := range b.q {
				q.Out = q.Out[:0]
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations per packet", name, n)
		}
	}
	b.framesHome()
}
