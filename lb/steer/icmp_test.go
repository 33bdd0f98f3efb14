package steer

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"
)

// icmp4 and icmp6 make an ICMP message to front4 or front6, whatever it quotes.
func icmp4(t testing.TB, typ, code uint8, body []byte) []byte {
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolICMPv4, SrcIP: net.IP{198, 51, 100, 9}, DstIP: front4.Addr().AsSlice()}
	icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, code)}
	return icmpFrame(t, layers.EthernetTypeIPv4, ip, icmp, body)
}

func icmp6(t testing.TB, typ, code uint8, body []byte) []byte {
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolICMPv6, SrcIP: net.ParseIP("2001:db8:9::9"), DstIP: front6.Addr().AsSlice()}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, code)}
	must(t, icmp.SetNetworkLayerForChecksum(ip))
	return icmpFrame(t, layers.EthernetTypeIPv6, ip, icmp, append(make([]byte, 4), body...))
}

func icmpFrame(t testing.TB, typ layers.EthernetType, ip, icmp gopacket.SerializableLayer, body []byte) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: otherMAC, DstMAC: ownMAC, EthernetType: typ}, ip, icmp, gopacket.Payload(body)))
	return slices.Clone(buf.Bytes())
}

// quote is a packet that from has sent to somewhere, without its Ethernet header.
func quote(t testing.TB, proto layers.IPProtocol, from netip.AddrPort) []byte {
	var b []byte
	if from.Addr().Is4() {
		b = slices.Clone(packet4(t, proto, from)[atIP:])
		src, dst := slices.Clone(b[12:16]), slices.Clone(b[16:20])
		copy(b[12:], dst)
		copy(b[16:], src)
		b = b[:20+8]
	} else {
		b = slices.Clone(packet6(t, proto, from)[atIP:])
		src, dst := slices.Clone(b[8:24]), slices.Clone(b[24:40])
		copy(b[8:], dst)
		copy(b[24:], src)
		b = b[:40+8]
	}
	ports := b[len(b)-8:]
	ports[0], ports[1], ports[2], ports[3] = ports[2], ports[3], ports[0], ports[1]
	return b
}

// inTunnel is a packet in IP in IP, or in GUE, from an address of the node's.
func inTunnel(t testing.TB, outer6, gue bool, inner []byte) []byte {
	t.Helper()
	proto := layers.IPProtocolIPv4
	if inner[0]>>4 == 6 {
		proto = layers.IPProtocolIPv6
	}
	stack := []gopacket.SerializableLayer{gopacket.Payload(inner)}
	next := proto
	if gue {
		next = layers.IPProtocolUDP
		stack = []gopacket.SerializableLayer{&layers.UDP{SrcPort: 50000, DstPort: 6080}, gopacket.Payload(append([]byte{0, byte(proto), 0, 0}, inner...))}
	}
	if outer6 {
		stack = append([]gopacket.SerializableLayer{&layers.IPv6{Version: 6, HopLimit: 60, NextHeader: next, SrcIP: snat6.AsSlice(), DstIP: net.ParseIP("2001:db8:5::5")}}, stack...)
	} else {
		stack = append([]gopacket.SerializableLayer{&layers.IPv4{Version: 4, TTL: 60, Protocol: next, SrcIP: snat4.AsSlice(), DstIP: net.IP{10, 5, 5, 5}}}, stack...)
	}
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, stack...))
	return slices.Clone(buf.Bytes())
}

