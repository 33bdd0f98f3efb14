package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// connected makes a TCP connection through Weir and returns the next packet of
// each side.
func (b *bench) connected(v6 bool) (fromClient, fromEndpoint packet) {
	b.t.Helper()
	syn := request(v6, header.ProtoTCP)
	f := b.one(portClient, syn.build(b.t), portServer)
	var p header.Packet
	header.Parse(f, len(f), &p)
	snat, ep := snat4, endpoint4
	if v6 {
		snat, ep = snat6, endpoint6
	}
	answer := packet{
		srcMAC: macServer, dstMAC: macWeirB, src: ap(ep, 8080), dst: ap(snat, uint16(f[p.L4])<<8|uint16(f[p.L4+1])),
		proto: header.ProtoTCP, flags: header.SYN | header.ACK, seq: 5000, ack: 1001,
	}
	b.one(portServer, answer.build(b.t), portClient)
	fromClient = syn
	fromClient.flags, fromClient.seq, fromClient.ack = header.ACK, 1001, 5001
	b.one(portClient, fromClient.build(b.t), portServer)
	fromClient.payload = 10
	fromEndpoint = answer
	fromEndpoint.flags, fromEndpoint.seq, fromEndpoint.payload = header.ACK, 5001, 20
	return fromClient, fromEndpoint
}

func TestFlowsOfAGoneEndpointAreReset(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, first := range []int{portClient, portServer} {
			t.Run(fmt.Sprintf("v6=%v/first=%d", v6, first), func(t *testing.T) {
				b := newBench(t)
				b.offer(&table.Policy{OnRemoval: table.ResetFlows}, table.Pool{}, 1)
				request, answer := b.connected(v6)
				sides := map[int]packet{portClient: request, portServer: answer}
				b.offer(&table.Policy{OnRemoval: table.ResetFlows}, table.Pool{}, 0)

				// Not at once: it may only be between two slices.
				b.one(portClient, request.build(t), portServer)
				b.one(portServer, answer.build(t), portClient)

				b.w.removed.graceTicks = 0
				for _, side := range []int{first, portClient + portServer - first, first} {
					p := sides[side]
					b.endsBothSides(t, side, p, sides[portClient+portServer-side], p.seq, p.seq+uint32(p.payload))
				}
				if b.drops()["endpoint-removed"] != 3 {
					t.Errorf("counted %v", b.drops())
				}
				rst := request
				rst.flags, rst.payload = header.RST, 0
				b.one(portClient, rst.build(t), portServer) // the endpoint may not know yet
				b.framesHome()
			})
		}
	}
}

// endsBothSides checks that packet p, which comes in by a port, is answered by a RST, and that the
// other side gets RSTs with the numbers. answer is a packet of the other side.
func (b *bench) endsBothSides(t *testing.T, in int, p, answer packet, numbers ...uint32) {
	t.Helper()
	b.give(in, p.build(t))
	out := b.round()
	if len(out[in]) != 1 {
		t.Fatalf("%d frames to the sender", len(out[in]))
	}
	isResetOf(t, out[in][0], p)
	other := out[portClient+portServer-in]
	if len(other) != len(numbers) {
		t.Fatalf("%d frames to the other side, want %d", len(other), len(numbers))
	}
	for i, f := range other {
		answer.ack = numbers[i]
		isResetOf(t, withoutACK(t, f, p.ack), answer)
	}
}

// withoutACK is the RST without the acknowledgment, which must be ack.
func withoutACK(t *testing.T, f []byte, ack uint32) []byte {
	t.Helper()
	pkt := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
	tcp, ok := pkt.TransportLayer().(*layers.TCP)
	if !ok || !tcp.RST || !tcp.ACK || tcp.Ack != ack {
		t.Fatalf("not a RST that acknowledges %d: %v", ack, pkt)
	}
	var h header.Packet
	if header.Parse(f, len(f), &h) != header.OK {
		t.Fatalf("not a packet: %x", f)
	}
	sum := uint32(^binary.BigEndian.Uint16(f[h.L4+16:])) + uint32(^uint16(ack>>16)) + uint32(^uint16(ack)) + uint32(^uint16(header.ACK))
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(f[h.L4+16:], ^uint16(sum>>16+sum))
	clear(f[h.L4+8 : h.L4+12])
	f[h.L4+13] = header.RST
	return f
}

