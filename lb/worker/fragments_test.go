package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// cut is a frame's datagram in fragments with an identification: those of
// frame that lie between the given offsets of what follows its IP header.
func cut(t testing.TB, frame []byte, id uint32, offsets ...int) [][]byte {
	t.Helper()
	v6 := frame[12] == 0x86
	head := header.EthernetLen + header.IPv4Len
	if v6 {
		head = header.EthernetLen + header.IPv6Len
	}
	var out [][]byte
	for n, from := range offsets {
		to, more := len(frame)-head, n < len(offsets)-1
		if more {
			to = offsets[n+1]
		}
		out = append(out, fragmentOf(t, frame[:head], frame[head+from:head+to], id, from, more))
	}
	return out
}

// fragmentOf builds one fragment by gopacket: of payload, with the addresses,
// TTL and protocol of head.
func fragmentOf(t testing.TB, head, payload []byte, id uint32, offset int, more bool) []byte {
	t.Helper()
	pkt := gopacket.NewPacket(head, layers.LayerTypeEthernet, gopacket.Default)
	eth := pkt.LinkLayer().(*layers.Ethernet)
	buf := gopacket.NewSerializeBuffer()
	n := len(head) + len(payload)
	if ip, ok := pkt.NetworkLayer().(*layers.IPv4); ok {
		ip.Id, ip.Flags, ip.FragOffset = uint16(id), 0, uint16(offset/8)
		if more {
			ip.Flags = layers.IPv4MoreFragments
		}
		must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, gopacket.Payload(payload)))
		return bytes.Clone(buf.Bytes()[:n])
	}
	ip := pkt.NetworkLayer().(*layers.IPv6)
	place := uint16(offset)
	if more {
		place |= 1
	}
	h := []byte{uint8(ip.NextHeader), 0}
	h = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(h, place), id)
	ip.NextHeader = layers.IPProtocolIPv6Fragment
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, eth, ip, gopacket.Payload(append(h, payload...))))
	return bytes.Clone(buf.Bytes()[:n+8])
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// identification reads that of a fragment.
func identification(t testing.TB, f []byte) uint32 {
	t.Helper()
	var p header.Packet
	if problem := header.Parse(f, len(f), &p); problem != header.IsFragment {
		t.Fatalf("not a fragment but %d: %x", problem, f)
	}
	return p.Fragment(f).ID
}

// long is a request that does not fit into one packet of the way out.
func long(v6 bool) packet {
	p := request(v6, header.ProtoUDP)
	p.payload, p.df = 4000, false
	return p
}

// toEndpoint is what is made of a request: the SNAT port is read from the frame
// that was sent.
func toEndpoint(req packet, first []byte) packet {
	want, at := req, header.EthernetLen+header.IPv4Len
	snat, ep := snat4, endpoint4
	if req.src.Addr().Is6() {
		snat, ep, at = snat6, endpoint6, header.EthernetLen+header.IPv6Len+8
	}
	want.srcMAC, want.dstMAC, want.ttl = macWeirB, macServer, 63
	want.src, want.dst = ap(snat, binary.BigEndian.Uint16(first[at:])), ap(ep, 8080)
	return want
}

// same compares two lists of frames, in order.
func same(t *testing.T, what string, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d frames, want %d", what, len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("%s, frame %d:\n got %x\nwant %x", what, i, got[i][:60], want[i][:60])
		}
	}
}

var pieces = []int{0, 1200, 2400, 3600}

func TestFragmentsFollowTheFirstBothWays(t *testing.T) {
	orders := map[string][]int{"in order": {0, 1, 2, 3}, "backwards": {3, 2, 1, 0}, "the first in the middle": {2, 0, 3, 1}}
	for _, v6 := range []bool{false, true} {
		for name, order := range orders {
			t.Run(fmt.Sprintf("v6=%v/%s", v6, name), func(t *testing.T) {
				b := newBench(t)
				req := long(v6)
				there := cut(t, req.build(t), 0x1234, pieces...)
				for _, n := range order {
					b.give(portClient, there[n])
				}
				got := b.round()[portServer]
				slices.SortFunc(got, byOffset)
				if len(got) == 0 {
					t.Fatalf("nothing was sent: %v", b.drops())
				}
				want := toEndpoint(req, got[0])
				same(t, "to the endpoint", got, cut(t, want.build(t), identification(t, got[0]), pieces...))

				ans := packet{srcMAC: macServer, dstMAC: macWeirB, src: want.dst, dst: want.src, proto: header.ProtoUDP, payload: 4000}
				back := cut(t, ans.build(t), 0x1234, pieces...)
				for _, n := range order {
					b.give(portServer, back[n])
				}
				got = b.round()[portClient]
				slices.SortFunc(got, byOffset)
				if len(got) == 0 {
					t.Fatalf("nothing was sent back: %v", b.drops())
				}
				ans.srcMAC, ans.dstMAC, ans.ttl, ans.src, ans.dst = macWeir, macClient, 63, req.dst, req.src
				same(t, "to the client", got, cut(t, ans.build(t), identification(t, got[0]), pieces...))

				c := b.w.published.read()
				wantHeld := uint64(slices.Index(order, 0)) * 2
				if c.Values[counter.Fragments] != 8 || c.Values[counter.QueuedFragments] != wantHeld || len(c.Drops) > 0 {
					t.Errorf("%d fragments, %d held (want %d), drops %v", c.Values[counter.Fragments], c.Values[counter.QueuedFragments], wantHeld, c.Drops)
				}
				b.framesHome()
			})
		}
	}
}

