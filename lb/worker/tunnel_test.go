package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/xsk"
)

var modeNames = map[conntrack.Mode]string{conntrack.ModeL2DSR: "l2dsr", conntrack.ModeIPIP: "ipip", conntrack.ModeGUE: "gue"}

// serveDirect publishes the Service in a mode without translation: TCP and UDP
// port 80 of both families' frontends, at one endpoint.
func (b *bench) serveDirect(mode conntrack.Mode, endpoint netip.Addr, policy *table.Policy) {
	b.t.Helper()
	s := table.Service{Name: "ns/web", Policy: policy, Pools: []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: ap(endpoint, 80)}}}}}
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		for _, a := range []netip.Addr{node4, node6} {
			if mode != conntrack.ModeL2DSR || a.Is4() == endpoint.Is4() {
				s.Frontends = append(s.Frontends, table.Frontend{AddrPort: ap(a, 80), Proto: proto, Mode: mode})
			}
		}
	}
	change, err := b.lb.tables.Apply([]table.Service{s}, nil)
	if err != nil || len(change.Errors) > 0 {
		b.t.Fatal(err, change.Errors)
	}
}

// tags puts VLAN tags behind the MAC addresses of a frame.
func tags(f []byte, vlans ...uint16) []byte {
	out := bytes.Clone(f[:12])
	for i, v := range vlans {
		t := uint16(header.EtherTypeVLAN)
		if i == 0 && len(vlans) > 1 {
			t = header.EtherTypeQinQ
		}
		out = binary.BigEndian.AppendUint16(out, t)
		out = binary.BigEndian.AppendUint16(out, v)
	}
	return append(out, f[12:]...)
}

// tunnelled is the frame to the endpoint, built independently: inner is the
// client's frame with its TTL already one less. srcPort is that of GUE.
func tunnelled(t *testing.T, mode conntrack.Mode, outer6 bool, inner []byte, srcPort uint16, flowLabel uint32, id uint16) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: macWeirB, DstMAC: macServer, EthernetType: layers.EthernetTypeIPv4}
	ip := inner[header.EthernetLen:]
	proto, tos, df := layers.IPProtocolIPv4, uint8(0), true
	if ip[0]>>4 == 6 {
		proto, tos = layers.IPProtocolIPv6, ip[0]<<4|ip[1]>>4
	} else {
		tos, df = ip[1], ip[6]&0x40 != 0
	}
	next := proto
	if mode == conntrack.ModeGUE {
		next = layers.IPProtocolUDP
	}
	ls := []gopacket.SerializableLayer{eth}
	var nl gopacket.NetworkLayer
	if outer6 {
		eth.EthernetType = layers.EthernetTypeIPv6
		o := &layers.IPv6{Version: 6, TrafficClass: tos, FlowLabel: flowLabel, HopLimit: 64, NextHeader: next, SrcIP: snat6.AsSlice(), DstIP: endpoint6.AsSlice()}
		ls, nl = append(ls, o), o
	} else {
		o := &layers.IPv4{Version: 4, TOS: tos, TTL: 64, Protocol: next, SrcIP: snat4.AsSlice(), DstIP: endpoint4.AsSlice()}
		if df {
			o.Flags = layers.IPv4DontFragment
		} else {
			o.Id = id
		}
		ls, nl = append(ls, o), o
	}
	if mode == conntrack.ModeGUE {
		udp := &layers.UDP{SrcPort: layers.UDPPort(srcPort), DstPort: 6080}
		_ = udp.SetNetworkLayerForChecksum(nl)
		ls = append(ls, udp, gopacket.Payload([]byte{0, byte(proto), 0, 0}))
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, append(ls, gopacket.Payload(ip))...); err != nil {
		t.Fatal(err)
	}
	f := bytes.Clone(buf.Bytes())
	switch {
	case mode == conntrack.ModeGUE && !outer6:
		f[14+20+6], f[14+20+7] = 0, 0
	case mode == conntrack.ModeGUE && f[14+40+6]|f[14+40+7] == 0:
		f[14+40+6], f[14+40+7] = 0xff, 0xff // RFC 768; gopacket leaves 0
	}
	return f
}

