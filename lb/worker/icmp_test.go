package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/xsk"
)

// icmpPacket is an ICMP message to be built, and to be compared with.
type icmpPacket struct {
	srcMAC, dstMAC net.HardwareAddr
	src, dst       netip.Addr
	typ, code      uint8
	rest           uint32 // the second word of the ICMP header
	body           []byte
	ttl            uint8
	options        []byte // of the IPv4 header
	df             bool
}

func (p icmpPacket) build(t testing.TB) []byte {
	t.Helper()
	if p.ttl == 0 {
		p.ttl = 64
	}
	eth := &layers.Ethernet{SrcMAC: p.srcMAC, DstMAC: p.dstMAC, EthernetType: layers.EthernetTypeIPv4}
	body := append(binary.BigEndian.AppendUint32(nil, p.rest), p.body...)
	var ls []gopacket.SerializableLayer
	n := header.EthernetLen + header.ICMPLen + len(p.body)
	if p.src.Is4() {
		ip := &layers.IPv4{Version: 4, TTL: p.ttl, Protocol: layers.IPProtocolICMPv4, SrcIP: p.src.AsSlice(), DstIP: p.dst.AsSlice()}
		if p.df {
			ip.Flags = layers.IPv4DontFragment
		}
		if len(p.options) > 0 {
			ip.Options = []layers.IPv4Option{{OptionType: p.options[0], OptionLength: uint8(len(p.options)), OptionData: p.options[2:]}}
		}
		icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(p.typ, p.code), Id: uint16(p.rest >> 16), Seq: uint16(p.rest)}
		ls = []gopacket.SerializableLayer{eth, ip, icmp, gopacket.Payload(p.body)}
		n += header.IPv4Len + len(p.options)
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip := &layers.IPv6{Version: 6, HopLimit: p.ttl, NextHeader: layers.IPProtocolICMPv6, SrcIP: p.src.AsSlice(), DstIP: p.dst.AsSlice()}
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(p.typ, p.code)}
		_ = icmp.SetNetworkLayerForChecksum(ip)
		ls = []gopacket.SerializableLayer{eth, ip, icmp, gopacket.Payload(body)}
		n += header.IPv6Len
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(buf.Bytes()[:n])
}

// quoted is a packet as an error quotes it.
func quoted(t testing.TB, p packet) []byte {
	p.srcMAC, p.dstMAC = macClient, macWeir
	return p.build(t)[header.EthernetLen:]
}

// conversation is a flow with the packets that Weir makes of it.
type conversation struct {
	*bench
	request, sent  packet // from the client, and to the endpoint
	answer, passed packet // from the endpoint, and to the client
	node, client   netip.Addr
	snat, ep       netip.Addr
	router         netip.Addr // somewhere on the way
}

func converse(t testing.TB, v6 bool, proto uint8) *conversation {
	t.Helper()
	c := &conversation{bench: newBench(t), request: request(v6, proto), node: node4, client: client4, snat: snat4, ep: endpoint4,
		router: netip.MustParseAddr("172.16.0.1")}
	if v6 {
		c.node, c.client, c.snat, c.ep, c.router = node6, client6, snat6, endpoint6, netip.MustParseAddr("2001:db8:77::1")
	}
	f := c.one(portClient, c.request.build(t), portServer)
	var p header.Packet
	if header.Parse(f, len(f), &p) != header.OK {
		t.Fatal("what was sent does not parse")
	}
	c.sent = c.request
	c.sent.src, c.sent.dst = ap(c.snat, binary.BigEndian.Uint16(f[p.L4:])), ap(c.ep, 8080)
	c.answer = packet{src: c.sent.dst, dst: c.sent.src, proto: proto, payload: 1150, df: true}
	if proto == header.ProtoTCP {
		c.answer.flags, c.answer.seq, c.answer.ack = header.ACK, 77, 1001
	}
	c.passed = c.answer
	c.passed.src, c.passed.dst = c.request.dst, c.request.src
	// As they are where the error is made.
	c.request.ttl, c.sent.ttl, c.answer.ttl, c.passed.ttl = 60, 60, 60, 60
	return c
}

