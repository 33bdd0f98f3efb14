package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

// large is a packet of the client that may be fragmented, with n bytes of payload.
func large(proto uint8, n int) packet {
	p := request(false, proto)
	p.df, p.payload = false, n
	return p
}

// offsetsOf are the offsets of the fragments of n bytes behind an IPv4 header, where the
// way out takes mtu bytes.
func offsetsOf(n, mtu int) (out []int) {
	for at := 0; at < n; at += (mtu - header.IPv4Len) &^ 7 {
		out = append(out, at)
	}
	return out
}

// giveLarge gives a frame in as many buffers as a driver would, or more.
func (b *bench) giveLarge(port int, f []byte, sizes ...int) {
	for n := len(f); n > 3840; n -= 3840 {
		sizes = append(sizes, 3840)
	}
	b.giveBuffers(port, f, sizes...)
}

// sameFragments compares what left with the fragments of a whole frame.
func sameFragments(t *testing.T, got [][]byte, whole []byte, mtu int) {
	t.Helper()
	want := offsetsOf(len(whole)-header.EthernetLen-header.IPv4Len, mtu)
	if len(got) != len(want) {
		t.Fatalf("%d packets left, want %d", len(got), len(want))
	}
	for i, w := range cut(t, whole, identification(t, got[0]), want...) {
		if !bytes.Equal(got[i], w) {
			t.Fatalf("fragment %d:\n got %x\nwant %x", i, got[i], w)
		}
	}
}

// IPv4 without DF that the outgoing link does not take whole leaves in fragments, in both
// directions, whatever the buffers in which it came.
func TestATranslatedPacketThatDoesNotFitTheLinkLeavesInFragments(t *testing.T) {
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		for _, size := range []int{1400, 3000, 8940, 8972} {
			for _, shape := range []string{"plain", "partial", "no checksum", "odd buffers", "short buffers", "tagged", "padded"} {
				t.Run(fmt.Sprintf("proto %d/%d bytes/%s", proto, size, shape), func(t *testing.T) {
					b := newBench(t)
					req := large(proto, size)
					f, port := b.fragmentsOf(portClient, req, shape)
					if f == nil {
						t.Fatalf("nothing left (drops %v)", b.drops())
					}
					source := binary.BigEndian.Uint16(f[0][header.EthernetLen+header.IPv4Len:])
					out := req
					out.srcMAC, out.dstMAC, out.ttl = macWeirB, macServer, 63
					out.src, out.dst, out.noSum = ap(snat4, source), ap(endpoint4, 8080), shape == "no checksum" && proto == header.ProtoUDP
					sameFragments(t, f, out.build(t), 1400)
					if port != portServer {
						t.Errorf("they left by port %d", port)
					}

					a := out
					a.srcMAC, a.dstMAC, a.src, a.dst, a.ttl, a.payload = macServer, macWeirB, out.dst, out.src, 64, size+200
					if proto == header.ProtoTCP {
						a.flags, a.seq, a.ack = header.SYN|header.ACK, 5000, req.seq+1+uint32(size)
					}
					f, port = b.fragmentsOf(portServer, a, shape)
					if f == nil {
						t.Fatalf("nothing left (drops %v)", b.drops())
					}
					back := a
					back.srcMAC, back.dstMAC, back.src, back.dst, back.ttl = macWeir, macClient, req.dst, req.src, 63
					sameFragments(t, f, back.build(t), 1500)
					if port != portClient || len(b.drops()) > 0 {
						t.Errorf("they left by port %d, drops %v", port, b.drops())
					}
					b.framesHome()
				})
			}
		}
	}
}

// fragmentsOf gives a packet and returns what left, and by which port.
func (b *bench) fragmentsOf(in int, p packet, shape string) ([][]byte, int) {
	b.t.Helper()
	var cuts []int
	p.partial = shape == "partial"
	p.noSum = shape == "no checksum" && p.proto == header.ProtoUDP
	f := p.build(b.t)
	switch shape {
	case "odd buffers":
		cuts = []int{1001, 1}
		if len(f) > 6000 {
			cuts = []int{3001, 3001}
		}
	case "short buffers":
		cuts = []int{len(f) - 2, 1}
		if len(f) > 3840 {
			cuts = []int{100, 3840, 3840}
		}
	case "tagged":
		f = tagged(f, unix.ETH_P_8021Q, 7)
	case "padded":
		f = append(f, 0xaa, 0xaa, 0xaa)
	}
	if cuts == nil {
		b.giveLarge(in, f)
	} else {
		b.giveBuffers(in, f, cuts...)
	}
	for port, got := range b.round() {
		if len(got) > 0 {
			return got, port
		}
	}
	return nil, -1
}