func byOffset(a, b []byte) int {
	var p, q header.Packet
	header.Parse(a, len(a), &p)
	header.Parse(b, len(b), &q)
	return p.Fragment(a).Offset - q.Fragment(b).Offset
}

func TestFragmentsOfTCP(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		syn := request(v6, header.ProtoTCP)
		b.one(portClient, syn.build(t), portServer)
		ack := syn
		ack.flags, ack.seq, ack.ack, ack.payload, ack.df = header.ACK, 1001, 5001, 2000, false
		for _, f := range cut(t, ack.build(t), 9, 0, 1000) {
			b.give(portClient, f)
		}
		got := b.round()[portServer]
		if len(got) != 2 {
			t.Fatalf("v6=%v: %d frames (drops %v)", v6, len(got), b.drops())
		}
		same(t, "to the endpoint", got, cut(t, toEndpoint(ack, got[0]).build(t), identification(t, got[0]), 0, 1000))
	}
}

// Without translation a fragment is the client's own, its identification too.
func TestFragmentsWithoutTranslation(t *testing.T) {
	b := newBench(t)
	b.serveDirect(conntrack.ModeL2DSR, endpoint4, nil)
	req := long(false)
	for _, f := range cut(t, req.build(t), 0x1234, pieces...) {
		b.give(portClient, f)
	}
	req.srcMAC, req.dstMAC, req.ttl = macWeirB, macServer, 63
	same(t, "l2dsr", b.round()[portServer], cut(t, req.build(t), 0x1234, pieces...))

	for _, mode := range []conntrack.Mode{conntrack.ModeIPIP, conntrack.ModeGUE} {
		b := newBench(t)
		b.serveDirect(mode, endpoint4, nil)
		req := long(false)
		for _, n := range []int{1, 2, 3, 0} {
			b.give(portClient, cut(t, req.build(t), 0x1234, pieces...)[n])
		}
		got := b.round()[portServer]
		req.ttl = 63
		want := cut(t, req.build(t), 0x1234, pieces...)
		if len(got) != len(want) {
			t.Fatalf("%s: %d frames (drops %v)", modeNames[mode], len(got), b.drops())
		}
		for i, n := range []int{0, 1, 2, 3} {
			if inner := want[n][header.EthernetLen:]; !bytes.HasSuffix(got[i], inner) {
				t.Errorf("%s: fragment %d is not in frame %d", modeNames[mode], n, i)
			}
		}
		b.framesHome()
	}
}

// Two clients may use the same identification; at the endpoint both come from
// the same address.
func TestDatagramsOfTwoClientsAreToldApart(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		one, other := long(v6), long(v6)
		if v6 {
			other.src = ap(netip.MustParseAddr("2001:db8::8"), 40000)
		} else {
			other.src = ap(netip.MustParseAddr("192.0.2.8"), 40000)
		}
		x, y := cut(t, one.build(t), 77, pieces...), cut(t, other.build(t), 77, pieces...)
		for n := range x {
			b.give(portClient, x[n])
			b.give(portClient, y[n])
		}
		ids := map[uint32]int{}
		for _, f := range b.round()[portServer] {
			ids[identification(t, f)]++
		}
		if len(ids) != 2 {
			t.Errorf("v6=%v: identifications %v", v6, ids)
		}
		for id, n := range ids {
			if n != len(pieces) {
				t.Errorf("v6=%v: %d fragments have identification %d", v6, n, id)
			}
		}
		b.framesHome()
	}
}

