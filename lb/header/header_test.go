package header

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

var (
	macA = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	macB = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

type spec struct {
	v6      bool
	proto   uint8
	payload int
	flags   uint8
	seq     uint32
	ack     uint32
}

func (s spec) build(t testing.TB) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: macA, DstMAC: macB, EthernetType: layers.EthernetTypeIPv4}
	ip4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocol(s.proto), Flags: layers.IPv4DontFragment,
		SrcIP: net.IP{192, 0, 2, 7}, DstIP: net.IP{198, 51, 100, 9}}
	ip6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocol(s.proto),
		SrcIP: net.ParseIP("2001:db8::7"), DstIP: net.ParseIP("2001:db8:1::9")}
	var l3 gopacket.SerializableLayer = ip4
	var nl gopacket.NetworkLayer = ip4
	if s.v6 {
		eth.EthernetType = layers.EthernetTypeIPv6
		l3, nl = ip6, ip6
	}
	var l4 gopacket.SerializableLayer
	switch s.proto {
	case ProtoTCP:
		tcp := &layers.TCP{SrcPort: 40000, DstPort: 80, Seq: s.seq, Ack: s.ack, Window: 1000,
			FIN: s.flags&FIN != 0, SYN: s.flags&SYN != 0, RST: s.flags&RST != 0, ACK: s.flags&ACK != 0}
		_ = tcp.SetNetworkLayerForChecksum(nl)
		l4 = tcp
	default:
		udp := &layers.UDP{SrcPort: 40000, DstPort: 53}
		_ = udp.SetNetworkLayerForChecksum(nl)
		l4 = udp
	}
	payload := make([]byte, s.payload)
	for i := range payload {
		payload[i] = byte(i)
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		eth, l3, l4, gopacket.Payload(payload))
	if err != nil {
		t.Fatal(err)
	}
	n := EthernetLen + IPv6Len + s.payload // without gopacket's padding to 60 bytes
	if !s.v6 {
		n = EthernetLen + IPv4Len + s.payload
	}
	if s.proto == ProtoTCP {
		n += TCPLen
	} else {
		n += UDPLen
	}
	return append([]byte(nil), buf.Bytes()[:n]...)
}

func mustParse(t *testing.T, f []byte) Packet {
	t.Helper()
	var p Packet
	if got := Parse(f, len(f), &p); got != OK {
		t.Fatalf("Parse = %v, want OK", got)
	}
	return p
}

func TestParseReadsOneGoodPacketOfEachKind(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{ProtoTCP, ProtoUDP} {
			f := spec{v6: v6, proto: proto, payload: 11, flags: SYN}.build(t)
			p := mustParse(t, f)
			if p.Proto != proto || p.TTL != 64 || p.Partial || int(p.Len) != len(f)-EthernetLen {
				t.Errorf("v6=%v proto=%d: %+v", v6, proto, p)
			}
			// Ethernet padding is not part of the packet.
			padded := append(bytes.Clone(f), make([]byte, 30)...)
			if q := mustParse(t, padded); q != p {
				t.Errorf("padding changed the packet: %+v, was %+v", q, p)
			}
		}
	}
}