// A fragment that does not fit is divided, and keeps its place in the datagram.
func TestAFragmentThatDoesNotFitTheLinkIsDivided(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		b := newBench(t)
		req := large(header.ProtoUDP, 6992)
		for _, n := range order {
			b.giveLarge(portClient, cut(t, req.build(t), 9, 0, 3008)[n])
		}
		got := b.round()[portServer]
		if len(got) == 0 {
			t.Fatalf("nothing left (drops %v)", b.drops())
		}
		source := binary.BigEndian.Uint16(got[0][header.EthernetLen+header.IPv4Len:])
		out := req
		out.srcMAC, out.dstMAC, out.ttl, out.src, out.dst = macWeirB, macServer, 63, ap(snat4, source), ap(endpoint4, 8080)
		want := cut(t, out.build(t), identification(t, got[0]), 0, 1376, 2752, 3008, 3008+1376, 3008+2752)
		if len(got) != len(want) {
			t.Fatalf("%d packets left, want %d", len(got), len(want))
		}
		for i, f := range got {
			sameFrame(t, f, want[i])
		}
		b.framesHome()
	}
}

// Two clients' datagrams with one identification do not become one at the endpoint.
func TestFragmentsOfTwoClientsHaveIdentificationsOfTheirOwn(t *testing.T) {
	b := newBench(t)
	seen := map[uint32]bool{}
	for n := range uint16(20) {
		req := large(header.ProtoUDP, 3000)
		req.src = ap(client4, 40000+n%2)
		b.giveLarge(portClient, req.build(t))
		got := b.round()[portServer]
		if len(got) != 3 {
			t.Fatalf("%d packets left (drops %v)", len(got), b.drops())
		}
		id := identification(t, got[0])
		if seen[id] || identification(t, got[1]) != id || identification(t, got[2]) != id {
			t.Fatalf("identification %d twice, or not in all fragments", id)
		}
		seen[id] = true
	}
}

// withOptions puts options into a frame's IPv4 header.
func withOptions(f []byte, options ...byte) []byte {
	g := slices.Insert(bytes.Clone(f), header.EthernetLen+header.IPv4Len, options...)
	ip := g[header.EthernetLen:]
	ip[0] = 0x45 + byte(len(options)/4)
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	return resealed(g)
}

// resealed has the right checksum in its IPv4 header.
func resealed(f []byte) []byte {
	ip := f[header.EthernetLen:]
	ip[10], ip[11] = 0, 0
	binary.LittleEndian.PutUint16(ip[10:], header.Checksum(0, ip[:header.IPv4(ip).HeaderLen()]))
	return f
}

// RFC 791 section 3.1: the first fragment has all options, the others those with the
// copied bit.
func TestLaterFragmentsHaveTheOptionsThatAreCopied(t *testing.T) {
	// Record route, router alert, no-operation, end.
	options := []byte{7, 7, 4, 0, 0, 0, 0, 0x94, 4, 0, 0, 1, 0, 0, 0, 0}
	later := []byte{1, 1, 1, 1, 1, 1, 1, 0x94, 4, 0, 0, 1, 0, 0, 0, 0}
	b := newBench(t)
	req := large(header.ProtoUDP, 3000)
	b.give(portClient, withOptions(req.build(t), options...))
	got := b.round()[portServer]
	if len(got) != 3 {
		t.Fatalf("%d packets left (drops %v)", len(got), b.drops())
	}
	source := binary.BigEndian.Uint16(got[0][header.EthernetLen+header.IPv4Len+len(options):])
	out := req
	out.srcMAC, out.dstMAC, out.ttl, out.src, out.dst = macWeirB, macServer, 63, ap(snat4, source), ap(endpoint4, 8080)
	id := binary.BigEndian.Uint16(got[0][header.EthernetLen+4:])
	for i, w := range cut(t, out.build(t), uint32(id), offsetsOf(3008, 1400-len(options))...) {
		o := options
		if i > 0 {
			o = later
		}
		sameFrame(t, got[i], withOptions(w, o...))
	}
	b.framesHome()
}