// fromBehind is an error about what was sent to the endpoint, and what the
// client gets of it.
func (c *conversation) fromBehind(from netip.Addr, typ, code uint8, rest uint32) (in, want icmpPacket) {
	in = icmpPacket{srcMAC: macServer, dstMAC: macWeirB, src: from, dst: c.snat, typ: typ, code: code, rest: rest, body: quoted(c.t, c.sent)}
	want = icmpPacket{srcMAC: macWeir, dstMAC: macClient, src: c.node, dst: c.client, typ: typ, code: code, rest: rest, body: quoted(c.t, c.request), ttl: 63}
	return in, want
}

// fromFront is an error about what was sent to the client, and what the
// endpoint gets of it.
func (c *conversation) fromFront(from netip.Addr, typ, code uint8, rest uint32) (in, want icmpPacket) {
	in = icmpPacket{srcMAC: macClient, dstMAC: macWeir, src: from, dst: c.node, typ: typ, code: code, rest: rest, body: quoted(c.t, c.passed)}
	want = icmpPacket{srcMAC: macWeirB, dstMAC: macServer, src: c.snat, dst: c.ep, typ: typ, code: code, rest: rest, body: quoted(c.t, c.answer), ttl: 63}
	return in, want
}

// sameFrame compares what was sent with what was to be sent.
func sameFrame(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("\n got %x\nwant %x", got, want)
	}
}

type errorKind struct {
	name      string
	typ, code uint8
	rest      uint32
}

var errors4 = []errorKind{{"host unreachable", 3, 1, 0}, {"port unreachable", 3, 3, 0}, {"fragmentation needed", 3, 4, 1400}, {"time exceeded", 11, 0, 0}, {"parameter problem", 12, 0, 8 << 24}}
var errors6 = []errorKind{{"port unreachable", 1, 4, 0}, {"packet too big", 2, 0, 1400}, {"time exceeded", 3, 0, 0}, {"parameter problem", 4, 1, 6}}

func errorKinds(v6 bool) []errorKind {
	if v6 {
		return errors6
	}
	return errors4
}

func TestAnErrorAboutAFlowReachesItsOtherSide(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
			for _, e := range errorKinds(v6) {
				t.Run(fmt.Sprintf("v6=%v/proto=%d/%s", v6, proto, e.name), func(t *testing.T) {
					c := converse(t, v6, proto)
					for _, from := range []netip.Addr{c.ep, c.router} {
						in, want := c.fromBehind(from, e.typ, e.code, e.rest)
						sameFrame(t, c.one(portServer, in.build(t), portClient), want.build(t))
					}
					for _, from := range []netip.Addr{c.client, c.router} {
						in, want := c.fromFront(from, e.typ, e.code, e.rest)
						sameFrame(t, c.one(portClient, in.build(t), portServer), want.build(t))
					}
					if n := c.w.published.read().Values[counter.ICMPForwarded]; n != 4 {
						t.Errorf("%d counted", n)
					}
					c.framesHome()
				})
			}
		}
	}
}

func TestATaggedErrorLosesItsTags(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		c := converse(t, v6, header.ProtoTCP)
		e := errorKinds(v6)[1]
		in, want := c.fromBehind(c.router, e.typ, e.code, e.rest)
		for _, tags := range [][]uint16{{5}, {5, 6}} {
			sameFrame(t, c.one(portServer, withTags(in.build(t), tags...), portClient), want.build(t))
		}
		c.framesHome()
	}
}

// withTags puts VLAN tags into a frame, the outermost first.
func withTags(f []byte, tags ...uint16) []byte {
	out := bytes.Clone(f[:12])
	for i, v := range tags {
		tpid := uint16(header.EtherTypeVLAN)
		if i == 0 && len(tags) == 2 {
			tpid = header.EtherTypeQinQ
		}
		out = binary.BigEndian.AppendUint16(out, tpid)
		out = binary.BigEndian.AppendUint16(out, v)
	}
	return append(out, f[12:]...)
}

