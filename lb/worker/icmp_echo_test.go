package worker

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/gaissmai/bart"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

var vip6 = netip.MustParseAddr("2001:db8:9::2")

// answerPings makes addresses load balancer addresses that nobody holds.
func (b *bench) answerPings(list ...netip.Addr) {
	t := new(bart.Lite)
	for _, a := range list {
		t.Insert(netip.PrefixFrom(a, a.BitLen()))
	}
	b.lb.vips.Store(t)
}

// ping is an echo request to a load balancer address, and pong the reply.
func ping(v6 bool, payload int) (req, reply icmpPacket) {
	body := make([]byte, payload)
	for i := range body {
		body[i] = byte(i * 3)
	}
	req = icmpPacket{srcMAC: macClient, dstMAC: macWeir, src: client4, dst: empty4, typ: 8, rest: 0x12340007, body: body, ttl: 7}
	typ := uint8(0)
	if v6 {
		req.src, req.dst, req.typ, typ = client6, vip6, 128, 129
	}
	reply = icmpPacket{srcMAC: macWeir, dstMAC: macClient, src: req.dst, dst: req.src, typ: typ, rest: req.rest, body: body, ttl: 64}
	return req, reply
}

func TestPingsOfALoadBalancerAddressAreAnswered(t *testing.T) {
	b := newBench(t)
	b.answerPings(empty4, vip6)
	n := uint64(0)
	for _, v6 := range []bool{false, true} {
		for _, size := range []int{0, 1, 56, 1400} {
			req, reply := ping(v6, size)
			sameFrame(t, b.one(portClient, req.build(t), portClient), reply.build(t))
			sameFrame(t, b.one(portClient, withTags(req.build(t), 8, 9), portClient), withTags(reply.build(t), 8, 9))
			sameFrame(t, b.one(portHost, req.build(t), portHost), reply.build(t)) // from the node itself
			n += 3
		}
	}
	if got := b.w.published.read().Values[counter.EchoReplies]; got != n {
		t.Errorf("%d counted, want %d", got, n)
	}
	b.framesHome()
}

func TestAPingsOptionsAreNotAnswered(t *testing.T) {
	b := newBench(t)
	b.answerPings(empty4, vip6)
	req, reply := ping(false, 56)
	req.options = []byte{7, 7, 4, 0, 0, 0, 0, 0} // record route
	sameFrame(t, b.one(portClient, req.build(t), portClient), reply.build(t))

	req, reply = ping(true, 56)
	f := req.build(t)
	options := []byte{header.ProtoICMPv6, 0, 1, 4, 0, 0, 0, 0} // destination options, of padding
	f = append(f[:54:54], append(options, f[54:]...)...)
	f[19], f[20] = f[19]+8, 60
	sameFrame(t, b.one(portClient, f, portClient), reply.build(t))
	b.framesHome()
}

func TestAPingOverSeveralBuffersIsAnswered(t *testing.T) {
	b := newBench(t)
	b.answerPings(empty4)
	req, reply := ping(false, 8900)
	whole, want := req.build(t), reply.build(t)
	b.giveInPieces(portClient, whole, 3000)
	got := b.round()
	if sent := bytes.Join(got[portClient], nil); !bytes.Equal(sent, want) {
		t.Errorf("%d bytes sent, want %d", len(sent), len(want))
	}
	req.options = []byte{7, 7, 4, 0, 0, 0, 0, 0}
	b.giveInPieces(portClient, req.build(t), 3000)
	if got := b.round(); len(got[portClient]) != 0 || b.drops()["unsupported"] != 1 {
		t.Errorf("%d sent, drops %v", len(got[portClient]), b.drops())
	}
	b.framesHome()
}