// variable is what of an outer header follows from the flow's hash.
func variable(f []byte, l3 int, mode conntrack.Mode, outer6 bool) (srcPort uint16, flowLabel uint32, id uint16) {
	at := l3 + header.IPv4Len
	if outer6 {
		flowLabel = binary.BigEndian.Uint32(f[l3:]) & 0xfffff
		at = l3 + header.IPv6Len
	} else {
		id = binary.BigEndian.Uint16(f[l3+4:])
	}
	if mode == conntrack.ModeGUE {
		srcPort = binary.BigEndian.Uint16(f[at:])
	}
	return srcPort, flowLabel, id
}

func TestPacketsReachTheEndpointAsTheClientSentThem(t *testing.T) {
	for mode, name := range modeNames {
		for _, inner6 := range []bool{false, true} {
			for _, outer6 := range []bool{false, true} {
				if mode == conntrack.ModeL2DSR && inner6 != outer6 {
					continue
				}
				for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
					for _, vlans := range [][]uint16{nil, {100}, {7, 4094}} {
						for _, shape := range []string{"plain", "partial", "may be fragmented", "padded", "buffers"} {
							t.Run(fmt.Sprintf("%s/inner6=%v/outer6=%v/proto=%d/tags=%d/%s", name, inner6, outer6, proto, len(vlans), shape), func(t *testing.T) {
								directCase(t, mode, inner6, outer6, proto, vlans, shape)
							})
						}
					}
				}
			}
		}
	}
}

func directCase(t *testing.T, mode conntrack.Mode, inner6, outer6 bool, proto uint8, vlans []uint16, shape string) {
	b := newBench(t)
	ep := endpoint4
	if outer6 {
		ep = endpoint6
	}
	b.serveDirect(mode, ep, nil)
	req := request(inner6, proto)
	req.partial, req.df, req.payload = shape == "partial" || shape == "buffers", shape != "may be fragmented", 33
	sent := req
	sent.ttl, sent.partial = 63, false
	sent.srcMAC, sent.dstMAC = macWeirB, macServer
	for range 2 { // the second packet finds the flow
		in := tags(req.build(t), vlans...)
		if shape == "padded" {
			in = append(in, make([]byte, 9)...)
		}
		if shape == "buffers" {
			b.giveBuffers(portClient, in, len(in)-31, 17)
		} else {
			b.give(portClient, in)
		}
		f := b.whole(portServer)
		want := sent.build(t)
		if mode != conntrack.ModeL2DSR {
			port, label, id := variable(f, header.EthernetLen, mode, outer6)
			if mode == conntrack.ModeGUE && port < 0xc000 {
				t.Errorf("source port %d", port)
			}
			want = tunnelled(t, mode, outer6, want, port, label, id)
		}
		if !bytes.HasPrefix(f, want) || len(f) > len(want)+len(in) {
			t.Fatalf("\n got %x\nwant %x", f, want)
		}
		if extra := len(f) - len(want); extra != 0 && shape != "padded" {
			t.Errorf("%d bytes behind the packet", extra)
		}
	}
	if n := b.lb.flows.Flows(); n != 1 {
		t.Errorf("%d flows", n)
	}
	b.framesHome()
}

// whole runs a round and returns the one packet that left, by a port and over
// all its buffers.
func (b *bench) whole(port int) []byte {
	b.t.Helper()
	var f []byte
	ends := 0
	b.w.beginRound()
	b.w.receive()
	b.w.releaseQueued()
	b.w.endRound()
	for i, q := range b.q {
		for _, d := range q.Out {
			if i != port {
				b.t.Fatalf("port %d sent a packet (drops %v)", i, b.drops())
			}
			part := bytes.Clone(b.w.area[d.Addr : d.Addr+uint64(d.Len)])
			if d.Options&xsk.WithMetadata != 0 {
				completeByMetadata(b.w.area[d.Addr-xsk.MetadataLen:d.Addr], part)
			}
			f = append(f, part...)
			if d.Options&xsk.Continued == 0 {
				ends++
			}
		}
		q.Out = q.Out[:0]
	}
	if ends != 1 {
		b.t.Fatalf("%d packets left, want 1 (drops %v)", ends, b.drops())
	}
	return f
}
