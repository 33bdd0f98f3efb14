package steer

import (
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	conntcp "github.com/weirlb/weir/conntrack/tcp"
)

// A connection that has just been established is forwarded in the kernel, which notes the
// numbers of each segment: a RST after any number of segments in a tick ends it.
func followsConnectionsThatHaveJustBegun(t *testing.T, r *flowRig) {
	for i := range r.hooks {
		h := &r.hooks[i]
		client := netip.AddrPortFrom(netip.MustParseAddr("198.18.0.1"), uint16(1000+i))
		tick := r.flows.Tick()
		ref, outcome := r.maker.Create(&conntrack.NewFlow{
			Client:   conntrack.MakeKey(client, netip.MustParseAddrPort("203.0.113.1:80"), unix.IPPROTO_TCP),
			Endpoint: netip.MustParseAddrPort("10.0.0.1:8080"), Mode: conntrack.ModeDNAT, Tick: tick, Seq: 999,
		})
		if outcome != conntrack.Created {
			t.Fatal(outcome)
		}
		defer r.forget(ref)
		r.flows.TrackTCP(ref.Other(), &conntcp.Segment{Flags: 0x12, Seq: 4999, Ack: 1000}, tick)
		r.flows.TrackTCP(ref, &conntcp.Segment{Flags: 0x10, Seq: 1000, Ack: 5000}, tick)
		r.flows.Settle(ref, r.word(r.nextHop(1, rigHop(1, 0)), 1500))
		r.flows.Settle(ref.Other(), r.word(r.nextHop(0, rigHop(0, 0)), 1500))
		for n := range uint32(5) {
			k := r.flows.Entry(ref).Tuple()
			if _, forwarded := r.run(t, h, tcpData(t, &k, 1000+10*n, 5000), 0); !forwarded {
				t.Errorf("%s: the kernel has not forwarded segment %d", h.name, n)
			}
		}
		r.flows.TrackTCP(ref, &conntcp.Segment{Flags: 0x04, Seq: 1050}, tick)
		if s := r.flows.Conn(ref).State(); s != flowstate.Close {
			t.Errorf("%s: after the client's RST the connection is %v", h.name, s)
		}
		k := r.flows.Entry(ref).Tuple()
		if _, forwarded := r.run(t, h, tcpData(t, &k, 1050, 5000), 0); forwarded {
			t.Errorf("%s: the kernel forwards a segment of a closed connection", h.name)
		}
	}
}

// tcpData is a segment of ten bytes.
func tcpData(t *testing.T, k *conntrack.Key, seq, ack uint32) []byte {
	t.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: k.Src().Addr().AsSlice(), DstIP: k.Dst().Addr().AsSlice()}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(k.Src().Port()), DstPort: layers.TCPPort(k.Dst().Port()), ACK: true, Seq: seq, Ack: ack, Window: 100}
	must(t, tcp.SetNetworkLayerForChecksum(ip))
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: otherMAC, DstMAC: ownMAC, EthernetType: layers.EthernetTypeIPv4}, ip, tcp, gopacket.Payload("ten bytes.")))
	return buf.Bytes()
}
