package worker

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/table"
)

// Tags of the association in these tests.
const (
	sctpClientTag   = 0xc0ffee01
	sctpEndpointTag = 0xe0ffee02
)

// sctpPacket is an SCTP packet, its CRC computed by gopacket.
type sctpPacket struct {
	packet
	tag    uint32
	chunks []byte
}

func (p sctpPacket) frame(t testing.TB) []byte {
	t.Helper()
	p.proto, p.payload = header.ProtoSCTP, 0
	eth := &layers.Ethernet{SrcMAC: p.srcMAC, DstMAC: p.dstMAC, EthernetType: layers.EthernetTypeIPv4}
	var l3 gopacket.SerializableLayer = &layers.IPv4{Version: 4, TTL: p.ttl, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolSCTP, SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
	n := header.EthernetLen + header.IPv4Len + header.SCTPLen + len(p.chunks)
	if p.src.Addr().Is6() {
		eth.EthernetType = layers.EthernetTypeIPv6
		l3 = &layers.IPv6{Version: 6, HopLimit: p.ttl, NextHeader: layers.IPProtocolSCTP, SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
		n += header.IPv6Len - header.IPv4Len
	}
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, l3,
		&layers.SCTP{SrcPort: layers.SCTPPort(p.src.Port()), DstPort: layers.SCTPPort(p.dst.Port()), VerificationTag: p.tag}, gopacket.Payload(p.chunks)))
	return buf.Bytes()[:n]
}

func sctpChunk(typ, flags uint8, body ...byte) []byte {
	out := binary.BigEndian.AppendUint16([]byte{typ, flags}, uint16(4+len(body)))
	out = append(out, body...)
	return append(out, make([]byte, -len(out)&3)...)
}

func sctpInit(params ...byte) []byte {
	body := binary.BigEndian.AppendUint32(nil, sctpClientTag)
	return sctpChunk(header.ChunkInit, 0, append(append(body, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1), params...)...)
}

func sctpData(n int) []byte { return sctpChunk(header.ChunkData, 3, make([]byte, 12+n)...) }

func (b *bench) serveSCTP(mode conntrack.Mode) {
	b.t.Helper()
	pool := func(a netip.Addr) table.Pool {
		return table.Pool{Endpoints: []table.Endpoint{{AddrPort: netip.AddrPortFrom(a, 8080)}}}
	}
	s := table.Service{Name: "ns/sctp", Pools: []table.Pool{pool(endpoint4), pool(endpoint6)}, Frontends: []table.Frontend{
		{AddrPort: ap(node4, 80), Proto: header.ProtoSCTP, Pool: 0, Mode: mode}, {AddrPort: ap(node6, 80), Proto: header.ProtoSCTP, Pool: 1, Mode: mode}}}
	if _, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil {
		b.t.Fatal(err)
	}
}

// fromSCTPClient is a packet of the client with these chunks.
func fromSCTPClient(v6 bool, tag uint32, chunks []byte) sctpPacket {
	p := sctpPacket{packet: request(v6, header.ProtoUDP), tag: tag, chunks: chunks}
	p.ttl = 64
	return p
}

// there is the client's packet as the endpoint gets it, by the source port that it
// got.
func (p sctpPacket) there(frame []byte) sctpPacket {
	var h header.Packet
	header.Parse(frame, len(frame), &h)
	p.srcMAC, p.dstMAC, p.ttl = macWeirB, macServer, 63
	source, ep := snat4, endpoint4
	if h.Family == 6 {
		source, ep = snat6, endpoint6
	}
	p.src, p.dst = ap(source, binary.BigEndian.Uint16(frame[h.L4:])), ap(ep, 8080)
	return p
}