func tunnelCases(t testing.TB) []steerCase {
	const tcp, gre = layers.IPProtocolTCP, layers.IPProtocolGRE
	to4, to6 := packet4(t, tcp, front4)[atIP:], packet6(t, tcp, front6)[atIP:]
	to4 = to4[:binary.BigEndian.Uint16(to4[2:])] // without padding
	others := packet4(t, tcp, at(front4.Addr(), 9))[atIP:]
	var cases []steerCase
	for _, six := range []bool{false, true} {
		typ, code, icmp := uint8(3), uint8(4), icmp4
		otherError, otherCode := uint8(3), uint8(1)
		if six {
			typ, code, icmp = 2, 0, icmp6
			otherError, otherCode = 1, 3
		}
		for _, gue := range []bool{false, true} {
			not := PassOtherProtocol
			if gue {
				not = PassNoMatch // as any other UDP packet of the node
			}
			add := func(name string, packet []byte, want Verdict) {
				cases = append(cases, steerCase{fmt.Sprintf("outer6=%v gue=%v: %s", six, gue, name), packet, want})
			}
			in := func(inner []byte) []byte { return inTunnel(t, six, gue, inner) }
			add("too big, to a frontend", icmp(t, typ, code, in(to4)), Redirected)
			add("too big, to an IPv6 frontend", icmp(t, typ, code, in(to6)), Redirected)
			add("too big, to another port", icmp(t, typ, code, in(others)), not)
			add("unreachable, to a frontend", icmp(t, otherError, otherCode, in(to4)), not)
			add("another protocol inside", icmp(t, typ, code, in(packet4(t, gre, front4)[atIP:])), not)
			later := slices.Clone(to4)
			later[7] = 1
			add("a later fragment inside", icmp(t, typ, code, in(later)), not)
			broken := slices.Clone(to4)
			broken[0] = 0x44
			add("a broken packet inside", icmp(t, typ, code, in(broken)), not)
			for _, inner := range [][]byte{to4, to6} {
				ports := 20
				if inner[0]>>4 == 6 {
					ports = 40
				}
				whole := in(inner)
				head := len(whole) - len(inner) + ports
				if n := head + 4; six { // icmp4's are padded
					add("the ports are there", icmp(t, typ, code, whole[:n]), Redirected)
					add("the ports are cut", icmp(t, typ, code, whole[:n-1]), not)
				}
			}
			if gue {
				at := 20 + 8
				if six {
					at = 40 + 8
				}
				variant1 := in(to4)
				variant1[at] = 0x45
				add("another GUE variant", icmp(t, typ, code, variant1), not)
			}
		}
	}
	return cases
}

// tag puts VLAN tags in front of a packet's EtherType.
func tag(packet []byte, protocols ...uint16) []byte {
	out := slices.Clone(packet[:12])
	for i, p := range protocols {
		out = binary.BigEndian.AppendUint16(out, p)
		out = append(out, 0, byte(100+i))
	}
	return append(out, packet[12:]...)
}

// tagIDs puts 802.1Q tags with these control fields in front of a packet's EtherType.
func tagIDs(packet []byte, control ...uint16) []byte {
	out := slices.Clone(packet[:12])
	for _, c := range control {
		out = binary.BigEndian.AppendUint16(append(out, 0x81, 0), c)
	}
	return append(out, packet[12:]...)
}

type steerCase struct {
	name   string
	packet []byte
	want   Verdict
}

func icmpCases(t testing.TB) []steerCase {
	const tcp, udp, gre = layers.IPProtocolTCP, layers.IPProtocolUDP, layers.IPProtocolGRE
	other4, other6 := at(netip.MustParseAddr("192.0.2.99"), 30080), at(netip.MustParseAddr("2001:db8::99"), 443)
	options := slices.Insert(quote(t, tcp, front4), 20, 148, 4, 0, 0)
	options[0] = 0x46
	later := quote(t, udp, front4)
	later[7] = 1
	first := quote(t, udp, front4)
	first[6] = 0x20
	fragment6 := func(offset byte) []byte {
		b := quote(t, udp, front6)
		b[6] = unix.IPPROTO_FRAGMENT
		return slices.Insert(b, 40, unix.IPPROTO_UDP, 0, 0, offset, 0, 0, 0, 7)
	}
	cases := []steerCase{
		{"fragmentation needed about an answer", icmp4(t, 3, 4, quote(t, tcp, front4)), Redirected},
		{"port unreachable about an answer", icmp4(t, 3, 3, quote(t, udp, front4)), Redirected},
		{"time exceeded about an answer", icmp4(t, 11, 0, quote(t, tcp, front4)), Redirected},
		{"parameter problem about an answer", icmp4(t, 12, 0, quote(t, tcp, front4)), Redirected},
		{"unreachable about a translated packet", icmp4(t, 3, 1, quote(t, tcp, at(snat4, snatLo))), Redirected},
		{"unreachable about a packet of the node", icmp4(t, 3, 1, quote(t, tcp, at(snat4, snatLo-1))), PassNoMatch},
		{"unreachable about another frontend's port", icmp4(t, 3, 1, quote(t, tcp, other4)), PassNoMatch},
		{"unreachable about a protocol without ports", icmp4(t, 3, 1, quote(t, gre, front4)), PassOtherProtocol},
		{"redirect", icmp4(t, 5, 0, quote(t, tcp, front4)), PassOtherProtocol},
		{"source quench", icmp4(t, 4, 0, quote(t, tcp, front4)), PassOtherProtocol},
		{"a quote with IPv4 options", icmp4(t, 3, 4, options), Redirected},
		{"a quoted first fragment", icmp4(t, 3, 4, first), Redirected},
		{"a quoted later fragment", icmp4(t, 3, 4, later), PassFragment},
		{"echo request to a load balancer address", icmp4(t, 8, 0, nil), Redirected},
		{"echo reply", icmp4(t, 0, 0, nil), PassOtherProtocol},
		{"timestamp request", icmp4(t, 13, 0, nil), PassOtherProtocol},

		{"packet too big about an answer", icmp6(t, 2, 0, quote(t, tcp, front6)), Redirected},
		{"unreachable about an IPv6 answer", icmp6(t, 1, 4, quote(t, udp, front6)), Redirected},
		{"IPv6 time exceeded about an answer", icmp6(t, 3, 0, quote(t, tcp, front6)), Redirected},
		{"IPv6 parameter problem about an answer", icmp6(t, 4, 1, quote(t, tcp, front6)), Redirected},
		{"packet too big about a translated packet", icmp6(t, 2, 0, quote(t, tcp, at(snat6, snatHi))), Redirected},
		{"packet too big about a packet of the node", icmp6(t, 2, 0, quote(t, tcp, at(snat6, 22))), PassNoMatch},
		{"packet too big about another frontend's port", icmp6(t, 2, 0, quote(t, tcp, other6)), PassNoMatch},
		{"a quoted first IPv6 fragment", icmp6(t, 2, 0, fragment6(1)), Redirected},
		{"a quoted later IPv6 fragment", icmp6(t, 2, 0, fragment6(8)), PassFragment},
		{"IPv6 echo request to a load balancer address", icmp6(t, 128, 0, nil), Redirected},
		{"IPv6 echo reply", icmp6(t, 129, 0, nil), PassOtherProtocol},
		{"neighbor advertisement", icmp6(t, 136, 0, nil), PassOtherProtocol},
		{"IPv6 error type 0", icmp6(t, 0, 0, quote(t, tcp, front6)), PassOtherProtocol},
		{"IPv6 error type 5", icmp6(t, 5, 0, quote(t, tcp, front6)), PassOtherProtocol},
	}
	owned := icmp4(t, 8, 0, nil)
	copy(owned[atIP+16:], snat4.AsSlice())
	return append(cases, steerCase{"echo request to an address of the node", owned, PassOtherProtocol})
}