// A router may quote no more than the IP header and eight bytes (RFC 792), and
// a bad one less.
func TestAQuoteMayBeCutAnywhere(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
			c := converse(t, v6, proto)
			e := errorKinds(v6)[2]
			in, want := c.fromBehind(c.router, e.typ, e.code, e.rest)
			whole, wholeWant := in.body, want.body
			ports := header.IPv4Len + 4
			if v6 {
				ports = header.IPv6Len + 4
			}
			sum := ports - 4 + tcpChecksum
			if proto == header.ProtoUDP {
				sum = ports - 4 + udpChecksum
			}
			malformed := uint64(0)
			for n := range min(len(whole), 120) {
				in.body, want.body = whole[:n], bytes.Clone(wholeWant[:n])
				if n == sum+1 {
					want.body[sum] = whole[sum] // half a checksum cannot be updated
				}
				if n < ports {
					malformed++
					c.one(portServer, in.build(t), -1)
					continue
				}
				sameFrame(t, c.one(portServer, in.build(t), portClient), want.build(t))
			}
			if got := c.drops()["icmp-malformed"]; got != malformed {
				t.Errorf("v6=%v proto=%d: %d counted as malformed, want %d", v6, proto, got, malformed)
			}
			c.framesHome()
		}
	}
}

func TestErrorsThatAreNone(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		body := func(in *icmpPacket, f func(b []byte)) { in.body = bytes.Clone(in.body); f(in.body) }
		later := func(b []byte) { b[7] = 100 }
		if v6 {
			later = func(b []byte) { b[6] = 44; b[40], b[42], b[43] = header.ProtoUDP, 8, 0 }
		}
		kind := errorKinds(v6)[1]
		for _, tt := range []struct {
			name   string
			change func(c *conversation, in *icmpPacket)
			in     int
			out    int // -1: dropped
			reason Drop
		}{
			{"about an unknown port", func(c *conversation, in *icmpPacket) {
				c.sent.src = ap(c.snat, 65000)
				in.body = quoted(t, c.sent)
			}, portServer, -1, DropICMPNoFlow},
			{"about an unknown client", func(c *conversation, in *icmpPacket) {
				*in, _ = c.fromFront(c.router, kind.typ, kind.code, kind.rest)
				c.passed.dst = ap(c.client, 4711)
				in.body = quoted(t, c.passed)
			}, portClient, -1, DropICMPNoFlow},
			{"about nothing of Weir's", func(c *conversation, in *icmpPacket) {
				c.sent.src = ap(c.snat, 22)
				in.body = quoted(t, c.sent)
			}, portServer, portHost, 0},
			{"about nothing of Weir's, from the host veth", func(c *conversation, in *icmpPacket) {
				c.sent.src = ap(c.snat, 22)
				in.body = quoted(t, c.sent)
			}, portHost, -1, DropPuntLoop},
			{"to another than it is about", func(c *conversation, in *icmpPacket) { in.dst = c.node }, portServer, -1, DropICMPMalformed},
			{"about another version", func(c *conversation, in *icmpPacket) { body(in, func(b []byte) { b[0] ^= 0x30 }) }, portServer, -1, DropICMPMalformed},
			{"about a later fragment", func(c *conversation, in *icmpPacket) { body(in, later) }, portServer, portHost, 0},
			{"about a later fragment, from the host veth", func(c *conversation, in *icmpPacket) { body(in, later) }, portHost, -1, DropICMPNoFlow},
			{"of an unknown type", func(c *conversation, in *icmpPacket) { in.typ = 42 }, portServer, portHost, 0},
			{"of an unknown type, from the host veth", func(c *conversation, in *icmpPacket) { in.typ = 42 }, portHost, -1, DropUnsupportedProtocol},
			{"a redirect", func(c *conversation, in *icmpPacket) {
				in.typ = 5
				if v6 {
					in.typ = 137
				}
			}, portServer, portHost, 0},
			{"with its TTL used up", func(c *conversation, in *icmpPacket) { in.ttl = 1 }, portServer, -1, DropTTL},
			{"with no way on", func(c *conversation, in *icmpPacket) {
				hop := client4
				if v6 {
					hop = client6
				}
				c.lb.router.SetState(portClient, hop, route.Failed)
			}, portServer, -1, DropNeighbor},
		} {
			t.Run(fmt.Sprintf("v6=%v/%s", v6, tt.name), func(t *testing.T) {
				c := converse(t, v6, header.ProtoUDP)
				in, _ := c.fromBehind(c.router, kind.typ, kind.code, kind.rest)
				tt.change(c, &in)
				c.one(tt.in, in.build(t), tt.out)
				if tt.out < 0 && c.drops()[tt.reason.String()] != 1 || tt.out >= 0 && len(c.drops()) != 0 {
					t.Errorf("counted %v, want %v", c.drops(), tt.reason)
				}
				if n := c.lb.flows.Flows(); n != 1 {
					t.Errorf("%d flows", n)
				}
				c.framesHome()
			})
		}
	}
}