func TestAnAssociationIsTranslatedBothWays(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, vlans := range [][]uint16{nil, {100}, {7, 100}} {
			b := newBench(t)
			b.serveSCTP(conntrack.ModeNAT)
			first := fromSCTPClient(v6, 0, sctpInit())
			got := b.one(portClient, withTags(first.frame(t), vlans...), portServer)
			there := first.there(got)
			sameFrame(t, got, there.frame(t))

			for _, x := range []struct {
				forward bool
				tag     uint32
				chunks  []byte
				state   flowstate.State
			}{
				{false, sctpClientTag, sctpChunk(header.ChunkInitAck, 0, make([]byte, 16)...), flowstate.SCTPInit},
				{true, sctpEndpointTag, append(sctpChunk(10, 0, 1, 2, 3), sctpData(5)...), flowstate.SCTPCookieEchoed},
				{false, sctpClientTag, sctpChunk(header.ChunkCookieAck, 0), flowstate.SCTPEstablished},
				{true, sctpEndpointTag, sctpData(1001), flowstate.SCTPEstablished},
				{false, sctpClientTag, sctpChunk(7, 0, 0, 0, 0, 1), flowstate.SCTPShutdown},
				{true, sctpEndpointTag, sctpChunk(header.ChunkShutdownAck, 0), flowstate.SCTPShutdown},
				{false, sctpClientTag, sctpChunk(header.ChunkShutdownComplete, 0), flowstate.Close},
			} {
				in, want, from, to := first, there, portClient, portServer
				if !x.forward {
					in.src, in.dst, in.srcMAC, in.dstMAC = there.dst, there.src, macServer, macWeirB
					want.src, want.dst, want.srcMAC, want.dstMAC = first.dst, first.src, macWeir, macClient
					from, to = portServer, portClient
				}
				in.tag, in.chunks, want.tag, want.chunks = x.tag, x.chunks, x.tag, x.chunks
				sameFrame(t, b.one(from, withTags(in.frame(t), vlans...), to), want.frame(t))
				if n := b.states()[x.state]; n != 1 {
					t.Errorf("states %v, want %v", b.states(), x.state)
				}
			}
			// A new association by the same ports.
			b.one(portClient, withTags(first.frame(t), vlans...), portServer)
			if b.w.counts[counter.ReplacedFlows] != 1 || b.states()[flowstate.SCTPInit] != 1 {
				t.Errorf("reopened %d, states %v", b.w.counts[counter.ReplacedFlows], b.states())
			}
			b.framesHome()
		}
	}
}

// A CRC that is left to the device is computed over all buffers, in every mode; a
// right one stays right, and a wrong one wrong by the same bits.
func TestTheCRCOfSCTP(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, mode := range []conntrack.Mode{conntrack.ModeNAT, conntrack.ModeL2DSR} {
			for name, flaw := range map[string]uint32{"right": 0, "wrong": 0x10001, "partial": ^uint32(0)} {
				for _, cuts := range [][]int{nil, {200, 333}, {201}} {
					b := newBench(t)
					b.serveSCTP(mode)
					b.one(portClient, fromSCTPClient(v6, 0, sctpInit()).frame(t), portServer)
					p := fromSCTPClient(v6, sctpEndpointTag, sctpData(1003))
					f := p.frame(t)
					at := header.EthernetLen + header.IPv4Len + header.SCTPChecksum
					if v6 {
						at += header.IPv6Len - header.IPv4Len
					}
					spoil := func(f []byte) []byte {
						if flaw != ^uint32(0) {
							binary.LittleEndian.PutUint32(f[at:], binary.LittleEndian.Uint32(f[at:])^flaw)
						}
						return f
					}
					in := spoil(append([]byte{}, f...))
					if name == "partial" {
						binary.LittleEndian.PutUint32(in[at:], 0)
					}
					b.giveBuffers(portClient, in, cuts...)
					var got []byte
					for _, piece := range b.round()[portServer] {
						got = append(got, piece...)
					}
					want := p
					if mode == conntrack.ModeNAT {
						want = p.there(got)
					} else {
						want.srcMAC, want.dstMAC, want.ttl = macWeirB, macServer, 63
					}
					sameFrame(t, got, spoil(want.frame(t)))
					b.framesHome()
				}
			}
		}
	}
}

func TestSCTPThatIsRefused(t *testing.T) {
	other := []byte{0, 5, 0, 8, 192, 0, 2, 99}
	for name, c := range map[string]struct {
		tag    uint32
		chunks []byte
		reason string
		answer []byte // tag and chunk, nil: none
	}{
		"another address":     {0, sctpInit(other...), "sctp-multihomed", []byte{0xc0, 0xff, 0xee, 1, 6, 0, 0, 4}},
		"a host name":         {0, sctpInit(0, 11, 0, 5, 'a', 0, 0, 0), "sctp-multihomed", []byte{0xc0, 0xff, 0xee, 1, 6, 0, 0, 4}},
		"data of no flow":     {9, sctpData(4), "no-conntrack-entry", []byte{0, 0, 0, 9, 6, 1, 0, 4}},
		"SHUTDOWN ACK":        {9, sctpChunk(8, 0), "no-conntrack-entry", []byte{0, 0, 0, 9, 14, 1, 0, 4}},
		"ABORT of no flow":    {9, sctpChunk(6, 0), "no-conntrack-entry", nil},
		"an INIT with a tag":  {9, sctpInit(), "bad-transport-header", nil},
		"a chunk of no bytes": {9, []byte{3, 0, 0, 0}, "bad-transport-header", nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.serveSCTP(conntrack.ModeNAT)
			p := fromSCTPClient(false, c.tag, c.chunks)
			if c.answer == nil {
				b.one(portClient, p.frame(t), -1)
			} else {
				want := p
				want.src, want.dst, want.srcMAC, want.dstMAC = p.dst, p.src, p.dstMAC, p.srcMAC
				want.tag, want.chunks = binary.BigEndian.Uint32(c.answer), c.answer[4:]
				sameFrame(t, b.one(portClient, p.frame(t), portClient), want.frame(t))
				if b.w.counts[counter.Aborts] != 1 {
					t.Errorf("%d refusals counted", b.w.counts[counter.Aborts])
				}
			}
			if d := b.drops(); d[c.reason] != 1 || len(d) != 1 {
				t.Errorf("drops %v", d)
			}
			b.framesHome()
		})
	}
}