func TestICMPIsSteered(t *testing.T) {
	p := newTestProgram(t, false)
	for _, c := range append(icmpCases(t), tunnelCases(t)...) {
		if _, verdict := run(t, p, c.packet); verdict != c.want {
			t.Errorf("%s: %v, want %v", c.name, verdict, c.want)
		}
	}
	must(t, p.RemoveVIP(front4.Addr()))
	if _, verdict := run(t, p, icmp4(t, 8, 0, nil)); verdict != PassOtherProtocol {
		t.Errorf("echo request to an address that was removed: %v", verdict)
	}
}

// Whatever is missing at the end of a quote, its ports must be there.
func TestACutQuoteIsLeftToTheKernel(t *testing.T) {
	p := newTestProgram(t, false)
	for _, whole := range [][]byte{icmp4(t, 3, 4, quote(t, layers.IPProtocolTCP, front4)), icmp6(t, 2, 0, quote(t, layers.IPProtocolTCP, front6))} {
		ports := len(whole) - 4
		if whole[atEtherType] == 0x08 {
			ports = atIP + 20 + 8 + 20 + 4 // before gopacket's padding
		}
		for n := atIP + 1; n <= ports; n++ {
			want := PassMalformed
			if n == ports {
				want = Redirected
			}
			if _, verdict := run(t, p, whole[:n]); verdict != want {
				t.Errorf("%d of %d bytes: %v, want %v", n, len(whole), verdict, want)
			}
		}
	}
}

