package worker

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/table"
)

// replaced is a bench with a connection to an endpoint that the Service has replaced by
// narrow4, beyond the grace. It returns the client's next packet.
func replaced(t *testing.T, removal table.Removal) (*bench, packet) {
	b := newBench(t)
	policy := &table.Policy{OnRemoval: removal}
	b.offer(policy, table.Pool{}, 1)
	request, _ := b.connected(false)
	b.offerPools(policy, table.Pool{Endpoints: []table.Endpoint{{AddrPort: ap(narrow4, 8080)}}}, table.Pool{})
	b.w.removed.graceTicks = 0
	return b, request
}

// after sends a packet in, ticks after the round before and returns what left, by port.
func (b *bench) after(ticks uint32, p packet) [3][][]byte {
	b.t.Helper()
	tick := b.w.tick
	b.give(portClient, p.build(b.t))
	b.w.beginRound()
	b.w.tick = tick + ticks
	return b.roundAtTheSameTime()
}

// challenged returns the acknowledgment number of the challenge ACK that is all that
// left, for the sender of p.
func (b *bench) challenged(out [3][][]byte, p packet) uint32 {
	b.t.Helper()
	if len(out[portClient]) != 1 || len(out[portServer]) != 0 {
		b.t.Fatalf("%d frames to the client, %d to an endpoint; drops %v", len(out[portClient]), len(out[portServer]), b.drops())
	}
	pkt := gopacket.NewPacket(out[portClient][0], layers.LayerTypeEthernet, gopacket.Default)
	tcp, ok := pkt.TransportLayer().(*layers.TCP)
	if !ok || !tcp.ACK || tcp.SYN || tcp.RST || tcp.FIN || uint16(tcp.DstPort) != p.src.Port() || uint16(tcp.SrcPort) != p.dst.Port() {
		b.t.Fatalf("no challenge ACK: %v", pkt)
	}
	return tcp.Ack
}

// sentToSource returns where the one frame that left went.
func (b *bench) sentTo(out [3][][]byte) netip.Addr {
	b.t.Helper()
	if len(out[portServer]) != 1 || len(out[portClient]) != 0 {
		b.t.Fatalf("%d frames to an endpoint, %d to the client; drops %v", len(out[portServer]), len(out[portClient]), b.drops())
	}
	return netip.AddrFrom4([4]byte(out[portServer][0][header.EthernetLen+16:]))
}

// A client uses its port again after its connection's endpoint has gone.
func TestASynOfAGoneEndpointsFlowGetsAnotherEndpoint(t *testing.T) {
	for _, removal := range []table.Removal{table.ResetFlows, table.DropFlows} {
		t.Run(removal.String(), func(t *testing.T) {
			b, _ := replaced(t, removal)
			if got := b.sentTo(b.after(0, request(false, header.ProtoTCP))); got != narrow4 {
				t.Errorf("goes to %v", got)
			}
			b.framesHome()
		})
	}
	t.Run("keep", func(t *testing.T) {
		b, _ := replaced(t, table.Keep)
		syn := request(false, header.ProtoTCP)
		rst := syn
		rst.flags, rst.seq = header.RST, b.challenged(b.after(0, syn), syn)
		if out := b.after(1, rst); len(out[portServer])+len(out[portClient]) != 0 {
			t.Errorf("the answer to the challenge left: %v", out)
		}
		if got := b.sentTo(b.after(1, syn)); got != narrow4 {
			t.Errorf("goes to %v", got)
		}
		b.framesHome()
	})
	t.Run("keep, and the client says nothing", func(t *testing.T) {
		b, _ := replaced(t, table.Keep)
		syn := request(false, header.ProtoTCP)
		b.challenged(b.after(2, syn), syn)
		b.challenged(b.after(secondTicks, syn), syn)
		if got := b.sentTo(b.after(2*secondTicks, syn)); got != narrow4 {
			t.Errorf("goes to %v", got)
		}
	})
	t.Run("keep, and the endpoint never answered", func(t *testing.T) {
		b := newBench(t)
		b.offer(nil, table.Pool{}, 1)
		syn := request(false, header.ProtoTCP)
		b.after(0, syn)
		b.offerPools(nil, table.Pool{Endpoints: []table.Endpoint{{AddrPort: ap(narrow4, 8080)}}}, table.Pool{})
		b.w.removed.graceTicks = 0
		if got := b.sentTo(b.after(secondTicks, syn)); got != narrow4 {
			t.Errorf("goes to %v", got)
		}
	})
}