func TestAnErrorShorterThanItsHeader(t *testing.T) {
	b := newBench(t)
	f := icmpPacket{srcMAC: macClient, dstMAC: macWeir, src: client4, dst: node4, typ: 3}.build(t)
	f = f[:header.EthernetLen+header.IPv4Len+4]
	ip := f[header.EthernetLen:]
	ip[3], ip[10], ip[11] = 24, 0, 0
	binary.LittleEndian.PutUint16(ip[10:], header.Checksum(0, ip[:20]))
	b.one(portClient, f, -1)
	if b.drops()["icmp-malformed"] != 1 {
		t.Errorf("counted %v", b.drops())
	}
	b.framesHome()
}

// kube-proxy's connections of before live on in the kernel.
func TestAnErrorAboutAnUnknownFlowGoesToTheKernelDuringTakeover(t *testing.T) {
	c := converse(t, false, header.ProtoTCP)
	c.w.takeoverUntil = c.lb.flows.Tick() + 1000
	in, _ := c.fromFront(c.router, 3, 4, 1400)
	c.passed.dst = ap(c.client, 4711)
	in.body = quoted(t, c.passed)
	want := in
	want.srcMAC, want.dstMAC = macXDP, macKernel
	sameFrame(t, c.one(portClient, in.build(t), portHost), want.build(t))
}

func TestAnErrorKeepsNoFlowAlive(t *testing.T) {
	c := converse(t, false, header.ProtoUDP)
	ref := c.lb.flows.Worker(0)
	c.w.beginRound()
	key := conntrack.MakeKey(c.request.src, c.request.dst, header.ProtoUDP)
	conn := c.lb.flows.Conn(ref.Lookup(c.lb.flows.Hash(&key), &key))
	c.w.endRound()
	seen, state := conn.LastSeen(), conn.State()
	for c.lb.flows.Tick() == seen { // a sixteenth of a second
	}
	in, _ := c.fromBehind(c.router, 3, 1, 0)
	c.one(portServer, in.build(t), portClient)
	if conn.LastSeen() != seen || conn.State() != state {
		t.Errorf("last seen at %d and %v, was %d and %v", conn.LastSeen(), conn.State(), seen, state)
	}
}

// An error waits for its next hop like any packet, and is then translated.
func TestAnErrorWaitsForItsNextHop(t *testing.T) {
	c := converse(t, false, header.ProtoUDP)
	c.lb.router.SetState(portClient, client4, route.Resolving)
	in, want := c.fromBehind(c.router, 3, 4, 1400)
	c.one(portServer, in.build(t), -1)
	c.lb.router.SetState(portClient, client4, route.Valid)
	got := c.round()
	if len(got[portClient]) != 1 {
		t.Fatalf("%d sent, drops %v", len(got[portClient]), c.drops())
	}
	sameFrame(t, got[portClient][0], want.build(t))
	c.framesHome()
}

// giveInPieces lays a frame over several buffers; round returns them one by one.
func (b *bench) giveInPieces(port int, f []byte, size int) {
	for len(f) > 0 {
		n := min(size, len(f))
		b.give(port, f[:n])
		if f = f[n:]; len(f) > 0 {
			q := b.q[port]
			q.In[len(q.In)-1].Options = xsk.Continued
		}
	}
}
