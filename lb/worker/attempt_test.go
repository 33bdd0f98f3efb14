package worker

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// tried is how attempts to connect to the endpoint of the bench's Service have fared.
func (b *bench) tried(ep netip.AddrPort, proto uint8) attempts.Counts {
	b.t.Helper()
	for n := uint32(1); ; n++ {
		if at, p, ok := b.lb.tables.Endpoint(n); !ok {
			b.t.Fatalf("%s has no number", ep)
		} else if at == ep && p == proto {
			c := b.lb.attempts.Of(n)
			c.LastFailure = 0
			return c
		}
	}
}

// snatPort is the source port of a frame.
func snatPort(f []byte) uint16 {
	var p header.Packet
	header.Parse(f, len(f), &p)
	return uint16(f[p.L4])<<8 | uint16(f[p.L4+1])
}

func TestAttemptsAreCountedPerEndpoint(t *testing.T) {
	type counts = attempts.Counts
	const tcp, udp = header.ProtoTCP, header.ProtoUDP
	ep := ap(endpoint4, 8080)
	answer := func(port uint16, proto, flags uint8) packet {
		return packet{srcMAC: macServer, dstMAC: macWeirB, src: ep, dst: ap(snat4, port), proto: proto, flags: flags, seq: 5000, ack: request(false, tcp).seq + 1}
	}
	for _, c := range []struct {
		name  string
		proto uint8
		do    func(b *bench, syn func() uint16)
		want  counts
	}{
		{"SYN-ACK, twice", tcp, func(b *bench, syn func() uint16) {
			a := answer(syn(), tcp, header.SYN|header.ACK)
			b.one(portServer, a.build(t), portClient)
			b.one(portServer, a.build(t), portClient)
		}, counts{Answered: 1}},
		{"RST", tcp, func(b *bench, syn func() uint16) {
			a := answer(syn(), tcp, header.RST|header.ACK)
			b.one(portServer, a.build(t), portClient)
			b.one(portServer, a.build(t), portClient)
		}, counts{Refused: 1, InARow: 1}},
		{"RST that acknowledges another SYN", tcp, func(b *bench, syn func() uint16) {
			a := answer(syn(), tcp, header.RST|header.ACK)
			a.ack += 1 << 20
			b.one(portServer, a.build(t), portClient)
		}, counts{}},
		{"SYN again after a second, and after three", tcp, func(b *bench, syn func() uint16) {
			syn()
			b.after(secondTicks, request(false, tcp))
			b.after(3*secondTicks, request(false, tcp))
		}, counts{Unanswered: 1, InARow: 1}},
		{"SYN twice at once, as anybody may forge it", tcp, func(b *bench, syn func() uint16) {
			syn()
			b.after(1, request(false, tcp))
			b.after(secondTicks, request(false, tcp))
		}, counts{}},
		{"SYN again though it was answered", tcp, func(b *bench, syn func() uint16) {
			a := answer(syn(), tcp, header.SYN|header.ACK)
			b.one(portServer, a.build(t), portClient)
			b.after(secondTicks, request(false, tcp))
		}, counts{Answered: 1}},
		{"refused, then answered", tcp, func(b *bench, syn func() uint16) {
			port := syn()
			a := answer(port, tcp, header.RST|header.ACK)
			b.one(portServer, a.build(t), portClient)
			a = answer(syn(), tcp, header.SYN|header.ACK)
			b.one(portServer, a.build(t), portClient)
		}, counts{Answered: 1, Refused: 1}},
		{"next hop that does not answer", tcp, func(b *bench, syn func() uint16) {
			b.lb.router.SetState(portServer, endpoint4, route.Resolving)
			b.give(portClient, request(false, tcp).build(t))
			b.w.Round()
			b.w.tick += neighQueueTicks
			b.lb.router.SetState(portServer, endpoint4, route.Failed)
			b.w.releaseQueued()
			b.w.Round()
		}, counts{Unanswered: 1, InARow: 1}},
		{"datagrams", udp, func(b *bench, syn func() uint16) {
			a := answer(syn(), udp, 0)
			b.one(portServer, a.build(t), portClient)
			b.one(portServer, a.build(t), portClient)
		}, counts{Answered: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			syn := func() uint16 { return snatPort(b.one(portClient, request(false, c.proto).build(t), portServer)) }
			c.do(b, syn)
			if got := b.tried(ep, c.proto); got != c.want {
				t.Errorf("%+v, want %+v (drops %v)", got, c.want, b.drops())
			}
			b.framesHome()
		})
	}
}

// Where answers do not pass here, the client's ACK shows that the endpoint has answered.
func TestAttemptsWithoutTranslationAreAnsweredByTheACK(t *testing.T) {
	b := newBench(t)
	b.serveAt(table.Pool{}, conntrack.ModeL2DSR, endpoint4)
	p := request(false, header.ProtoTCP)
	for _, flags := range []uint8{header.SYN, header.ACK, header.ACK} {
		p.flags = flags
		b.one(portClient, p.build(t), portServer)
		p.seq += uint32(flags & header.SYN >> 1)
	}
	if got := b.tried(ap(endpoint4, 80), header.ProtoTCP); got != (attempts.Counts{Answered: 1}) {
		t.Errorf("%+v", got)
	}
}

