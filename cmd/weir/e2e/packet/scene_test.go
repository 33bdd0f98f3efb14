package packet

import (
	"bytes"
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"
)

// scene is one variant being run: a client of its own, a Service, and the
// frames between.
type scene struct {
	*testing.T
	variant
	lab     *lab
	service *service
	from    netip.AddrPort    // the client
	snat    netip.AddrPort    // what the endpoint sees as the client, once delivered to
	seen    endpoint          // the endpoint that was delivered to
	before  map[string]uint64 // drops at the beginning, by reason
}

// check runs a variant and looks at everything that came of it.
func (l *lab) check(t *testing.T, v variant) {
	l.next++
	client := netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + l.next%200)})
	if v.six {
		client = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(1 + l.next%200)})
	}
	s := &scene{T: t, variant: v, lab: l, service: l.services[v.service+"-"+v.mode], from: netip.AddrPortFrom(client, 10000+l.next)}
	s.before = l.drops(t)
	defer func() {
		if t.Failed() {
			t.Logf("weir run said:\n%s", l.log())
		}
	}()
	v.run(s)
	for _, n := range l.sentinels {
		for _, unexpected := range n.pass(t) {
			t.Error(unexpected)
		}
	}
	want := s.drops
	if s.byRange && byFlow() {
		want = nil
	}
	l.counted(t, s.before, want)
}

// drops are the drops by reason so far.
func (l *lab) drops(t testing.TB) map[string]uint64 {
	t.Helper()
	status, err := l.status()
	if err != nil {
		t.Fatal(err)
	}
	return status.Drops
}

// counted checks what was dropped since: exactly want.
func (l *lab) counted(t testing.TB, before map[string]uint64, want map[string]int) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		got := map[string]int{}
		for reason, n := range l.drops(t) {
			if d := int(n - before[reason]); d != 0 {
				got[reason] = d
			}
		}
		if maps.Equal(got, want) || len(got) == 0 && len(want) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("drops %v, want %v", got, want)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// countedAtLeast waits until so many packets were dropped under a reason, and