// In a tunnel too, whatever the buffers and the options.
func TestATunneledPacketOfSeveralBuffersLeavesInFragments(t *testing.T) {
	for mode, name := range modeNames {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.serveDirect(mode, endpoint4, nil)
			req := large(header.ProtoUDP, 8972)
			b.giveLarge(portClient, req.build(t))
			got := b.round()[portServer]
			var data []byte
			for i, f := range got {
				data = append(data, fragmentData(t, tags(f, 100), mode, false, len(data), i == len(got)-1)...)
			}
			if !bytes.Equal(data, req.build(t)[header.EthernetLen+header.IPv4Len:]) {
				t.Errorf("reassembled it is another datagram (%d fragments, drops %v)", len(got), b.drops())
			}
			b.give(portClient, withOptions(large(header.ProtoUDP, 3000).build(t), 7, 3, 4, 0))
			if got := b.round()[portServer]; len(got) != 3 {
				t.Errorf("with options %d packets left (drops %v)", len(got), b.drops())
			}
			b.framesHome()
		})
	}
}

// Where frames run out, the whole packet is dropped and counted, and no frame is lost.
func TestAPacketIsDroppedWhenNoFrameIsFreeForItsFragments(t *testing.T) {
	for _, mode := range []conntrack.Mode{conntrack.ModeNAT, conntrack.ModeIPIP} {
		for free := range 3 {
			b := newBench(t)
			if mode != conntrack.ModeNAT {
				b.serveDirect(mode, endpoint4, nil)
			}
			b.give(portClient, large(header.ProtoUDP, 3000).build(t))
			rest := slices.Clone(b.w.free.addr[free:])
			b.w.free.addr = b.w.free.addr[:free]
			b.w.beginRound()
			b.w.receive()
			if n := b.w.ports[portServer].txn; n != 0 || b.w.drops[DropTxFull] != 1 || len(b.w.free.addr) != free+1 {
				t.Errorf("%d to be sent, drops %v, %d frames free", n, b.w.drops, len(b.w.free.addr))
			}
			b.w.free.addr = append(b.w.free.addr, rest...)
			b.round()
			b.framesHome()
		}
	}
}

func TestHowFarAPacketIsDivisible(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		len, ihl uint16
		mtu      uint32
		want     bool
	}{
		{9000, 20, 1500, true}, {9000, 60, 1500, true}, {9000, 20, 576, true}, {16000, 20, 576, true},
		{9000, 20, 68, false}, {9000, 60, 68, false}, {1400, 20, 68, true}, {1500, 20, 68, false},
		{9000, 20, 27, false}, {9000, 20, 0, false}, {9000, 60, 60, false}, {16000, 20, 15000, true},
	} {
		p := header.Packet{Family: 4, L3: 14, L4: 14 + uint8(c.ihl), Len: c.len}
		if got := b.w.canFragment(&p, c.mtu); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	// A fragment fits a frame, however wide the link is.
	p := header.Packet{Family: 4, L3: 22, L4: 42, Len: 9000}
	if n := b.w.fragmentPayload(&p, 8999); n != 3792 {
		t.Errorf("%d bytes in a fragment", n)
	}
}

func TestNoAllocationPerPacketThatIsFragmented(t *testing.T) {
	b := newBench(t)
	f := large(header.ProtoUDP, 8972).build(t)
	n := testing.AllocsPerRun(100, func() {
		b.give(portClient, f[:3840])
		b.give(portClient, f[3840:7680])
		b.give(portClient, f[7680:])
		in := b.q[portClient].In
		in[0].Options, in[1].Options = xsk.Continued, xsk.Continued
		b.w.beginRound()
		b.w.receive()
		b.w.endRound()
		for _, q := range b.q {
			q.Out = q.Out[:0]
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
	b.framesHome()
}