// The numbers for the other side follow from the packet, and from those that have passed before.
func TestTheOtherSideIsResetWithTheNumberThatItExpects(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(answer *packet)
		numbers []uint32
	}{
		"data":              {func(*packet) {}, []uint32{5001, 5021}},
		"an acknowledgment": {func(p *packet) { p.payload = 0 }, []uint32{5001}},
		"a FIN":             {func(p *packet) { p.flags |= header.FIN }, []uint32{5001, 5022}},
		"a keepalive":       {func(p *packet) { p.seq, p.payload = 5000, 0 }, []uint32{5000, 5001}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.offer(&table.Policy{OnRemoval: table.ResetFlows}, table.Pool{}, 1)
			request, answer := b.connected(false)
			b.offer(&table.Policy{OnRemoval: table.ResetFlows}, table.Pool{}, 0)
			b.w.removed.graceTicks = 0
			c.change(&answer)
			b.endsBothSides(t, portServer, answer, request, c.numbers...)
			b.framesHome()
		})
	}
}

// A connection that is ended without a packet at hand is over for both sides with the next packet
// of either. The client may begin anew at once.
func TestAnAbortedConnectionEndsOnBothSides(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		b.offer(nil, table.Pool{}, 1)
		request, answer := b.connected(v6)
		b.lb.flows.Range(func(r conntrack.Ref) bool { b.lb.flows.Abort(r, b.lb.flows.Tick()); return true })
		b.endsBothSides(t, portServer, answer, request, 5001, 5021)
		b.endsBothSides(t, portClient, request, answer, 1001, 1011)
		if n := b.drops()["no-conntrack-entry"]; n != 2 {
			t.Errorf("counted %v", b.drops())
		}
		again := request
		again.flags, again.seq, again.ack, again.payload = header.SYN, 900000, 0, 0
		b.one(portClient, again.build(t), portServer)
		b.framesHome()
	}
}

// isResetOf checks that f is the RST for the sender of p: by p's own ACK number,
// from where p went to, with the checksums that gopacket reckons.
func isResetOf(t *testing.T, f []byte, p packet) {
	t.Helper()
	pkt := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
	tcp, ok := pkt.TransportLayer().(*layers.TCP)
	if !ok {
		t.Fatalf("not TCP: %x", f)
	}
	eth, nl := pkt.LinkLayer(), pkt.NetworkLayer()
	if eth.LinkFlow().Src().String() != p.dstMAC.String() || eth.LinkFlow().Dst().String() != p.srcMAC.String() ||
		nl.NetworkFlow().Src().String() != p.dst.Addr().String() || nl.NetworkFlow().Dst().String() != p.src.Addr().String() ||
		uint16(tcp.SrcPort) != p.dst.Port() || uint16(tcp.DstPort) != p.src.Port() {
		t.Errorf("from %v %v:%d", eth.LinkFlow(), nl.NetworkFlow(), tcp.SrcPort)
	}
	if !tcp.RST || tcp.SYN || tcp.ACK || tcp.FIN || tcp.Seq != p.ack || len(tcp.Payload) != 0 {
		t.Errorf("flags or number are wrong: %+v, want the number %d", tcp, p.ack)
	}
	_ = tcp.SetNetworkLayerForChecksum(nl)
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, eth.(*layers.Ethernet), nl.(gopacket.SerializableLayer), tcp); err != nil {
		t.Fatal(err)
	}
	if want := buf.Bytes()[:len(f)]; !bytes.Equal(f, want) {
		t.Errorf("lengths or checksums:\n got %x\nwant %x", f, want)
	}
}