func TestPingsThatAreNotAnswered(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, tt := range []struct {
			name   string
			change func(p *icmpPacket)
			in     int
			out    int // -1: dropped
			reason Drop
		}{
			{"of an address of the node", func(p *icmpPacket) {
				if p.dst = node4; v6 {
					p.dst = node6
				}
			}, portClient, portHost, 0},
			{"of an address of the node, by the host veth", func(p *icmpPacket) {
				if p.dst = node4; v6 {
					p.dst = node6
				}
			}, portHost, -1, DropUnsupportedProtocol},
			{"from a group of stations", func(p *icmpPacket) { p.srcMAC = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} }, portClient, -1, DropEchoLimit},
			{"a reply", func(p *icmpPacket) {
				if p.typ = 0; v6 {
					p.typ = 129
				}
			}, portHost, -1, DropUnsupportedProtocol},
		} {
			t.Run(fmt.Sprintf("v6=%v/%s", v6, tt.name), func(t *testing.T) {
				b := newBench(t)
				b.answerPings(empty4, vip6)
				p, _ := ping(v6, 8)
				tt.change(&p)
				b.one(tt.in, p.build(t), tt.out)
				if tt.out < 0 && b.drops()[tt.reason.String()] != 1 || tt.out >= 0 && len(b.drops()) != 0 {
					t.Errorf("counted %v, want %v", b.drops(), tt.reason)
				}
				b.framesHome()
			})
		}
	}
}

// A ping from everybody's address is to make everybody answer.
func TestAPingFromABroadcastAddressIsAMartian(t *testing.T) {
	b := newBench(t)
	b.answerPings(empty4)
	p, _ := ping(false, 8)
	p.src = netip.MustParseAddr("192.0.2.255")
	b.one(portClient, p.build(t), -1)
	if b.drops()["martian"] != 1 {
		t.Errorf("counted %v", b.drops())
	}
}

// One source that floods is cut off, and the others get their answers.
func TestAnswersAreLimitedPerSource(t *testing.T) {
	b := newBench(t)
	b.answerPings(empty4)
	var others []netip.Addr
	for i := range byte(4) {
		others = append(others, netip.AddrFrom4([4]byte{192, 0, 2, 9 + i}))
	}
	for name, kind := range map[string]struct {
		build func(src netip.Addr) []byte
		most  int
		drop  Drop
	}{
		"pings":  {func(src netip.Addr) []byte { p, _ := ping(false, 8); p.src = src; return p.build(t) }, echoesPerSource, DropEchoLimit},
		"RSTs":   {refused(t, header.ProtoTCP), resetsPerSource, DropReplyLimit},
		"errors": {refused(t, header.ProtoUDP), errorsPerSource, DropNoEndpoint},
	} {
		b.round()
		flood := kind.build(client4)
		answered := 0
		for range kind.most + 50 {
			b.give(portClient, flood)
			answered += len(b.roundAtTheSameTime()[portClient])
		}
		if answered != kind.most {
			t.Errorf("%s: %d answered, want %d", name, answered, kind.most)
		}
		if b.drops()[kind.drop.String()] < 50 {
			t.Errorf("%s: counted %v", name, b.drops())
		}
		refused := 0
		for _, a := range others {
			b.give(portClient, kind.build(a))
			refused += 1 - len(b.roundAtTheSameTime()[portClient])
		}
		// A source may share a place with the flood: 1 in 1,024.
		if refused > 1 {
			t.Errorf("%s: %d of %d other sources got no answer", name, refused, len(others))
		}
	}
	b.framesHome()
}

// refused makes packets that are refused.
func refused(t *testing.T, proto uint8) func(src netip.Addr) []byte {
	return func(src netip.Addr) []byte {
		p := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(src, 40000), dst: ap(empty4, 80), proto: proto}
		if proto == header.ProtoTCP {
			p.flags = header.SYN
		}
		return p.build(t)
	}
}

func TestNoAllocationPerICMPMessage(t *testing.T) {
	c := converse(t, true, header.ProtoTCP)
	c.answerPings(empty4, vip6)
	passed, _ := c.fromBehind(c.router, 2, 0, 1400)
	foreign := passed
	c.sent.src = ap(c.snat, 65000)
	foreign.body = quoted(t, c.sent)
	p, _ := ping(true, 56)
	for name, f := range map[string][]byte{"error": passed.build(t), "foreign error": foreign.build(t), "ping": p.build(t)} {
		if n := testing.AllocsPerRun(300, func() {
			c.give(portServer, f)
			c.w.beginRound()
			c.w.receive()
			c.w.endRound()
			for _, q := range c.q {
				q.Out = q.Out[:0]
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	c.framesHome()
}