// Nobody who only knows the addresses and ports ends a connection that is kept.
func TestForgedPacketsDoNotEndAKeptConnection(t *testing.T) {
	b, request := replaced(t, table.Keep)
	for i := range 5 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			syn, rst := request, request
			syn.flags, syn.payload, syn.seq, syn.ack = header.SYN, 0, uint32(i)<<28, 0
			cookie := b.challenged(b.after(secondTicks, syn), syn)
			rst.flags, rst.payload, rst.seq = header.RST, 0, cookie+1
			b.after(1, rst)
			b.challenged(b.after(1, syn), syn)
			// The client answers the challenge as an established connection does.
			request.seq += 1000
			if got := b.sentTo(b.after(1, request)); got != endpoint4 {
				t.Errorf("the connection goes to %v", got)
			}
			b.challenged(b.after(secondTicks+secondTicks/2, syn), syn)
			if got := b.sentTo(b.after(1, request)); got != endpoint4 {
				t.Errorf("the connection goes to %v", got)
			}
		})
	}
	if s := b.lb.flows.Stats(); s.Created != 1 {
		t.Errorf("%d connections made", s.Created)
	}
}

// While a flood uses up the rate of answers no client is challenged, and so none is
// taken to be gone because it says nothing.
func TestSilenceCountsFromAChallengeThatWasSent(t *testing.T) {
	b, request := replaced(t, table.Keep)
	syn := request
	syn.flags, syn.payload, syn.ack = header.SYN, 0, 0
	answers := b.w.resets
	b.w.resets = ratelimit.New(0, 0, 0)
	for range 3 {
		if out := b.after(2*secondTicks, syn); len(out[portServer])+len(out[portClient]) != 0 {
			t.Fatalf("%d frames to an endpoint, %d to the client", len(out[portServer]), len(out[portClient]))
		}
	}
	b.w.resets = answers
	b.challenged(b.after(2*secondTicks, syn), syn)
	if got := b.sentTo(b.after(1, request)); got != endpoint4 {
		t.Errorf("the connection goes to %v", got)
	}
	b.challenged(b.after(1, syn), syn)
	if got := b.sentTo(b.after(2*secondTicks, syn)); got != narrow4 {
		t.Errorf("after a challenge the SYN goes to %v", got)
	}
}

// SCTP has no challenge. Heartbeats tell that an association is alive.
func TestAnInitOfAGoneEndpointsFlowGetsAnotherEndpoint(t *testing.T) {
	for _, removal := range []table.Removal{table.Keep, table.ResetFlows, table.DropFlows} {
		t.Run(removal.String(), func(t *testing.T) {
			b := newBench(t)
			policy := &table.Policy{OnRemoval: removal}
			b.apply(nil, servicePort("ns/a", policy, nodeB, endpoint4))
			a := b.sctpAssociate(nodeB)
			b.apply(nil, servicePort("ns/a", policy, nodeB, narrow4))
			b.w.removed.graceTicks = 0
			send := func(ticks uint32, p sctpPacket) [3][][]byte {
				tick := b.w.tick
				b.give(portClient, p.frame(t))
				b.w.beginRound()
				b.w.tick = tick + ticks
				return b.roundAtTheSameTime()
			}
			if removal == table.Keep {
				if out := send(30*secondTicks, a.init); len(out[portServer])+len(out[portClient]) != 0 {
					t.Errorf("an INIT within the time of a heartbeat: %v", out)
				}
				if got := b.sentTo(send(1, a.data)); got != endpoint4 {
					t.Errorf("the association goes to %v", got)
				}
				b.w.tick += 41 * secondTicks
			}
			if got := b.sentTo(send(1, a.init)); got != narrow4 {
				t.Errorf("goes to %v", got)
			}
		})
	}
}

// association is a client's INIT, and DATA of the association that it began.
type association struct{ init, data sctpPacket }

// sctpAssociate sets an association up with the frontend at addr.
func (b *bench) sctpAssociate(addr netip.Addr) association {
	b.t.Helper()
	p := func(tag uint32, chunks []byte) sctpPacket {
		out := fromSCTPClient(false, tag, chunks)
		out.packet = out.to(addr)
		return out
	}
	a := association{p(0, sctpInit()), p(sctpEndpointTag, sctpData(8))}
	f := b.one(portClient, a.init.frame(b.t), portServer)
	var sent header.Packet
	header.Parse(f, len(f), &sent)
	answer := func(tag uint32, chunks []byte) []byte {
		out := sctpPacket{tag: tag, chunks: chunks, packet: packet{srcMAC: macServer, dstMAC: macWeirB, ttl: 64,
			src: ap(endpoint4, 8080), dst: ap(snat4, uint16(f[sent.L4])<<8|uint16(f[sent.L4+1]))}}
		return out.frame(b.t)
	}
	initAck := []byte{0xe0, 0xff, 0xee, 2, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1}
	b.one(portServer, answer(sctpClientTag, sctpChunk(2, 0, initAck...)), portClient)
	b.one(portClient, p(sctpEndpointTag, sctpChunk(10, 0, 1, 2, 3, 4)).frame(b.t), portServer)
	b.one(portServer, answer(sctpClientTag, sctpChunk(11, 0)), portClient)
	k := conntrack.MakeKey(a.init.src, a.init.dst, header.ProtoSCTP)
	if s := b.lb.flows.Conn(b.w.conntrack.Lookup(b.lb.flows.Hash(&k), &k)).State(); s != flowstate.SCTPEstablished {
		b.t.Fatalf("the association is %v", s)
	}
	return a
}