func TestFlowsOfAGoneEndpointAreDropped(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		b.offer(&table.Policy{OnRemoval: table.DropFlows}, table.Pool{}, 1)
		request, answer := b.connected(v6)
		b.offer(&table.Policy{OnRemoval: table.DropFlows}, table.Pool{}, 0)
		b.w.removed.graceTicks = 0
		b.one(portClient, request.build(t), -1)
		b.one(portServer, answer.build(t), -1)
		if b.drops()["endpoint-removed"] != 2 {
			t.Errorf("counted %v", b.drops())
		}
		// One that comes back has its flows again.
		b.offer(&table.Policy{OnRemoval: table.DropFlows}, table.Pool{}, 1)
		b.one(portClient, request.build(t), portServer)
		b.framesHome()
	}
}

func TestFlowsOfAGoneEndpointAreKept(t *testing.T) {
	for _, policy := range []*table.Policy{nil, {OnRemoval: table.Keep, MaxConnections: 9}} {
		b := newBench(t)
		b.offer(policy, table.Pool{}, 1)
		request, answer := b.connected(false)
		b.offer(policy, table.Pool{}, 0)
		b.w.removed.graceTicks = 0
		b.one(portClient, request.build(t), portServer)
		b.one(portServer, answer.build(t), portClient)
		b.framesHome()
	}
}

// The client's port is used again before it has heard of the end.
func TestASynOfAGoneEndpointsFlowChoosesAnew(t *testing.T) {
	b := newBench(t)
	policy := &table.Policy{OnRemoval: table.ResetFlows}
	b.offer(policy, table.Pool{}, 1)
	b.connected(false)
	pool := func(n int) table.Pool {
		p := table.Pool{}
		for range n {
			p.Endpoints = append(p.Endpoints, table.Endpoint{AddrPort: ap(narrow4, 8080)})
		}
		return p
	}
	b.offerPools(policy, pool(1), table.Pool{})
	b.w.removed.graceTicks = 0
	if got := b.chosen(request(false, header.ProtoTCP)); got != ap(narrow4, 8080) {
		t.Errorf("goes to %v", got)
	}
}

func TestAServiceThatIsGoneEndsItsFlowsAsItWanted(t *testing.T) {
	b := newBench(t)
	b.offer(&table.Policy{OnRemoval: table.ResetFlows}, table.Pool{}, 1)
	request, _ := b.connected(false)
	if _, err := b.lb.tables.Apply(nil, []string{"ns/web"}); err != nil {
		t.Fatal(err)
	}
	b.w.removed.graceTicks = 0
	b.give(portClient, request.build(t))
	out := b.round()
	isReset(t, out[portClient][0])
	isReset(t, out[portServer][0])
}

// An association ends for both sides: each gets an ABORT with the tag that it expects, its own, or
// the peer's and the T bit.
func TestAnAbortedAssociationEndsOnBothSides(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		b.serveSCTP(conntrack.ModeNAT)
		first := fromSCTPClient(v6, 0, sctpInit())
		there := first.there(b.one(portClient, first.frame(t), portServer))
		b.lb.flows.Range(func(r conntrack.Ref) bool { b.lb.flows.Abort(r, b.lb.flows.Tick()); return true })

		data := there
		data.src, data.dst, data.srcMAC, data.dstMAC = there.dst, there.src, macServer, macWeirB
		data.tag, data.chunks, data.ttl = sctpClientTag, sctpData(10), 64
		b.give(portServer, data.frame(t))
		out := b.round()
		refused := data
		refused.src, refused.dst, refused.srcMAC, refused.dstMAC = data.dst, data.src, macWeirB, macServer
		refused.chunks = sctpChunk(header.ChunkAbort, 1)
		told := first
		told.src, told.dst, told.srcMAC, told.dstMAC = first.dst, first.src, macWeir, macClient
		told.tag, told.chunks, told.ttl = sctpClientTag, sctpChunk(header.ChunkAbort, 0), 63
		if len(out[portServer]) != 1 || len(out[portClient]) != 1 {
			t.Fatalf("%d frames to the endpoint, %d to the client", len(out[portServer]), len(out[portClient]))
		}
		sameFrame(t, out[portServer][0], refused.frame(t))
		sameFrame(t, out[portClient][0], told.frame(t))
		if b.w.counts[counter.Aborts] != 2 {
			t.Errorf("%d ABORTs counted", b.w.counts[counter.Aborts])
		}
		b.framesHome()
	}
}