// An ICMP error is a refusal of the endpoint if that has sent it, and only while the flow has no
// answer: later it may be forged, or about a single datagram.
func TestICMPErrorsCountAsRefused(t *testing.T) {
	for _, c := range []struct {
		name     string
		from     netip.Addr
		kind     [2]uint8 // type and code
		answered bool
		want     attempts.Counts
	}{
		{"port unreachable", endpoint4, [2]uint8{3, 3}, false, attempts.Counts{Refused: 1, InARow: 1}},
		{"host unreachable, of a router", narrow4, [2]uint8{3, 1}, false, attempts.Counts{Unanswered: 1, InARow: 1}},
		{"fragmentation needed", endpoint4, [2]uint8{3, 4}, false, attempts.Counts{}},
		{"after an answer", endpoint4, [2]uint8{3, 3}, true, attempts.Counts{Answered: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			sent := b.one(portClient, request(false, header.ProtoUDP).build(t), portServer)
			if c.answered {
				a := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), dst: ap(snat4, snatPort(sent)), proto: header.ProtoUDP}
				b.one(portServer, a.build(t), portClient)
			}
			b.one(portServer, icmpPacket{srcMAC: macServer, dstMAC: macWeirB, src: c.from, dst: snat4, typ: c.kind[0], code: c.kind[1], rest: 1400, body: sent[header.EthernetLen:]}.build(t), portClient)
			if got := b.tried(ap(endpoint4, 8080), header.ProtoUDP); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// Of a range of ports attempts at the listed port alone count as failed: at others nothing may listen,
// and the client hears so at once.
func TestFailuresAtOtherPortsOfARangeDoNotCount(t *testing.T) {
	const tcp, udp, listed = header.ProtoTCP, header.ProtoUDP, 85
	refused := attempts.Counts{Refused: 1, InARow: 1}
	for _, c := range []struct {
		name  string
		proto uint8
		port  uint16
		fail  func(b *bench, syn []byte, p packet)
		want  attempts.Counts
		told  bool
	}{
		{"RST, listed", tcp, listed, refuse, refused, false},
		{"RST", tcp, 80, refuse, attempts.Counts{}, true},
		{"port unreachable, TCP, listed", tcp, listed, unreachable, refused, false},
		{"port unreachable, TCP", tcp, 80, unreachable, attempts.Counts{}, true},
		{"port unreachable, UDP, listed", udp, listed, unreachable, refused, true},
		{"port unreachable, UDP", udp, 80, unreachable, attempts.Counts{}, true},
		{"SYN again, listed", tcp, listed, sendAgain, attempts.Counts{Unanswered: 1, InARow: 1}, false},
		{"SYN again", tcp, 80, sendAgain, attempts.Counts{}, false},
		{"SYN-ACK", tcp, 80, accept, attempts.Counts{Answered: 1}, true},
	} {
		for _, endpoints := range [][]netip.Addr{{endpoint4, narrow4}, {endpoint4}} {
			t.Run(fmt.Sprintf("%s/%d endpoints", c.name, len(endpoints)), func(t *testing.T) {
				b := newBench(t)
				b.serveRange(listed, endpoints...)
				p := request(false, c.proto)
				p.dst = ap(node4, c.port)
				syn := b.one(portClient, p.build(t), portServer)
				c.fail(b, syn, p)
				told := len(b.roundAtTheSameTime()[portClient]) > 0
				if want := c.told || len(endpoints) == 1 && c.want.Refused > 0; told != want {
					t.Errorf("the client has an answer: %v, want %v", told, want)
				}
				if got := b.tried(netip.AddrPortFrom(dstOf(syn), listed), c.proto); got != c.want {
					t.Errorf("%+v, want %+v", got, c.want)
				}
				b.framesHome()
			})
		}
	}
}

// serveRange publishes a Service with ports 80 to 90, whose endpoints are listed with one of them.
func (b *bench) serveRange(listed uint16, endpoints ...netip.Addr) {
	b.t.Helper()
	s := table.Service{Name: "ns/web", Pools: make([]table.Pool, 1)}
	for _, a := range endpoints {
		s.Pools[0].Endpoints = append(s.Pools[0].Endpoints, table.Endpoint{AddrPort: netip.AddrPortFrom(a, listed)})
	}
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		s.Frontends = append(s.Frontends, table.Frontend{AddrPort: netip.AddrPortFrom(node4, 80), LastPort: 90, Port: listed, Proto: proto})
	}
	if change, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil || len(change.Errors) > 0 {
		b.t.Fatal(err, change.Errors)
	}
}

// answerOf is the answer of the endpoint to a SYN.
func answerOf(syn []byte, p packet, flags uint8) packet {
	port := binary.BigEndian.Uint16(syn[header.EthernetLen+22:])
	return packet{srcMAC: macServer, dstMAC: macWeirB, src: netip.AddrPortFrom(dstOf(syn), port), dst: ap(snat4, snatPort(syn)),
		proto: header.ProtoTCP, flags: flags, seq: 5000, ack: p.seq + 1}
}

func refuse(b *bench, syn []byte, p packet) {
	b.give(portServer, answerOf(syn, p, header.RST|header.ACK).build(b.t))
}

func accept(b *bench, syn []byte, p packet) {
	b.give(portServer, answerOf(syn, p, header.SYN|header.ACK).build(b.t))
}

func unreachable(b *bench, syn []byte, _ packet) {
	b.give(portServer, icmpPacket{srcMAC: macServer, dstMAC: macWeirB, src: dstOf(syn), dst: snat4, typ: 3, code: 3, body: syn[header.EthernetLen:]}.build(b.t))
}

func sendAgain(b *bench, _ []byte, p packet) { b.after(secondTicks, p) }
