package packet

import (
	"bytes"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

const (
	linkMTU = 1500
	// narrowMTU is that of the routes to the addresses below.
	narrowMTU = 1400
	// jumboMTU is that of the client's link in the set-up "jumbo".
	jumboMTU = 9000
)

var narrowFabric, narrowPod = fabric(37), podAt(37)

// narrowClient is a client at the end of a narrow route.
func narrowClient(six bool) netip.Addr {
	if six {
		return netip.MustParseAddr("2001:db8::f0")
	}
	return netip.MustParseAddr("203.0.113.240")
}

func init() {
	definitions["narrow"] = definition{endpoints: []endpoint{narrowFabric}, pods: []endpoint{narrowPod}}
	tooLarge := drop("larger-than-mtu")
	// refused is a packet of n bytes that does not fit a route of mtu.
	refused := func(s *scene, n, mtu int) {
		p := s.sized(n)
		s.send(p)
		s.refusedBy(p, tooBig, uint32(s.room(mtu)))
	}
	add(
		scenario{row: "too-big", name: "what-fits", modes: every, run: func(s *scene) { s.passes(s.sized(s.room(linkMTU))) }},
		scenario{row: "too-big", name: "one-byte-more", modes: tunnels, run: func(s *scene) {
			refused(s, s.room(linkMTU)+1, linkMTU)
		}, drops: tooLarge},
		scenario{row: "too-big", name: "of-a-flow", modes: tunnels, run: func(s *scene) {
			s.passes(s.udp("hello"))
			refused(s, linkMTU, linkMTU)
		}, drops: tooLarge},
		scenario{row: "too-big", name: "may-be-fragmented", modes: tunnels, families: []int{ipv4}, run: func(s *scene) {
			s.passes(s.udp("hello"))
			p := s.sized(linkMTU)
			p.df = false
			s.inPieces(p, linkMTU)
		}},

		scenario{row: "too-big", name: "what-fits-a-narrow-route", modes: every, service: "narrow", run: func(s *scene) {
			s.passes(s.sized(s.room(narrowMTU)))
		}},
		scenario{row: "too-big", name: "one-byte-more-than-a-narrow-route", modes: every, service: "narrow", run: func(s *scene) {
			refused(s, s.room(narrowMTU)+1, narrowMTU)
		}, drops: tooLarge},
		scenario{row: "too-big", name: "of-a-flow-by-a-narrow-route", modes: every, service: "narrow", run: func(s *scene) {
			s.passes(s.udp("hello"))
			refused(s, linkMTU, narrowMTU)
			s.passes(s.udp("smaller"))
		}, drops: tooLarge},
		scenario{row: "too-big", name: "tcp-by-a-narrow-route", modes: natModes, service: "narrow", run: func(s *scene) {
			s.connect()
			p := s.tcp(ack|psh, 1001, 5001, string(bytes.Repeat([]byte("weir"), 350)))
			s.send(p)
			s.refusedBy(p, tooBig, narrowMTU)
			s.passes(s.tcp(ack|psh, 1001, 5001, string(bytes.Repeat([]byte("weir"), 330))))
		}, drops: tooLarge},
		// The link takes it: a router beyond it fragments, or the endpoint.
		scenario{row: "too-big", name: "may-be-fragmented-beyond", families: []int{ipv4}, service: "narrow", run: func(s *scene) {
			p := s.sized(linkMTU)
			p.df = false
			s.passes(p)
		}},
		scenario{row: "too-big", name: "may-be-fragmented-by-the-kernel", modes: []string{dnat}, families: []int{ipv4}, service: "narrow", run: func(s *scene) {
			p := s.sized(linkMTU)
			p.df = false
			s.send(p)
			got := s.frame(s.station())
			p.id = uint16(s.identification(got))
			s.seen, s.snat = s.chosen(got), s.from
			whole := s.toEndpoint(s.sent(p), s.seen)
			want := s.cutFrame(whole.bytes(s), 14+20, uint32(p.id), 0, (narrowMTU-20)&^7)
			s.same(s.station(), got, want[0])
			s.arrives(s.station(), want[1])
		}},
		scenario{row: "too-big", name: "may-be-fragmented-on-a-narrow-route", modes: dsrModes, families: []int{ipv4}, service: "narrow", run: func(s *scene) {
			s.passes(s.udp("hello"))
			p := s.sized(linkMTU)
			p.df = false
			s.inPieces(p, narrowMTU)
		}},

		// The client's link is wider than the endpoints'. In dnat the kernel divides it.
		scenario{row: "too-big", name: "may-be-fragmented-of-the-client's-link", modes: dsrModes, families: []int{ipv4}, lab: "jumbo", run: func(s *scene) {
			s.passes(s.udp("hello"))
			p := s.sized(jumboMTU)
			p.df = false
			s.inPieces(p, linkMTU)
		}},
		scenario{row: "too-big", name: "may-be-fragmented-of-the-client's-link", modes: natModes, families: []int{ipv4}, lab: "jumbo", run: func(s *scene) {
			s.passes(s.udp("hello"))
			for _, n := range []int{linkMTU + 1, 4028, jumboMTU} {
				p := s.sized(n)
				p.df = false
				s.send(p)
				s.arrivesInPieces(p)
			}
			s.passes(s.udp("and a small packet"))
		}},
		scenario{row: "too-big", name: "of-the-client's-link", modes: onFabric, lab: "jumbo", run: func(s *scene) {
			s.passes(s.udp("hello"))
			refused(s, jumboMTU, linkMTU)
		}, drops: tooLarge},

		scenario{row: "too-big", name: "answer", modes: natModes, run: func(s *scene) {
			s.fromNarrow()
			a := s.answer(s.sized(narrowMTU + 1))
			send(s, s.station(), a.bytes(s))
			s.answerRefused(a, tooBig, narrowMTU)
		}, drops: tooLarge},
		scenario{row: "too-big", name: "answer-that-fits", modes: natModes, run: func(s *scene) {
			s.fromNarrow()
			s.returns(s.answer(s.sized(narrowMTU)), udpPort)
		}},
		scenario{row: "too-big", name: "answer-may-be-fragmented-beyond", modes: natModes, families: []int{ipv4}, run: func(s *scene) {
			s.fromNarrow()
			p := s.sized(narrowMTU + 1)
			p.df = false
			s.returns(s.answer(p), udpPort)
		}},
	)
}

// fromNarrow is a request of a client behind a narrow route.
func (s *scene) fromNarrow() {
	s.Helper()
	s.from = netip.AddrPortFrom(narrowClient(s.six), s.from.Port())
	s.passes(s.udp("a question"))
}

// room is the largest packet of the client that the mode can carry by a way of
// mtu bytes.
func (s *scene) room(mtu int) int {
	n := mtu - map[string]int{ipip: 20, gue: 32}[s.mode]
	if s.six && (s.mode == ipip || s.mode == gue) {
		n -= 20
	}
	return n
}

// sized is the client's datagram that makes a packet of n bytes.
func (s *scene) sized(n int) packet {
	p := s.udp("")
	head := 28
	if s.six {
		head = 48
	}
	p.payload, p.df = bytes.Repeat([]byte("weir"), jumboMTU/4)[:n-head], true
	return p
}

// answerRefused checks that the endpoint gets Weir's ICMP error about its
// answer a.
func (s *scene) answerRefused(a packet, why refusal, rest uint32) {
	s.Helper()
	e := s.back(a)
	e.srcMAC, e.dstMAC = a.dstMAC, a.srcMAC
	if s.seen.isPod() { // the kernel is a router on both ways
		a.ttl--
		e.ttl--
	}
	s.arrives(s.station(), s.about(e, s.quote(a, 0), why, rest).bytes(s))
}

// arrivesInPieces checks that the client's packet p, translated, arrives in fragments
// that fill the link, all with one identification, which is Weir's to choose.
func (s *scene) arrivesInPieces(p packet) {
	s.Helper()
	first := s.frame(s.station())
	whole := s.toEndpoint(s.sent(p), s.seen).bytes(s)
	var offsets []int
	for at := 0; at < len(whole)-14-20; at += (linkMTU - 20) &^ 7 {
		offsets = append(offsets, at)
	}
	for i, want := range s.cutFrame(whole, 14+20, s.identification(first), offsets...) {
		if i == 0 {
			s.same(s.station(), first, want)
			continue
		}
		s.arrives(s.station(), want)
	}
}

// inPieces sends the client's datagram p, which may be fragmented, of a flow whose way
// is of mtu bytes: packets arrive whose contents make it whole.
func (s *scene) inPieces(p packet, mtu int) {
	s.Helper()
	s.send(p)
	inner := s.requested(p)
	frame := inner.bytes(s)
	head := inner.l4Offset(frame)
	step := (s.room(mtu) - 20) &^ 7
	for at := 0; at < len(frame)-head; at += step {
		end := min(at+step, len(frame)-head)
		ip := &layers.IPv4{Version: 4, Id: p.id, TTL: inner.ttl, Protocol: layers.IPProtocolUDP, FragOffset: uint16(at / 8),
			SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
		if end < len(frame)-head {
			ip.Flags = layers.IPv4MoreFragments
		}
		buf := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, gopacket.Payload(frame[head+at:head+end])); err != nil {
			s.Fatal(err)
		}
		got := s.frame(s.station())
		want := append(frame[:inner.l3():inner.l3()], buf.Bytes()...)
		if s.mode != l2dsr {
			want = s.wrap(p, buf.Bytes(), got)
		}
		s.same(s.station(), got, want)
	}
}
