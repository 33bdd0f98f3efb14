package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// icmpKind is any message's type and code in both families.
type icmpKind = refusal

var (
	parameterProblem = icmpKind{12, 0, 4, 1}
	echoRequest      = icmpKind{8, 0, 128, 0}
	echoReply        = icmpKind{0, 0, 129, 0}
)

// icmp makes p a message from src to dst: rest is the second word of its
// header.
func (s *scene) icmp(p packet, kind icmpKind, src, dst netip.Addr, rest uint32, body []byte) packet {
	s.Helper()
	p.src, p.dst, p.payload, p.proto = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0), nil, protoICMP
	p.df, p.tos = false, 0
	buf := gopacket.NewSerializeBuffer()
	var err error
	if s.six {
		p.proto = protoICMPv6
		ip := &layers.IPv6{SrcIP: src.AsSlice(), DstIP: dst.AsSlice(), NextHeader: layers.IPProtocolICMPv6}
		l := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind.type6, kind.code6)}
		_ = l.SetNetworkLayerForChecksum(ip)
		err = gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true}, l, gopacket.Payload(append(binary.BigEndian.AppendUint32(nil, rest), body...)))
	} else {
		l := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind.type4, kind.code4), Id: uint16(rest >> 16), Seq: uint16(rest)}
		err = gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true}, l, gopacket.Payload(body))
	}
	if err != nil {
		s.Fatal(err)
	}
	p.l4 = bytes.Clone(buf.Bytes())
	return p
}

// quote is the packet p as an error has it, n bytes of it; 0: all.
func (s *scene) quote(p packet, n int) []byte {
	p.tags = nil
	b := p.bytes(s)[14:]
	if n > 0 {
		b = b[:n]
	}
	return b
}

// router is a router on the way, on either side.
func (s *scene) router() netip.Addr {
	if s.six {
		return netip.MustParseAddr("2001:db8:ffff::1")
	}
	return netip.AddrFrom4([4]byte{198, 51, 100, 77})
}

// sent is p, which was delivered, as it is on the way to the endpoint.
func (s *scene) sent(p packet) packet {
	p.src, p.dst = s.snat, netip.AddrPortFrom(s.seen.addr(s.six), s.service.target(p.dst.Port()))
	return p
}

// fromBehind sends an error about p, which was delivered, from the endpoint's
// side, and checks that the client gets it from the frontend, about what it
// sent. spoil changes what is quoted, the same on both sides.
func (s *scene) fromBehind(p packet, kind icmpKind, from netip.Addr, rest uint32, spoil func(b []byte) []byte) {
	s.Helper()
	p.ttl = 60 // as it was there
	body, want := spoil(s.quote(s.sent(p), 0)), spoil(s.quote(p, 0))
	e := s.answer(packet{tags: s.tags, ttl: 64, id: 9})
	e = s.icmp(e, kind, from, s.snat.Addr(), rest, body)
	send(s, s.station(), e.bytes(s))
	w := s.icmp(s.translatedBack(e, 0), kind, p.dst.Addr(), p.src.Addr(), rest, want)
	s.arrives(s.lab.client, w.bytes(s))
}

// fromFront sends an error about the endpoint's answer a to p from the client's
// side, and checks that the endpoint gets it from the address that it knows.
func (s *scene) fromFront(p, a packet, kind icmpKind, from netip.Addr, rest uint32) {
	s.Helper()
	s.fromFrontTold(p, a, kind, from, rest, rest)
}

// fromFrontTold is fromFront where the endpoint is told another thing.
func (s *scene) fromFrontTold(p, a packet, kind icmpKind, from netip.Addr, rest, told uint32) {
	s.Helper()
	a.ttl = 60
	passed := a
	passed.src, passed.dst = p.dst, p.src
	e := s.icmp(packet{srcMAC: clientMAC, dstMAC: edge0MAC, tags: s.tags, ttl: 64, id: 9}, kind, from, p.dst.Addr(), rest, s.quote(passed, 0))
	s.send(e)
	got := s.frame(s.station())
	switch s.mode {
	case l2dsr:
		s.same(s.station(), got, s.requested(e).bytes(s))
	case ipip, gue:
		s.same(s.station(), got, wrapped(s, e, got))
	default:
		// From whom the endpoint knows as the client, or from who made it.
		source := s.snat.Addr()
		if s.mode == dnat {
			source = from
		}
		w := s.toEndpoint(packet{tags: s.tags, ttl: 64, id: 9}, s.seen)
		w = s.icmp(w, kind, source, s.seen.addr(s.six), told, s.quote(a, 0))
		s.same(s.station(), got, w.bytes(s))
	}
}