func TestLaterFragmentsShareTheFirstOnesFate(t *testing.T) {
	tests := []struct {
		name   string
		dst    netip.AddrPort
		ttl    uint8
		in     int
		first  [3]int // frames out of each port
		later  [3]int
		reason Drop // of the later one, when it is dropped
	}{
		{"no endpoint", ap(empty4, 80), 0, portClient, [3]int{1, 0, 0}, [3]int{}, DropOrphanFragment},
		{"dropped in silence", ap(empty4, 81), 0, portClient, [3]int{}, [3]int{}, DropOrphanFragment},
		{"the kernel's", ap(node4, 53), 0, portClient, [3]int{0, 0, 1}, [3]int{0, 0, 1}, 0},
		{"nobody's", ap(node4, 53), 0, portHost, [3]int{}, [3]int{}, DropPuntLoop},
		{"at the end of its way", ap(node4, 80), 1, portClient, [3]int{1, 0, 0}, [3]int{}, DropOrphanFragment},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			req := long(false)
			req.dst, req.ttl = tt.dst, tt.ttl
			f := cut(t, req.build(t), 5, 0, 1200)[0]
			count := func() (n [3]int) {
				for i, out := range b.round() {
					n[i] = len(out)
				}
				return n
			}
			b.give(tt.in, f)
			if got := count(); got != tt.first {
				t.Errorf("the first: %v, want %v (drops %v)", got, tt.first, b.drops())
			}
			before := b.drops()[tt.reason.String()]
			last := cut(t, req.build(t), 5, 0, 3200)[1]
			b.give(tt.in, last)
			if got := count(); got != tt.later {
				t.Errorf("the later: %v, want %v (drops %v)", got, tt.later, b.drops())
			}
			if tt.later == ([3]int{}) && b.drops()[tt.reason.String()] != before+1 {
				t.Errorf("counted %v, want one more %s", b.drops(), tt.reason)
			}
			b.framesHome()
		})
	}
}

func TestFragmentsOfOtherProtocolsAreTheKernels(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		ping := long(v6).build(t)
		if v6 {
			ping[20] = header.ProtoICMPv6
		} else {
			ping[23] = header.ProtoICMP
		}
		for n, f := range cut(t, ping, 5, pieces...) {
			b.one(portClient, f, portHost)
			b.give(portHost, f)
			b.round()
			if got := b.drops()[DropUnsupportedProtocol.String()]; got != uint64(n+1) {
				t.Errorf("v6=%v: %d dropped", v6, got)
			}
		}
		b.framesHome()
	}
}

// Of a datagram's fragments only the first is answered.
func TestLaterFragmentsAreNotAnswered(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		req := long(v6)
		b.one(portClient, cut(t, req.build(t), 5, 0, 800)[0], portServer)
		large := cut(t, req.build(t), 5, 0, 800, 2240)[1] // 1,440 bytes and its headers
		if !v6 {
			large[header.EthernetLen+6] |= 0x40 // DF
			resealed(large)
		}
		b.one(portClient, large, -1)
		if b.drops()[DropTooBig.String()] != 1 {
			t.Errorf("v6=%v: drops %v", v6, b.drops())
		}
		req.ttl = 1
		b.one(portClient, cut(t, req.build(t), 5, 0, 2400)[1], -1)
		if b.drops()[DropTTL.String()] != 1 {
			t.Errorf("v6=%v: drops %v", v6, b.drops())
		}
		b.framesHome()
	}
}

func TestNoAllocationPerFragment(t *testing.T) {
	b := newBench(t)
	f := cut(t, long(false).build(t), 5, pieces...)
	id := uint16(0)
	give := func(frame []byte) {
		binary.BigEndian.PutUint16(frame[18:], id)
		frame[24], frame[25] = 0, 0
		c := header.Checksum(0, frame[14:34])
		frame[24], frame[25] = byte(c), byte(c>>8)
		b.give(portClient, frame)
	}
	for name, order := range map[string][]int{"in order": {0, 1, 2, 3}, "held": {3, 2, 1, 0}, "overlapping": {0, 1, 1, 2, 3}, "lost": {0, 2}} {
		n := testing.AllocsPerRun(200, func() {
			id++
			for _, i := range order {
				give(f[i])
			}
			b.w.beginRound()
			b.w.receive()
			b.w.releaseQueued()
			b.w.endRound()
			for _, q := range b.q {
				q.Out = q.Out[:0]
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations per datagram", name, n)
		}
	}
	b.framesHome()
}