// What Weir makes of SCTP by itself is limited like the RSTs.
func TestAbortsAreLimited(t *testing.T) {
	b := newBench(t)
	b.serveSCTP(conntrack.ModeNAT)
	b.w.beginRound()
	b.w.resets = ratelimit.New(1, 1, 1)
	for range 3 {
		b.give(portClient, fromSCTPClient(false, 9, sctpData(4)).frame(t))
	}
	if n := len(b.roundAtTheSameTime()[portClient]); n != 1 || b.drops()["reply-rate-limited"] != 2 {
		t.Errorf("%d answers, drops %v", n, b.drops())
	}
	b.framesHome()
}

// A first fragment does not tell how long the packet is that its CRC is of.
func TestFragmentsOfSCTPAreNotTranslated(t *testing.T) {
	b := newBench(t)
	b.serveSCTP(conntrack.ModeNAT)
	b.one(portClient, fromSCTPClient(false, 0, sctpInit()).frame(t), portServer)
	p := fromSCTPClient(false, sctpEndpointTag, sctpData(100))
	for _, f := range cut(t, p.frame(t), 7, 0, 64) {
		b.give(portClient, f)
	}
	if got := b.round(); len(got[portServer]) != 0 || b.drops()["unsupported"] != 2 {
		t.Errorf("%d sent, %d to the client, %d to the kernel, drops %v", len(got[portServer]), len(got[portClient]), len(got[portHost]), b.drops())
	}
}

func TestForwardingSCTPAllocatesNothing(t *testing.T) {
	b := newBench(t)
	b.serveSCTP(conntrack.ModeNAT)
	b.one(portClient, fromSCTPClient(false, 0, sctpInit()).frame(t), portServer)
	for name, p := range map[string]sctpPacket{
		"data": fromSCTPClient(false, sctpEndpointTag, sctpData(100)), "an INIT again": fromSCTPClient(false, 0, sctpInit(0, 12, 0, 6, 0, 5, 0, 0)),
	} {
		f := p.frame(t)
		if n := testing.AllocsPerRun(100, func() {
			b.give(portClient, f)
			b.w.beginRound()
			b.w.receive()
			b.w.releaseQueued()
			b.w.endRound()
			b.q[portServer].Out = b.q[portServer].Out[:0]
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Associations that begin before the limit is reached keep to it when they are made.
func TestTheConnectionLimitHoldsForAssociations(t *testing.T) {
	b := newBench(t)
	b.apply(nil, servicePort("ns/a", &table.Policy{MaxConnections: 1}, nodeB, endpoint4))
	var answers []sctpPacket
	for port := range uint16(3) {
		p := fromSCTPClient(false, 0, sctpInit())
		p.packet = p.to(nodeB)
		p.src = ap(p.src.Addr(), 100+port)
		f := b.one(portClient, p.frame(t), portServer)
		a := p.there(f)
		a.src, a.dst, a.srcMAC, a.dstMAC = a.dst, a.src, macServer, macWeirB
		a.tag, a.chunks = sctpClientTag, sctpChunk(header.ChunkInitAck, 0, make([]byte, 16)...)
		b.one(portServer, a.frame(t), portClient)
		p.tag, p.chunks = sctpEndpointTag, sctpChunk(10, 0, 1, 2, 3, 4)
		b.one(portClient, p.frame(t), portServer)
		answers = append(answers, a)
	}
	for i, out := range [3]int{portClient, -1, -1} {
		answers[i].chunks = sctpChunk(header.ChunkCookieAck, 0)
		b.one(portServer, answers[i].frame(t), out)
	}
	if n := b.states()[flowstate.SCTPEstablished]; n != 1 || b.drops()["connection-limit"] != 2 {
		t.Errorf("%d associations, %v", n, b.drops())
	}
	b.framesHome()
}
