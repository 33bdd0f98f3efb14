package packet

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// Protocol numbers (IANA).
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132
)

// TCP flags.
const (
	fin = 1 << iota
	syn
	rst
	psh
	ack
)

// packet is a frame in parts. Lengths and checksums are computed by gopacket;
// what a case wants to be wrong it spoils in the bytes.
type packet struct {
	srcMAC, dstMAC net.HardwareAddr
	tags           []uint16 // VLAN tags, the outer first
	src, dst       netip.AddrPort
	tos, ttl       uint8
	id             uint16 // IPv4 identification
	df             bool   // IPv4 don't fragment
	options        []layers.IPv4Option
	proto          uint8 // of the payload; 0: protoUDP
	// TCP
	seq, ack   uint32
	flags      uint8
	tcpOptions []layers.TCPOption
	noWindow   bool // of no bytes, as in a RST
	// noChecksum leaves UDP's checksum 0 (RFC 768).
	noChecksum bool
	// SCTP; payload are the chunks, badCRC the bits of the CRC that are wrong.
	tag, badCRC uint32
	payload     []byte
	// l4 is the transport header and payload as they are, when proto is
	// neither TCP, UDP nor SCTP.
	l4 []byte
}

func (p packet) six() bool { return p.dst.Addr().Is6() }

// bytes is the frame on the wire, without padding.
func (p packet) bytes(t testing.TB) []byte {
	t.Helper()
	l3, network := p.network()
	stack := append(p.link(), l3)
	switch p.proto {
	case protoTCP:
		tcp := &layers.TCP{SrcPort: layers.TCPPort(p.src.Port()), DstPort: layers.TCPPort(p.dst.Port()),
			Seq: p.seq, Ack: p.ack, Window: 29200, Options: p.tcpOptions,
			FIN: p.flags&fin != 0, SYN: p.flags&syn != 0, RST: p.flags&rst != 0, PSH: p.flags&psh != 0, ACK: p.flags&ack != 0}
		if p.flags&rst != 0 || p.noWindow {
			tcp.Window = 0
		}
		_ = tcp.SetNetworkLayerForChecksum(network)
		stack = append(stack, tcp, gopacket.Payload(p.payload))
	case 0, protoUDP:
		udp := &layers.UDP{SrcPort: layers.UDPPort(p.src.Port()), DstPort: layers.UDPPort(p.dst.Port())}
		_ = udp.SetNetworkLayerForChecksum(network)
		stack = append(stack, udp, gopacket.Payload(p.payload))
	case protoSCTP:
		stack = append(stack, gopacket.Payload(p.sctpBytes()))
	default:
		stack = append(stack, gopacket.Payload(p.l4))
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, stack...); err != nil {
		t.Fatalf("build %+v: %v", p, err)
	}
	out := buf.Bytes()
	out = out[:p.l3()+ipLength(out[p.l3():])] // gopacket pads to 60 bytes
	if p.proto == 0 || p.proto == protoUDP {
		at := p.l4Offset(out) + 6
		switch sum := out[at : at+2]; {
		case p.noChecksum:
			sum[0], sum[1] = 0, 0
		case sum[0]|sum[1] == 0:
			sum[0], sum[1] = 0xff, 0xff // RFC 768; gopacket leaves 0
		}
	}
	return out
}

// l3 is the offset of the IP header.
func (p packet) l3() int { return 14 + 4*len(p.tags) }

// l4Offset is the offset of what follows the IP header in the packet's bytes.
func (p packet) l4Offset(frame []byte) int {
	if p.six() {
		return p.l3() + 40
	}
	return p.l3() + int(frame[p.l3()]&15)*4
}

func ipLength(ip []byte) int {
	if ip[0]>>4 == 6 {
		return 40 + int(binary.BigEndian.Uint16(ip[4:]))
	}
	return int(binary.BigEndian.Uint16(ip[2:]))
}

// link is the Ethernet header and the tags.
func (p packet) link() []gopacket.SerializableLayer {
	kind := layers.EthernetTypeIPv4
	if p.six() {
		kind = layers.EthernetTypeIPv6
	}
	eth := &layers.Ethernet{SrcMAC: p.srcMAC, DstMAC: p.dstMAC, EthernetType: kind}
	stack := []gopacket.SerializableLayer{eth}
	for i, tag := range p.tags {
		next := kind
		if i+1 < len(p.tags) {
			next = layers.EthernetTypeDot1Q
		}
		stack = append(stack, &layers.Dot1Q{VLANIdentifier: tag & 0xfff, Priority: uint8(tag >> 13), Type: next})
	}
	switch len(p.tags) {
	case 0:
	case 1:
		eth.EthernetType = layers.EthernetTypeDot1Q
	default:
		eth.EthernetType = layers.EthernetTypeQinQ
	}
	return stack
}

func (p packet) network() (gopacket.SerializableLayer, gopacket.NetworkLayer) {
	proto := p.proto
	if proto == 0 {
		proto = protoUDP
	}
	if p.six() {
		ip := &layers.IPv6{Version: 6, TrafficClass: p.tos, HopLimit: p.ttl, NextHeader: layers.IPProtocol(proto),
			SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
		return ip, ip
	}
	ip := &layers.IPv4{Version: 4, TOS: p.tos, Id: p.id, TTL: p.ttl, Protocol: layers.IPProtocol(proto), Options: p.options,
		SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
	if p.df {
		ip.Flags = layers.IPv4DontFragment
	}
	return ip, ip
}

// ipOffset is where a frame's IP header begins.
func ipOffset(frame []byte) int {
	l3 := 14
	for t := binary.BigEndian.Uint16(frame[l3-2:]); t == 0x8100 || t == 0x88a8; t = binary.BigEndian.Uint16(frame[l3-2:]) {
		l3 += 4
	}
	return l3
}

// ports are source and destination port of a frame's transport header.
func ports(frame []byte) (src, dst uint16) {
	l3 := ipOffset(frame)
	at := l3 + 40
	if frame[l3]>>4 == 4 {
		at = l3 + int(frame[l3]&15)*4
	}
	if len(frame) < at+4 {
		return 0, 0
	}
	return binary.BigEndian.Uint16(frame[at:]), binary.BigEndian.Uint16(frame[at+2:])
}

// summary is a frame as gopacket reads it, for a failed comparison.
func summary(frame []byte) string {
	return gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default).String()
}