// A priority-tagged frame is of the untagged network; one with the number of a VLAN is
// of another, which is the kernel's.
func TestPriorityTaggedPacketsAreSteeredLikeOthers(t *testing.T) {
	p := newTestProgram(t, false)
	arp := slices.Clone(packet4(t, layers.IPProtocolTCP, front4))
	copy(arp[atEtherType:], []byte{0x08, 0x06})
	plain := []steerCase{
		{"TCP to an IPv4 frontend", packet4(t, layers.IPProtocolTCP, front4), Redirected},
		{"UDP to an IPv6 frontend", packet6(t, layers.IPProtocolUDP, front6), Redirected},
		{"an answer", packet4(t, layers.IPProtocolTCP, at(snat4, snatLo)), Redirected},
		{"SSH", packet4(t, layers.IPProtocolTCP, at(node4, 22)), PassNoMatch},
		{"packet too big", icmp6(t, 2, 0, quote(t, layers.IPProtocolTCP, front6)), Redirected},
		{"ARP", arp, PassOtherEtherType},
	}
	for _, c := range plain {
		for name, x := range map[string]struct {
			packet []byte
			want   Verdict
		}{
			"a priority tag":         {tagIDs(c.packet, 0xa000), c.want},
			"a tag of nothing":       {tagIDs(c.packet, 0), c.want},
			"802.1Q":                 {tag(c.packet, 0x8100), PassVLAN},
			"802.1ad":                {tag(c.packet, 0x88a8), PassVLAN},
			"QinQ":                   {tag(c.packet, 0x88a8, 0x8100), PassVLAN},
			"two priority tags":      {tagIDs(c.packet, 0xa000, 0xa000), PassVLAN},
			"a VLAN, then no VLAN":   {tagIDs(c.packet, 100, 0), PassVLAN},
			"no VLAN, then a VLAN":   {tagIDs(c.packet, 0, 100), PassVLAN},
			"three tags":             {tag(c.packet, 0x88a8, 0x8100, 0x8100), PassVLAN},
			"the last VLAN there is": {tagIDs(c.packet, 0xfff), PassVLAN},
		} {
			if _, verdict := run(t, p, x.packet); verdict != x.want {
				t.Errorf("%s in %s: %v, want %v", c.name, name, verdict, x.want)
			}
		}
	}
	for n := 15; n < 18; n++ {
		if _, verdict := run(t, p, tagIDs(plain[0].packet, 0)[:n]); verdict != PassMalformed {
			t.Errorf("cut to %d bytes: %v", n, verdict)
		}
	}
}

// modelICMP is the part of model for what follows an IP header to an address.
// modelTunnel says whether what is quoted is a tunnel's, of a packet to a frontend.
func modelTunnel(proto byte, b []byte) bool {
	if proto == 17 {
		if len(b) < 12 || binary.BigEndian.Uint16(b[2:]) != 6080 || b[8] != 0 {
			return false
		}
		proto, b = b[9], b[12:]
	}
	var to netip.Addr
	switch {
	case proto == 4 && len(b) >= 20 && b[0]>>4 == 4 && b[0]&15 >= 5 && binary.BigEndian.Uint16(b[6:])&0x1fff == 0:
		proto, to, b = b[9], netip.AddrFrom4([4]byte(b[16:20])), b[min(int(b[0]&15)*4, len(b)):]
	case proto == 41 && len(b) >= 40 && b[0]>>4 == 6:
		proto, to, b = b[6], netip.AddrFrom16([16]byte(b[24:40])), b[40:]
	default:
		return false
	}
	if proto != 6 && proto != 17 || len(b) < 4 {
		return false
	}
	a := at(to, binary.BigEndian.Uint16(b[2:]))
	return a == front4 || a == front6
}

func modelICMP(b []byte, to netip.Addr) Verdict {
	if len(b) < 8 {
		return PassMalformed
	}
	typ, code, b := b[0], b[1], b[8:]
	tooBig := to.Is4() && typ == 3 && code == 4 || to.Is6() && typ == 2
	if to.Is4() && typ == 8 || to.Is6() && typ == 128 {
		if to == front4.Addr() || to == front6.Addr() {
			return Redirected
		}
		return PassOtherProtocol
	}
	var proto byte
	var from netip.Addr
	switch {
	case to.Is4() && typ != 3 && typ != 11 && typ != 12, to.Is6() && (typ < 1 || typ > 4):
		return PassOtherProtocol
	case to.Is4():
		if len(b) < 20 || b[0]>>4 != 4 || b[0]&15 < 5 {
			return PassMalformed
		}
		if binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
			return PassFragment
		}
		proto, from = b[9], netip.AddrFrom4([4]byte(b[12:16]))
		b = b[min(int(b[0]&15)*4, len(b)):]
	default:
		if len(b) < 40 || b[0]>>4 != 6 {
			return PassMalformed
		}
		proto, from = b[6], netip.AddrFrom16([16]byte(b[8:24]))
		b = b[40:]
		if proto == 44 {
			if len(b) < 8 {
				return PassMalformed
			}
			if binary.BigEndian.Uint16(b[2:])&0xfff8 != 0 {
				return PassFragment
			}
			proto, b = b[0], b[8:]
		}
	}
	switch {
	case tooBig && modelTunnel(proto, b):
		return Redirected
	case proto != 6 && proto != 17:
		return PassOtherProtocol
	case len(b) < 4:
		return PassMalformed
	}
	return modelLookup(at(from, binary.BigEndian.Uint16(b)))
}