// aboutTheAnswer is a router's error about what an endpoint sent to the client of
// udp, past this Weir, which has not seen the request.
func (s *scene) aboutTheAnswer(mtu uint32) packet {
	s.Helper()
	a := s.udp("an answer")
	a.src, a.dst = a.dst, a.src
	return s.icmp(packet{srcMAC: clientMAC, dstMAC: edge0MAC, tags: s.tags, ttl: 64}, tooBig, s.router(), a.src.Addr(), mtu, s.quote(a, 0))
}

func whole(b []byte) []byte { return b }

// l4At is where the transport header of a quoted packet begins.
func (s *scene) l4At() int {
	if s.six {
		return 40
	}
	return 20
}

func init() {
	const mtu = 1400
	for _, e := range []struct {
		name string
		kind icmpKind
	}{
		{"port-unreachable", portUnreachable}, {"host-unreachable", hostUnreachable}, {"too-big", tooBig},
		{"time-exceeded", timeExceeded}, {"parameter-problem", parameterProblem},
	} {
		name, kind := e.name, e.kind
		rest := uint32(0)
		if name == "too-big" {
			rest = mtu
		}
		add(
			scenario{row: "icmp-error", name: name + "-from-the-endpoint", modes: natModes, run: func(s *scene) {
				p := s.udp("a question")
				s.passes(p)
				s.fromBehind(p, kind, s.seen.addr(s.six), rest, whole)
			}},
			scenario{row: "icmp-error", name: name + "-from-a-router-behind", modes: natModes, run: func(s *scene) {
				p := s.tcp(syn, 1000, 0, "")
				s.passes(p)
				s.fromBehind(p, kind, s.router(), rest, whole)
			}},
			scenario{row: "icmp-error", name: name + "-from-the-client", modes: every, run: func(s *scene) {
				p := s.udp("a question")
				s.passes(p)
				s.fromFront(p, s.answer(s.udp("its answer")), kind, p.src.Addr(), rest)
			}},
			scenario{row: "icmp-error", name: name + "-from-a-router-in-front", modes: every, run: func(s *scene) {
				p := s.tcp(syn, 1000, 0, "")
				s.passes(p)
				s.fromFront(p, s.answer(s.tcp(syn|ack, 5000, 1001, "")), kind, s.router(), rest)
			}},
		)
	}
	add(
		// Of Weir's address an endpoint remembers one path MTU, for all clients.
		scenario{row: "icmp-error", name: "too-big-for-a-path-narrower-than-the-least", run: func(s *scene) {
			p := s.udp("a question")
			s.passes(p)
			s.fromFrontTold(p, s.answer(s.udp("its answer")), tooBig, p.src.Addr(), 68, 1280)
		}},
		scenario{row: "icmp-error", name: "quote-of-eight-bytes", modes: natModes, run: func(s *scene) {
			p := s.tcp(syn, 1000, 0, "")
			s.passes(p)
			s.fromBehind(p, tooBig, s.router(), mtu, func(b []byte) []byte { return b[:s.l4At()+8] })
		}},
		scenario{row: "icmp-error", name: "quote-of-the-ports", modes: natModes, run: func(s *scene) {
			p := s.udp("a question")
			s.passes(p)
			s.fromBehind(p, portUnreachable, s.router(), 0, func(b []byte) []byte { return b[:s.l4At()+4] })
		}},
		scenario{row: "icmp-error", name: "quote-without-a-checksum", modes: natModes, families: []int{ipv4}, run: func(s *scene) {
			p := s.udp("a question")
			p.noChecksum = true
			s.passes(p)
			s.fromBehind(p, portUnreachable, s.router(), 0, whole)
		}},
		scenario{row: "icmp-error", name: "quote-with-options", modes: natModes, families: []int{ipv4}, run: func(s *scene) {
			p := s.udp("a question")
			s.passes(p)
			p.options = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
			s.fromBehind(p, portUnreachable, s.router(), 0, whole)
		}},
		scenario{row: "icmp-error", name: "with-extensions", modes: natModes, run: func(s *scene) {
			p := s.udp(string(bytes.Repeat([]byte("payload "), 20)))
			s.passes(p)
			rest := uint32(128/4) << 16 // RFC 4884
			if s.six {
				rest = 128 / 8 << 24
			}
			s.fromBehind(p, timeExceeded, s.router(), rest, func(b []byte) []byte {
				return append(b[:128:128], 0x20, 0, 0xdf, 0xf5, 0, 8, 1, 1, 0, 1, 2, 0x40)
			})
		}},
		// It may be about a connection that the kernel translated.
		scenario{row: "icmp-error", name: "no-flow-behind-to-the-kernel", tags: untagged, run: func(s *scene) {
			p := s.udp("a question")
			s.passes(p)
			s.seen.host = 200 // nobody was asked there
			e := s.icmp(packet{srcMAC: mac(s.seen.network, 11), dstMAC: edge1MAC, tags: s.tags, ttl: 64}, hostUnreachable, s.router(), s.snat.Addr(), 0, s.quote(s.sent(p), 0))
			send(s, s.lab.fabric, e.bytes(s))
		}},
		scenario{row: "icmp-error", name: "no-flow-in-front", modes: natModes, run: func(s *scene) {
			s.send(s.aboutTheAnswer(mtu))
		}, drops: drop("icmp-no-flow")},
		// The endpoint follows from the tuple, whichever node has the flow.
		scenario{row: "icmp-error", name: "flow-of-another-node", modes: dsrModes, service: "many", run: func(s *scene) {
			e := s.aboutTheAnswer(mtu)
			s.send(e)
			got := s.frame(s.station())
			if s.seen = s.chosen(got); s.mode == l2dsr {
				s.same(s.station(), got, s.requested(e).bytes(s))
			} else {
				s.same(s.station(), got, wrapped(s, e, got))
			}
			s.snat = netip.AddrPort{}
			asked := s.seen
			if s.passes(s.udp("a question after all")); s.seen != asked {
				s.Errorf("the flow goes to %v, the error went to %v", s.seen, asked)
			}
		}},
		// A router on the way to the endpoint cannot take the tunnel packet.
		scenario{row: "icmp-error", name: "too-big-in-the-tunnel", modes: tunnels, run: func(s *scene) {
			p := s.sized(s.room(linkMTU))
			s.send(p)
			tunnel := s.frame(s.station())
			s.same(s.station(), tunnel, wrapped(s, p, tunnel))
			fromRouter, toClient := s.told(p, tunnel, mtu)
			send(s, s.station(), fromRouter.bytes(s))
			s.arrives(s.lab.client, toClient.bytes(s))
			s.passes(s.sized(s.room(mtu)))
		}},
		// The kernel, which has no such tunnel, says nothing.
		scenario{row: "icmp-error", name: "too-big-in-another's-tunnel", modes: []string{ipip}, run: func(s *scene) {
			p := s.sized(s.room(linkMTU))
			s.send(p)
			tunnel := s.frame(s.station())
			s.same(s.station(), tunnel, wrapped(s, p, tunnel))
			tunnel[len(tunnel)-s.room(linkMTU)+s.l4At()-1]++ // to another frontend
			fromRouter, _ := s.told(p, tunnel, mtu)
			send(s, s.station(), fromRouter.bytes(s))
		}},
		scenario{row: "icmp-error", name: "flow-of-another-node-chosen-by-load", modes: dsrModes, service: "least-conn", run: func(s *scene) {
			s.send(s.aboutTheAnswer(mtu))
		}, drops: drop("icmp-no-flow")},
		scenario{row: "icmp-error", name: "to-another-than-it-is-about", run: func(s *scene) {
			p := s.udp("a question")
			s.passes(p)
			other := s.service.vip(s.six)
			s.send(s.icmp(packet{srcMAC: clientMAC, dstMAC: edge0MAC, tags: s.tags, ttl: 64}, hostUnreachable, s.router(), other, 0, s.quote(s.sent(p), 0)))
		}, drops: drop("icmp-malformed")},
		scenario{row: "icmp-error", name: "ttl-1-is-not-answered", run: func(s *scene) {
			p := s.udp("a question")
			s.passes(p)
			e := s.icmp(packet{srcMAC: mac(s.seen.network, s.seen.host), dstMAC: edge1MAC, tags: s.tags, ttl: 1}, portUnreachable, s.seen.addr(s.six), s.snat.Addr(), 0, s.quote(s.sent(p), 0))
			send(s, s.lab.fabric, e.bytes(s))
		}, drops: drop("ttl-exceeded")},
	)
	for _, size := range []int{0, 56, 77, 1400} {
		add(scenario{row: "echo", name: fmt.Sprintf("%d-bytes", size), run: func(s *scene) {
			s.pings(bytes.Repeat([]byte{0x5a, 1, 2}, size)[:size], nil)
		}})
	}
	add(
		scenario{row: "echo", name: "ttl-1", modes: every, run: func(s *scene) {
			s.pings([]byte("the way ends here"), func(p *packet) { p.ttl = 1 })
		}},
		scenario{row: "echo", name: "record-route", modes: every, families: []int{ipv4}, run: func(s *scene) {
			s.pings([]byte("which way?"), func(p *packet) {
				p.options = []layers.IPv4Option{{OptionType: 7, OptionLength: 8, OptionData: []byte{4, 0, 0, 0, 0, 0}}}
			})
		}},
		scenario{row: "echo", name: "in-fragments", run: func(s *scene) {
			s.pingsInPieces(0, 1, 2)
		}},
		scenario{row: "echo", name: "in-fragments-the-last-first", run: func(s *scene) {
			s.pingsInPieces(2, 1, 0)
		}},
		scenario{row: "echo", name: "wrong-checksum-stays-wrong", run: func(s *scene) {
			ask, want := s.ping([]byte("weir"))
			spoil := func(f []byte) []byte { f = slices.Clone(f); f[len(f)-1] ^= 0xff; return f }
			s.sendFrame(spoil(ask.bytes(s)))
			s.arrives(s.lab.client, spoil(want.bytes(s)))
		}},
	)
}