func TestParseNamesWhatIsWrong(t *testing.T) {
	fix4 := func(f []byte) { // recompute the header checksum after a mutation
		ip := f[EthernetLen:]
		n := min(IPv4(ip).HeaderLen(), len(ip))
		ip[10], ip[11] = 0, 0
		binary.LittleEndian.PutUint16(ip[10:], Checksum(0, ip[:n]))
	}
	tests := []struct {
		name string
		v6   bool
		mut  func([]byte) []byte
		want Problem
	}{
		{"vlan tag", false, func(f []byte) []byte { f[12], f[13] = 0x81, 0; return f }, NotIP},
		{"arp", false, func(f []byte) []byte { f[12], f[13] = 0x08, 6; return f }, NotIP},
		{"runt", false, func(f []byte) []byte { return f[:10] }, NotIP},
		{"cut in the IPv4 header", false, func(f []byte) []byte { return f[:20] }, Truncated},
		{"cut in the payload", false, func(f []byte) []byte { return f[:len(f)-1] }, Truncated},
		{"wrong version", false, func(f []byte) []byte { f[14] = 0x55; fix4(f); return f }, BadIPHeader},
		{"header length below 20", false, func(f []byte) []byte { f[14] = 0x44; return f }, BadIPHeader},
		{"header checksum", false, func(f []byte) []byte { f[24] ^= 1; return f }, BadIPHeader},
		{"more fragments", false, func(f []byte) []byte { f[17], f[20] = 36, 0x20; fix4(f); return f }, TinyFragment},
		{"later fragment", false, func(f []byte) []byte { f[21] = 9; fix4(f); return f }, IsFragment},
		{"protocol", false, func(f []byte) []byte { f[23] = 47; fix4(f); return f }, NotTransport},
		{"loopback source", false, func(f []byte) []byte { f[26] = 127; fix4(f); return f }, Martian},
		{"multicast destination", false, func(f []byte) []byte { f[30] = 239; fix4(f); return f }, Martian},
		{"data offset below 20", false, func(f []byte) []byte { f[46] = 0x40; return f }, BadTransport},
		{"data offset past the end", false, func(f []byte) []byte { f[46] = 0xf0; return f }, BadTransport},
		{"v6 version", true, func(f []byte) []byte { f[14] = 0x40; return f }, BadIPHeader},
		{"v6 cut", true, func(f []byte) []byte { return f[:40] }, Truncated},
		{"v6 authentication header", true, func(f []byte) []byte { f[20] = 51; return f }, NotTransport},
		{"v6 hop-by-hop beyond the end", true, func(f []byte) []byte { f[20] = 0; return f }, BadExtension},
		{"v6 multicast source", true, func(f []byte) []byte { f[22] = 0xff; return f }, Martian},
		{"v6 unspecified source", true, func(f []byte) []byte { clear(f[22:38]); return f }, Martian},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := tt.mut(spec{v6: tt.v6, proto: ProtoTCP, payload: 3, flags: ACK}.build(t))
			var p Packet
			if got := Parse(f, len(f), &p); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestParseSeesPartialChecksums(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for proto, at := range map[uint8]int{ProtoTCP: 16, ProtoUDP: 6} {
			f := spec{v6: v6, proto: proto, payload: 100}.build(t)
			p := mustParse(t, f)
			sum := PseudoSum4
			if v6 {
				sum = PseudoSum6
			}
			binary.LittleEndian.PutUint16(f[int(p.L4)+at:], Fold(sum(f[EthernetLen:], proto, p.L4Len())))
			if q := mustParse(t, f); !q.Partial {
				t.Errorf("v6=%v proto=%d: partial checksum not seen", v6, proto)
			}
		}
	}
}

func TestSumAgreesWithTheObviousOne(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b := make([]byte, r.IntN(200))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if r.IntN(4) == 0 {
			for i := range b {
				b[i] = 0xff
			}
		}
		var slow uint32
		for i := 0; i < len(b); i += 2 {
			w := uint32(b[i])
			if i+1 < len(b) {
				w |= uint32(b[i+1]) << 8
			}
			slow += w
			slow = slow>>16 + slow&0xffff
		}
		if got := Fold(Sum(0, b)); got != uint16(slow) {
			t.Fatalf("%d bytes: %#x, want %#x", len(b), got, slow)
		}
	}
}

