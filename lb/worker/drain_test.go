package worker

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/header"
)

// While Weir drains, packets of no connection are the kernel's and the connections
// there are go on. Clients on the node, which the kernel cannot serve by the host
// veth, are refused.
func TestADrainLeavesNewConnectionsToTheKernel(t *testing.T) {
	b := newBench(t)
	old := packet{srcMAC: macClient, dstMAC: macWeir, src: netip.AddrPortFrom(client4, 1000), dst: netip.AddrPortFrom(node4, 80), proto: header.ProtoTCP, flags: header.SYN}
	b.one(portClient, old.build(t), portServer)
	b.lb.drain()

	ack := old
	ack.flags = header.ACK
	b.one(portClient, ack.build(t), portServer)

	for name, change := range map[string]func(*packet){
		"SYN":                 func(*packet) {},
		"SYN to no endpoint":  func(p *packet) { p.dst = netip.AddrPortFrom(empty4, 80) },
		"in the middle":       func(p *packet) { p.flags = header.ACK },
		"datagram":            func(p *packet) { p.proto = header.ProtoUDP },
		"to an SNAT port":     func(p *packet) { p.dst = netip.AddrPortFrom(snat4, 62000); p.flags = header.ACK },
		"datagram to a port":  func(p *packet) { p.dst = netip.AddrPortFrom(snat4, 62000); p.proto = header.ProtoUDP },
		"of a masquerade":     func(p *packet) { p.dst = netip.AddrPortFrom(snat4, 62001); p.flags = header.SYN | header.ACK },
		"reset in the middle": func(p *packet) { p.flags = header.RST },
	} {
		p := old
		p.src = netip.AddrPortFrom(client4, 2000)
		change(&p)
		f := p.build(t)
		got := b.one(portClient, bytes.Clone(f), portHost)
		if !bytes.Equal(got[0:6], macKernel) || !bytes.Equal(got[12:], f[12:]) {
			t.Errorf("%s: the kernel got another packet:\n%x\n%x", name, f, got)
		}
	}

	local := old
	local.srcMAC, local.dstMAC = net.HardwareAddr(macKernel), net.HardwareAddr(macXDP)
	local.src = netip.AddrPortFrom(client4, 3000)
	if f := b.one(portHost, local.build(t), portHost); f[header.EthernetLen+header.IPv4Len+13]&header.RST == 0 {
		t.Errorf("a client on the node gets %x", f)
	}
	local.proto = header.ProtoUDP
	if f := b.one(portHost, local.build(t), portHost); f[header.EthernetLen+9] != 1 {
		t.Errorf("a client on the node gets %x for a datagram", f)
	}
	if n := b.drops()["draining"]; n != 2 {
		t.Errorf("%d drops are counted, want 2", n)
	}
	b.framesHome()
}

// A drain waits for connections whose endpoint has answered and that are not over.
func TestADrainWaitsForConnections(t *testing.T) {
	b := newBench(t)
	client := netip.AddrPortFrom(client4, 1000)
	toWeir := packet{srcMAC: macClient, dstMAC: macWeir, src: client, dst: netip.AddrPortFrom(node4, 80), proto: header.ProtoTCP}
	back := packet{srcMAC: macServer, dstMAC: macWeirB, src: netip.AddrPortFrom(endpoint4, 8080), proto: header.ProtoTCP}
	expect := func(when string, want int) {
		t.Helper()
		if n := b.lb.flows.Awaited(); n != want {
			t.Errorf("%s: waits for %d connections, want %d", when, n, want)
		}
	}
	send := func(flags uint8, seq, ack uint32) []byte {
		p := toWeir
		p.flags, p.seq, p.ack = flags, seq, ack
		return b.one(portClient, p.build(t), portServer)
	}
	answer := func(flags uint8, seq, ack uint32) {
		p := back
		p.flags, p.seq, p.ack = flags, seq, ack
		b.one(portServer, p.build(t), portClient)
	}
	expect("at first", 0)
	f := send(header.SYN, 100, 0)
	back.dst = netip.AddrPortFrom(snat4, uint16(f[header.EthernetLen+header.IPv4Len])<<8|uint16(f[header.EthernetLen+header.IPv4Len+1]))
	expect("half open", 0)
	answer(header.SYN|header.ACK, 500, 101)
	send(header.ACK, 101, 501)
	expect("established", 1)
	send(header.FIN|header.ACK, 101, 501)
	expect("closed by the client", 1)
	answer(header.FIN|header.ACK, 501, 102)
	expect("closed by both", 0)
}