// ping is an echo request to the frontend's address, and its reply.
func (s *scene) ping(body []byte) (request, reply packet) {
	vip := s.service.vip(s.six)
	request = s.icmp(packet{srcMAC: clientMAC, dstMAC: edge0MAC, tags: s.tags, ttl: 64, id: 77}, echoRequest, s.from.Addr(), vip, 0x12340001, body)
	reply = s.icmp(packet{srcMAC: edge0MAC, dstMAC: clientMAC, tags: s.tags, ttl: 64, id: 77}, echoReply, vip, s.from.Addr(), 0x12340001, body)
	return request, reply
}

func (s *scene) pings(body []byte, change func(*packet)) {
	s.Helper()
	request, reply := s.ping(body)
	if change != nil {
		change(&request)
	}
	s.send(request)
	s.arrives(s.lab.client, reply.bytes(s))
}

// pingsInPieces sends a long ping in fragments in an order, and checks that the
// reply comes in such fragments, the first first.
func (s *scene) pingsInPieces(order ...int) {
	s.Helper()
	request, reply := s.ping(bytes.Repeat([]byte("ping"), 500))
	asked, want := s.cut(request, 77, 0, 800, 1600), s.cut(reply, 77, 0, 800, 1600)
	for _, n := range order {
		s.sendFrame(asked[n])
	}
	s.arrives(s.lab.client, want[0])
	for _, n := range order {
		if n != 0 {
			s.arrives(s.lab.client, want[n])
		}
	}
}
