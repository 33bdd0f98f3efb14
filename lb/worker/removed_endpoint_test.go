package worker

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

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

				b.w.removalGraceTicks = 0
				for _, side := range []int{first, portClient + portServer - first, first} {
					p := sides[side]
					isResetOf(t, b.one(side, p.build(t), side), p)
				}
				if b.drops()["endpoint-removed"] != 3 {
					t.Errorf("counted %v", b.drops())
				}
				rst := request
				rst.flags, rst.payload = header.RST, 0
				b.one(portClient, rst.build(t), -1)
				b.framesHome()
			})
		}
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
		b.w.removalGraceTicks = 0
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
		b.w.removalGraceTicks = 0
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
	b.w.removalGraceTicks = 0
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
	b.w.removalGraceTicks = 0
	isReset(t, b.one(portClient, request.build(t), portClient))
}