// returns how many it is once that does not grow any more.
func (s *scene) countedAtLeast(reason string, n int) int {
	s.Helper()
	deadline := time.Now().Add(within)
	for last := -1; ; {
		got := int(s.lab.drops(s)[reason] - s.before[reason])
		if got >= n && got == last {
			return got
		}
		if last = got; time.Now().After(deadline) {
			s.Fatalf("%d packets dropped as %s, want at least %d", got, reason, n)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// frontend is the address and port that the client uses.
func (s *scene) frontend(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(s.service.vip(s.six), port)
}

// udp is a datagram of the client to the frontend.
func (s *scene) udp(payload string) packet {
	return packet{srcMAC: clientMAC, dstMAC: edge0MAC, tags: s.tags, src: s.from, dst: s.frontend(udpPort),
		ttl: 64, id: 7, proto: protoUDP, payload: []byte(payload)}
}

// tcp is a segment of the client to the frontend.
func (s *scene) tcp(flags uint8, seq, acked uint32, payload string) packet {
	return packet{srcMAC: clientMAC, dstMAC: edge0MAC, tags: s.tags, src: s.from, dst: s.frontend(tcpPort),
		ttl: 64, id: 8, df: true, proto: protoTCP, flags: flags, seq: seq, ack: acked, payload: []byte(payload)}
}

// send sends a packet of the client.
func (s *scene) send(p packet) { s.Helper(); send(s, s.lab.client, p.bytes(s)) }

// sendFrame sends a frame of the client as it is.
func (s *scene) sendFrame(frame []byte) { s.Helper(); send(s, s.lab.client, frame) }

// station is where the Service's endpoints are.
func (s *scene) station() *station {
	if len(s.service.hosts()) > 0 && s.service.hosts()[0].isPod() {
		return s.lab.pod
	}
	return s.lab.fabric
}

// frame is the next frame at a station; the test ends when there is none.
func (s *scene) frame(at *station) []byte {
	s.Helper()
	f := at.next(s, within)
	if f == nil {
		s.Fatalf("nothing arrived at %s; drops so far %v", at.name, s.lab.drops(s))
	}
	return f
}

// arrives checks that the next frame at a station is this one, byte by byte.
func (s *scene) arrives(at *station, want []byte) {
	s.Helper()
	s.same(at, s.frame(at), want)
}

// same checks that a frame that arrived is this one, without the tag that the case
// may have given it: what Weir sends has those of its way out alone.
func (s *scene) same(at *station, got, want []byte) {
	s.Helper()
	want = append(bytes.Clone(want[:12]), want[ipOffset(want)-2:]...)
	if !bytes.Equal(got, want) {
		s.Fatalf("at %s\n got %x\nwant %x\n\ngot %s\nwant %s", at.name, got, want, summary(got), summary(want))
	}
}

// passes sends the client's packet, and checks that it is delivered.
func (s *scene) passes(p packet) {
	s.Helper()
	s.send(p)
	s.delivered(p)
}

// delivered checks that the client's packet p arrives at an endpoint as the
// mode has it, and remembers as whom the endpoint sees the client.
func (s *scene) delivered(p packet) {
	s.Helper()
	got := s.frame(s.station())
	want, ok := wanted[s.mode]
	if !ok {
		s.Fatalf("mode %s: nothing is known of its packets", s.mode)
	}
	s.same(s.station(), got, want(s, p, got))
}

// wanted are, by mode, what the client's packet p is to be at the endpoint.
// got is what arrived: what Weir is free to choose is taken from there, and
// must stay the same for the flow.
var wanted = map[string]func(s *scene, p packet, got []byte) []byte{
	nat:  translated,
	dnat: translated,
}

// translated is p with its addresses and ports translated.
func translated(s *scene, p packet, got []byte) []byte {
	s.Helper()
	e := s.chosen(got)
	target := netip.AddrPortFrom(e.addr(s.six), s.service.target(p.dst.Port()))
	source := p.src
	if s.mode == nat {
		source = s.translatedSource(got, e)
	}
	if s.snat.IsValid() && (s.snat != source || s.seen != e) {
		s.Errorf("the flow moved: from %v at %v to %v at %v", s.snat, s.seen, source, e)
	}
	s.snat, s.seen = source, e
	p.src, p.dst = source, target
	return s.toEndpoint(p, e).bytes(s)
}

// toEndpoint is p on the last link, to the endpoint.
func (s *scene) toEndpoint(p packet, e endpoint) packet {
	p.srcMAC, p.dstMAC, p.ttl, p.tags = edge1MAC, mac(e.network, e.host), p.ttl-1, nil
	if e.isPod() { // the kernel is one more router
		p.srcMAC, p.ttl = edgePodMAC, p.ttl-1
	}
	return p
}

// translatedSource is what the endpoint sees as the client: the address is
// known, the port is Weir's to choose from its range.
func (s *scene) translatedSource(got []byte, e endpoint) netip.AddrPort {
	s.Helper()
	port, _ := ports(got)
	a := endpoint{e.network, 1, ""}.addr(s.six)
	if e.isPod() {
		a = netip.MustParseAddr("169.254.77.2")
		if s.six {
			a = netip.MustParseAddr("fd77:7765:6972::2")
		}
	}
	if port < 1024 || !e.isPod() && port >= 30000 && port < 61000 {
		s.Errorf("port %d is not in Weir's range", port)
	}
	return netip.AddrPortFrom(a, port)
}

// chosen is the endpoint that a frame went to, by its MAC address.
func (s *scene) chosen(frame []byte) endpoint {
	s.Helper()
	for _, e := range s.service.hosts() {
		if bytes.Equal(frame[:6], mac(e.network, e.host)) {
			return e
		}
	}
	s.Fatalf("a frame for none of the endpoints: %x\n%s", frame, summary(frame))
	return endpoint{}
}

// answer is a packet of the endpoint to the client of p, a packet that was
// delivered.
func (s *scene) answer(p packet) packet {
	a := p
	a.src = netip.AddrPortFrom(s.seen.addr(s.six), s.service.target(p.dst.Port()))
	a.dst = s.snat
	a.srcMAC, a.dstMAC = mac(s.seen.network, s.seen.host), edge1MAC
	if s.seen.isPod() {
		a.dstMAC, a.tags = edgePodMAC, nil
	}
	return a
}

// returns sends the endpoint's answer a and checks that the client gets it
// from the frontend's port.
func (s *scene) returns(a packet, port uint16) {
	s.Helper()
	send(s, s.station(), a.bytes(s))
	s.arrives(s.lab.client, s.translatedBack(a, port).bytes(s))
}

// translatedBack is the endpoint's answer as the client gets it.
func (s *scene) translatedBack(a packet, port uint16) packet {
	a.src, a.dst = s.frontend(port), s.from
	a.srcMAC, a.dstMAC, a.ttl, a.tags = edge0MAC, clientMAC, a.ttl-1, nil
	if s.seen.isPod() {
		a.ttl--
	}
	return a
}

// back is a packet that Weir itself makes in answer to the client's p.
func (s *scene) back(p packet) packet {
	p.src, p.dst = p.dst, p.src
	p.srcMAC, p.dstMAC = net.HardwareAddr(edge0MAC), clientMAC
	p.tos, p.id, p.df, p.ttl = 0, 0, !s.six, 64
	p.tags, p.options, p.tcpOptions, p.payload = nil, nil, nil, nil
	return p
}
