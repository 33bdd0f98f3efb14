package worker

import (
	"bytes"
	"testing"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/snat"
)

// The kernel translates from the node's addresses too, and to any port: an answer without a
// flow is the kernel's. A packet that opens a connection is refused, as is every packet to an
// address of Weir alone.
func TestAnswersToTheKernelsTranslationArePunted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*packet)
		shared bool
		in     int
		out    int // -1: dropped
	}{
		{"TCP data", func(p *packet) { p.flags = header.ACK }, true, portServer, portHost},
		{"TCP SYN-ACK", func(p *packet) { p.flags = header.SYN | header.ACK }, true, portServer, portHost},
		{"TCP FIN", func(p *packet) { p.flags = header.FIN | header.ACK }, true, portServer, portHost},
		{"TCP RST", func(p *packet) { p.flags = header.RST }, true, portServer, portHost},
		{"TCP SYN", func(p *packet) { p.flags = header.SYN }, true, portServer, portServer},
		{"datagram", func(p *packet) { p.proto = header.ProtoUDP }, true, portServer, portHost},
		{"TCP data from the host veth", func(p *packet) { p.flags = header.ACK }, true, portHost, portHost},
		{"datagram from the host veth", func(p *packet) { p.proto = header.ProtoUDP }, true, portHost, -1},
		{"TCP data to Weir's address", func(p *packet) { p.flags = header.ACK }, false, portServer, portServer},
		{"datagram to Weir's address", func(p *packet) { p.proto = header.ProtoUDP }, false, portServer, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			own := snat.Source{Addr: snat4, Lo: 61000, Hi: 65535, Shared: tt.shared}
			b.lb.node.Store(&Node{Addresses: snat.New(snat.Config{Owned: []snat.Source{own}})})
			p := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), dst: ap(snat4, 62000), proto: header.ProtoTCP}
			tt.change(&p)
			f := p.build(t)
			got := b.one(tt.in, bytes.Clone(f), tt.out)

			if tt.in == portServer && tt.out == portHost {
				if !bytes.Equal(got[0:6], macKernel) || !bytes.Equal(got[12:], f[12:]) || len(b.drops()) != 0 {
					t.Errorf("the kernel got another packet, or there were drops (%v):\n%x\n%x", b.drops(), f, got)
				}
			} else if tt.out >= 0 {
				isReset(t, got)
			}
			b.framesHome()
		})
	}
}

// The path MTU and the reachability of a connection of the kernel are the kernel's.
func TestAnErrorAboutTheKernelsTranslationIsPunted(t *testing.T) {
	c := converse(t, false, header.ProtoUDP)
	own := snat.Source{Addr: snat4, Lo: 61000, Hi: 65535, Shared: true}
	c.lb.node.Store(&Node{Addresses: snat.New(snat.Config{Owned: []snat.Source{own}})})
	in, _ := c.fromBehind(c.router, 3, 4, 1400)
	c.sent.src = ap(c.snat, 65000)
	in.body = quoted(t, c.sent)
	want := in
	want.srcMAC, want.dstMAC = macXDP, macKernel
	sameFrame(t, c.one(portServer, in.build(t), portHost), want.build(t))
	if len(c.drops()) != 0 {
		t.Errorf("drops %v", c.drops())
	}
	c.framesHome()
}