// checksumsHold verifies every checksum of a frame with gopacket's sums.
func checksumsHold(t *testing.T, f []byte) gopacket.Packet {
	t.Helper()
	pkt := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
	if e := pkt.ErrorLayer(); e != nil {
		t.Fatalf("decode: %v", e.Error())
	}
	buf := gopacket.NewSerializeBuffer()
	var ls []gopacket.SerializableLayer
	for _, l := range pkt.Layers() {
		switch l := l.(type) {
		case *layers.TCP:
			_ = l.SetNetworkLayerForChecksum(pkt.NetworkLayer())
		case *layers.UDP:
			_ = l.SetNetworkLayerForChecksum(pkt.NetworkLayer())
		case *layers.ICMPv6:
			_ = l.SetNetworkLayerForChecksum(pkt.NetworkLayer())
		}
		if s, ok := l.(gopacket.SerializableLayer); ok {
			ls = append(ls, s)
		}
	}
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(buf.Bytes(), f) { // gopacket pads to 60 bytes
		t.Errorf("frame differs from the one rebuilt:\n got %x\nwant %x", f, buf.Bytes())
	}
	return pkt
}

func TestResetAnswersAsRFC9293Says(t *testing.T) {
	tests := []struct {
		name     string
		s        spec
		seq, ack uint32
		hasAck   bool
	}{
		{"SYN", spec{proto: ProtoTCP, flags: SYN, seq: 100}, 0, 101, true},
		{"ACK with data", spec{proto: ProtoTCP, flags: ACK, seq: 5, ack: 777, payload: 9}, 777, 0, false},
		{"FIN without ACK", spec{proto: ProtoTCP, flags: FIN, seq: 5, payload: 9}, 0, 15, true},
		{"v6 SYN", spec{v6: true, proto: ProtoTCP, flags: SYN, seq: 100}, 0, 101, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := tt.s.build(t)
			p := mustParse(t, f)
			n := Reset(f, &p)
			pkt := checksumsHold(t, f[:n])
			tcp := pkt.TransportLayer().(*layers.TCP)
			if !tcp.RST || tcp.ACK != tt.hasAck || tcp.Seq != tt.seq || tcp.Ack != tt.ack || tcp.SrcPort != 80 || tcp.DstPort != 40000 {
				t.Errorf("got %+v", tcp)
			}
			if got := pkt.LinkLayer().LinkFlow().Src().Raw(); !bytes.Equal(got, macB) {
				t.Errorf("source MAC %x", got)
			}
		})
	}
}

func TestUnreachableQuotesThePacket(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, payload := range []int{0, 1, 400, 1400} {
			for _, e := range []Error{PortUnreachable, HostUnreachable, TimeExceeded, TooBig} {
				orig := spec{v6: v6, proto: ProtoUDP, payload: payload}.build(t)
				f := make([]byte, 2048)
				copy(f, orig)
				var p Packet
				if Parse(f[:len(orig)], len(orig), &p) != OK {
					t.Fatal("parse")
				}
				n := Unreachable(f, len(orig), &p, e, 1400)
				pkt := gopacket.NewPacket(f[:n], layers.LayerTypeEthernet, gopacket.Default)
				off := EthernetLen + IPv4Len
				if v6 {
					off = EthernetLen + IPv6Len
				}
				quote := f[off+ICMPLen : n]
				if !bytes.HasPrefix(orig[EthernetLen:], quote) || len(quote) < 28 {
					t.Errorf("v6=%v payload=%d: quote is not the packet's start", v6, payload)
				}
				if v6 {
					i := pkt.Layer(layers.LayerTypeICMPv6)
					if i == nil || n > EthernetLen+1280 {
						t.Fatalf("no ICMPv6 or too long: %d", n)
					}
					c := binary.LittleEndian.Uint16(f[off+2:])
					f[off+2], f[off+3] = 0, 0
					if want := Checksum(PseudoSum6(f[EthernetLen:], ProtoICMPv6, n-off), f[off:n]); c != want {
						t.Errorf("checksum %#x, want %#x", c, want)
					}
				} else {
					i := pkt.Layer(layers.LayerTypeICMPv4)
					if i == nil || n > EthernetLen+576 || Fold(Sum(0, f[off:n])) != 0xffff || Fold(Sum(0, f[EthernetLen:off])) != 0xffff {
						t.Fatalf("bad ICMP: %v", pkt)
					}
				}
			}
		}
	}
}
