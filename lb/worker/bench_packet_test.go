package worker

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/lb/header"
)

// packet is a packet to be built, and to be compared with.
type packet struct {
	srcMAC, dstMAC net.HardwareAddr
	src, dst       netip.AddrPort
	proto          uint8
	ttl            uint8
	flags          uint8
	seq, ack       uint32
	payload        int
	data           []byte // the payload, if it matters
	df             bool
	partial        bool // only the pseudo header's sum in the checksum field
	noSum          bool // UDP without a checksum
	mss            uint16
}

func (p packet) build(t testing.TB) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: p.srcMAC, DstMAC: p.dstMAC, EthernetType: layers.EthernetTypeIPv4}
	if p.ttl == 0 {
		p.ttl = 64
	}
	if p.data != nil {
		p.payload = len(p.data)
	}
	var l3 gopacket.SerializableLayer
	var nl gopacket.NetworkLayer
	n := header.EthernetLen + p.payload
	if p.src.Addr().Is4() {
		ip := &layers.IPv4{Version: 4, TTL: p.ttl, Protocol: layers.IPProtocol(p.proto), SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
		if p.df {
			ip.Flags = layers.IPv4DontFragment
		}
		l3, nl = ip, ip
		n += header.IPv4Len
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip := &layers.IPv6{Version: 6, HopLimit: p.ttl, NextHeader: layers.IPProtocol(p.proto), SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
		l3, nl = ip, ip
		n += header.IPv6Len
	}
	payload := make([]byte, p.payload)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	copy(payload, p.data)
	var l4 gopacket.SerializableLayer
	at := 16
	if p.proto == header.ProtoTCP {
		tcp := &layers.TCP{SrcPort: layers.TCPPort(p.src.Port()), DstPort: layers.TCPPort(p.dst.Port()), Seq: p.seq, Ack: p.ack, Window: 512,
			SYN: p.flags&header.SYN != 0, ACK: p.flags&header.ACK != 0, FIN: p.flags&header.FIN != 0, RST: p.flags&header.RST != 0}
		if p.mss != 0 {
			tcp.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{byte(p.mss >> 8), byte(p.mss)}}}
			n += 4
		}
		_ = tcp.SetNetworkLayerForChecksum(nl)
		l4 = tcp
		n += header.TCPLen
	} else {
		udp := &layers.UDP{SrcPort: layers.UDPPort(p.src.Port()), DstPort: layers.UDPPort(p.dst.Port())}
		_ = udp.SetNetworkLayerForChecksum(nl)
		l4 = udp
		at = 6
		n += header.UDPLen
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, l3, l4, gopacket.Payload(payload))
	if err != nil {
		t.Fatal(err)
	}
	f := bytes.Clone(buf.Bytes()[:n])
	var parsed header.Packet
	header.Parse(f, len(f), &parsed)
	field := f[int(parsed.L4)+at:]
	switch {
	case p.noSum:
		field[0], field[1] = 0, 0
	case p.proto != header.ProtoTCP && field[0]|field[1] == 0:
		field[0], field[1] = 0xff, 0xff // RFC 768; gopacket leaves 0
	case p.partial:
		sum := header.PseudoSum4
		if parsed.Family == 6 {
			sum = header.PseudoSum6
		}
		c := header.Fold(sum(f[header.EthernetLen:], p.proto, parsed.L4Len()))
		field[0], field[1] = byte(c), byte(c>>8)
	}
	return f
}

func ap(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// request and answer are the packets of one connection of each kind.
func request(v6 bool, proto uint8) packet {
	p := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 40000), dst: ap(node4, 80), proto: proto, payload: 33, df: true}
	if v6 {
		p.src, p.dst = ap(client6, 40000), ap(node6, 80)
	}
	if proto == header.ProtoTCP {
		p.flags, p.seq, p.payload = header.SYN, 1000, 0
	}
	return p
}

var onceFrame []byte

// buildOnce is build of a frame that is made once and used again.
func (p packet) buildOnce(t testing.TB) []byte {
	if onceFrame == nil {
		onceFrame = p.build(t)
	}
	return onceFrame
}
