package steer

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

var (
	ownMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	otherMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}

	front4 = netip.MustParseAddrPort("192.0.2.1:30080")
	front6 = netip.MustParseAddrPort("[2001:db8::1]:443")
	snat4  = netip.MustParseAddr("192.0.2.7")
	snat6  = netip.MustParseAddr("2001:db8::7")
	// vip4 and vip6 have frontends at no time, but might.
	vip4 = netip.MustParseAddr("203.0.113.1")
	vip6 = netip.MustParseAddr("2001:db8:f::1")
)

const (
	snatLo, snatHi = 61000, 65535
	// The kernel's test runs come in on the loopback interface, queue 0, of the
	// calling thread's namespace.
	loopback = 1
)

// newTestProgram loads a program for test runs, with two frontends (TCP and
// UDP), two SNAT addresses and a socket.
func newTestProgram(t testing.TB, all bool) *Program {
	t.Helper()
	w := newWire(t, netlab.LinkConfig{})
	p := closed(t, load(t, Config{}))
	must(t, p.interfaces.set(loopback, 0, ownMAC, flags(all, nil)))
	must(t, p.SetSocket(0, 0, w.openSocket(0).FD()))
	for _, f := range []netip.AddrPort{front4, front6} {
		must(t, p.AddFrontend(f, unix.IPPROTO_TCP, 0))
		must(t, p.AddFrontend(f, unix.IPPROTO_UDP, 0))
	}
	must(t, p.SetSNAT(snat4, snatLo, snatHi))
	must(t, p.SetSNAT(snat6, snatLo, snatHi))
	for _, a := range []netip.Addr{front4.Addr(), front6.Addr(), vip4, vip6} {
		must(t, p.AddVIP(a))
	}
	return p
}

// run gives a packet to the program and returns its action and what it counted.
func run(t interface{ Fatalf(string, ...any) }, p *Program, packet []byte) (action uint32, verdict Verdict) {
	before, err := p.counters.slot(0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	out := make([]byte, len(packet)+64)
	action, err = steering(t, p).Run(&ebpf.RunOptions{Data: packet, DataOut: out})
	if err != nil {
		t.Fatalf("test run of %d bytes: %v", len(packet), err)
	}
	after, err := p.counters.slot(0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	verdict = Verdicts
	for v := range Verdicts {
		switch after[v] - before[v] {
		case 0:
		case 1:
			if verdict != Verdicts {
				t.Fatalf("counted as %v and as %v", verdict, v)
			}
			verdict = v
		default:
			t.Fatalf("counted %d times as %v", after[v]-before[v], v)
		}
	}
	if string(out[:len(packet)]) != string(packet) {
		t.Fatalf("the program changed the packet")
	}
	return action, verdict
}

// packet4 and packet6 make the good packet that tests mutate.
func packet4(t testing.TB, proto layers.IPProtocol, to netip.AddrPort, options ...layers.IPv4Option) []byte {
	ip := &layers.IPv4{
		Version: 4, TTL: 64, Protocol: proto, Options: options,
		SrcIP: net.IP{198, 51, 100, 9}, DstIP: to.Addr().AsSlice(),
	}
	return serialize(t, layers.EthernetTypeIPv4, ip, ip, proto, to)
}

func packet6(t testing.TB, proto layers.IPProtocol, to netip.AddrPort) []byte {
	ip := &layers.IPv6{
		Version: 6, HopLimit: 64, NextHeader: proto,
		SrcIP: net.ParseIP("2001:db8:9::9"), DstIP: to.Addr().AsSlice(),
	}
	return serialize(t, layers.EthernetTypeIPv6, ip, ip, proto, to)
}

func serialize(t testing.TB, typ layers.EthernetType, ip gopacket.SerializableLayer, network gopacket.NetworkLayer, proto layers.IPProtocol, to netip.AddrPort) []byte {
	t.Helper()
	var l4 gopacket.SerializableLayer = gopacket.Payload("an ICMP or other message")
	switch proto {
	case layers.IPProtocolTCP:
		tcp := &layers.TCP{SrcPort: 40000, DstPort: layers.TCPPort(to.Port()), SYN: true, Window: 65535}
		must(t, tcp.SetNetworkLayerForChecksum(network))
		l4 = tcp
	case layers.IPProtocolUDP:
		udp := &layers.UDP{SrcPort: 40000, DstPort: layers.UDPPort(to.Port())}
		must(t, udp.SetNetworkLayerForChecksum(network))
		l4 = udp
	case layers.IPProtocolSCTP:
		l4 = &layers.SCTP{SrcPort: 40000, DstPort: layers.SCTPPort(to.Port())}
	}
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: otherMAC, DstMAC: ownMAC, EthernetType: typ}, ip, l4))
	return buf.Bytes()
}

// Offsets into the good packets.
const (
	atEtherType = 12
	atIP        = 14
	atFragment  = atIP + 6
	atNext6     = atIP + 6
	atTCP4      = atIP + 20
)

func at(addr netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }

func TestPacketsAreSteered(t *testing.T) {
	p := newTestProgram(t, false)
	tcp4 := packet4(t, layers.IPProtocolTCP, front4)
	tcp6 := packet6(t, layers.IPProtocolTCP, front6)
	change := func(good []byte, f func(b []byte) []byte) []byte { return f(append([]byte(nil), good...)) }
	set := func(good []byte, offset int, v ...byte) []byte {
		return change(good, func(b []byte) []byte { copy(b[offset:], v); return b })
	}
	other4 := netip.MustParseAddr("192.0.2.99")
	for _, c := range []struct {
		name   string
		packet []byte
		want   Verdict
	}{
		{"TCP to an IPv4 frontend", tcp4, Redirected},
		{"UDP to an IPv4 frontend", packet4(t, layers.IPProtocolUDP, front4), Redirected},
		{"TCP to an IPv6 frontend", tcp6, Redirected},
		{"UDP to an IPv6 frontend", packet6(t, layers.IPProtocolUDP, front6), Redirected},
		{"IPv4 with options", packet4(t, layers.IPProtocolTCP, front4, layers.IPv4Option{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}), Redirected},

		{"first SNAT port", packet4(t, layers.IPProtocolTCP, at(snat4, snatLo)), Redirected},
		{"last SNAT port", packet6(t, layers.IPProtocolUDP, at(snat6, snatHi)), Redirected},
		{"port below the SNAT range", packet4(t, layers.IPProtocolTCP, at(snat4, snatLo-1)), PassNoMatch},
		{"SSH to an SNAT address", packet6(t, layers.IPProtocolTCP, at(snat6, 22)), PassNoMatch},

		{"SSH to a frontend's address", packet4(t, layers.IPProtocolTCP, at(front4.Addr(), 22)), PassNoMatch},
		{"a frontend's port on another address", packet4(t, layers.IPProtocolTCP, at(other4, 30080)), PassNoMatch},
		{"an IPv6 frontend's port on another address", packet6(t, layers.IPProtocolTCP, at(peer6, 443)), PassNoMatch},
		{"SCTP to a port that is a TCP frontend's", packet4(t, layers.IPProtocolSCTP, front4), PassNoMatch},
		{"SCTP to an SNAT port", packet4(t, layers.IPProtocolSCTP, at(snat4, snatLo)), Redirected},
		{"GRE to a frontend's address", packet4(t, layers.IPProtocolGRE, front4), PassOtherProtocol},
		{"SCTP header cut short", packet4(t, layers.IPProtocolSCTP, at(snat4, snatLo))[:atTCP4+11], PassMalformed},
		{"ping", packet4(t, layers.IPProtocolICMPv4, front4), PassOtherProtocol},
		{"neighbor solicitation", set(packet6(t, layers.IPProtocolICMPv6, front6), atIP+40, 135), PassOtherProtocol},

		{"another host's address", set(tcp4, 0, otherMAC...), PassOtherMAC},
		{"an address that differs in the last byte", set(tcp4, 5, 9), PassOtherMAC},
		{"broadcast", set(tcp4, 0, 255, 255, 255, 255, 255, 255), PassOtherMAC},
		{"ARP to the own address", set(tcp4, atEtherType, 0x08, 0x06), PassOtherEtherType},

		{"DF is no fragment", set(tcp4, atFragment, 0x40, 0), Redirected},

		{"IPv4 with version 6", set(tcp4, atIP, 0x65), PassMalformed},
		{"IPv4 header length 16", set(tcp4, atIP, 0x44), PassMalformed},
		{"IPv4 header longer than the packet", set(tcp4, atIP, 0x4f), PassMalformed},
		{"IPv6 with version 4", set(tcp6, atIP, 0x40), PassMalformed},
		{"Ethernet only", tcp4[:14], PassMalformed},
		{"IPv4 header cut short", tcp4[:atTCP4-1], PassMalformed},
		{"TCP header cut short", tcp4[:atTCP4+19], PassMalformed},
		{"TCP header in full", tcp4[:atTCP4+20], Redirected},
		{"UDP header cut short", packet4(t, layers.IPProtocolUDP, front4)[:atTCP4+7], PassMalformed},
		{"IPv6 header cut short", tcp6[:atIP+39], PassMalformed},
	} {
		// Not a subtest: that would run on a thread of another namespace.
		wantAction := uint32(xdpPass)
		if c.want == Redirected {
			wantAction = xdpRedirect
		}
		if action, verdict := run(t, p, c.packet); verdict != c.want || action != wantAction {
			t.Errorf("%s: %v, action %d; want %v, %d", c.name, verdict, action, c.want, wantAction)
		}
	}
}

const (
	xdpPass     = 2
	xdpRedirect = 4
)

func TestHostVethTakesAllButNeighborDiscovery(t *testing.T) {
	p := newTestProgram(t, true)
	ssh := packet4(t, layers.IPProtocolTCP, at(node4, 22))
	fragment := append([]byte(nil), ssh...)
	fragment[atFragment] = 0x20
	arp := append([]byte(nil), ssh...)
	copy(arp[atEtherType:], []byte{0x08, 0x06})
	icmp6 := func(typ byte) []byte {
		b := packet6(t, layers.IPProtocolICMPv6, front6)
		b[atIP+40] = typ
		return b
	}
	multicast := icmp6(1)
	copy(multicast, []byte{0x33, 0x33, 0, 0, 0, 1})
	for _, c := range []struct {
		name   string
		packet []byte
		want   Verdict
	}{
		{"TCP to anywhere", ssh, Redirected},
		{"fragment", fragment, Redirected},
		{"ICMP", packet4(t, layers.IPProtocolICMPv4, at(peer4, 0)), Redirected},
		{"ICMPv6 packet too big", icmp6(2), Redirected},
		{"UDP over IPv6", packet6(t, layers.IPProtocolUDP, at(peer6, 1)), Redirected},
		{"ARP", arp, PassOtherEtherType},
		{"router solicitation", icmp6(133), PassOtherProtocol},
		{"neighbor solicitation", icmp6(135), PassOtherProtocol},
		{"redirect", icmp6(137), PassOtherProtocol},
		{"node information", icmp6(139), Redirected},
		{"multicast", multicast, PassOtherMAC},
	} {
		if _, verdict := run(t, p, c.packet); verdict != c.want {
			t.Errorf("%s: %v, want %v", c.name, verdict, c.want)
		}
	}
}

// Where Weir is attached to VLANs of an interface, those alone are steered, each
// by its own address, and so is what is untagged only where that is attached.
func TestVLANsThatAreAttachedAreSteered(t *testing.T) {
	p := newTestProgram(t, false)
	vlanMAC := net.HardwareAddr{2, 0, 0, 0, 0, 100}
	attach := func(vlans map[VLAN]net.HardwareAddr) {
		must(t, p.interfaces.setVLANs(loopback, 0, map[VLAN]net.HardwareAddr{0: nil, 0x8100<<16 | 100: nil, 0x8100<<16 | 101: nil, 0x88a8<<16 | 100: nil}, vlans))
		must(t, p.interfaces.set(loopback, 0, ownMAC, flags(false, vlans)))
	}
	plain := packet4(t, layers.IPProtocolTCP, front4)
	six := packet6(t, layers.IPProtocolUDP, front6)
	to := func(mac net.HardwareAddr, b []byte) []byte { return append(slices.Clone(mac), b[6:]...) }
	priority := tagIDs(plain, 0xe000) // priority 7, no VLAN
	const c100, c101, s100 = 0x8100<<16 | 100, 0x8100<<16 | 101, 0x88a8<<16 | 100
	type macs = map[VLAN]net.HardwareAddr
	for _, c := range []struct {
		name   string
		vlans  macs
		packet []byte
		want   Verdict
	}{
		{"the VLAN", macs{c100: vlanMAC}, to(vlanMAC, tag(plain, 0x8100)), Redirected},
		{"the VLAN, IPv6", macs{c100: vlanMAC}, to(vlanMAC, tag(six, 0x8100)), Redirected},
		{"802.1ad", macs{s100: vlanMAC}, to(vlanMAC, tag(plain, 0x88a8)), Redirected},
		{"802.1ad's VLAN of the same number", macs{c100: vlanMAC}, to(vlanMAC, tag(plain, 0x88a8)), PassVLAN},
		{"the parent's address in the VLAN", macs{c100: vlanMAC}, tag(plain, 0x8100), PassOtherMAC},
		{"another VLAN", macs{c101: vlanMAC}, to(vlanMAC, tag(plain, 0x8100)), PassVLAN},
		{"untagged", macs{c100: vlanMAC}, plain, PassVLAN},
		{"untagged, attached too", macs{c100: vlanMAC, 0: ownMAC}, plain, Redirected},
		{"a priority tag counts as untagged", macs{0: ownMAC}, priority, Redirected},
		{"a VLAN in the VLAN", macs{c100: vlanMAC}, to(vlanMAC, tag(plain, 0x8100, 0x8100)), PassVLAN},
		{"a VLAN, and none is attached", nil, tag(plain, 0x8100), PassVLAN},
		{"a VLAN of 802.1ad, and none is attached", nil, tag(plain, 0x88a8), PassVLAN},
		{"a VLAN behind a priority tag, and none is attached", nil, tagIDs(plain, 0, 100), PassVLAN},
		{"a priority tag, and no VLAN is attached", nil, priority, Redirected},
	} {
		attach(c.vlans)
		if _, verdict := run(t, p, c.packet); verdict != c.want {
			t.Errorf("%s: %v, want %v", c.name, verdict, c.want)
		}
	}
}

func TestAnUnknownInterfacePassesEverything(t *testing.T) {
	p := newTestProgram(t, false)
	must(t, p.maps.steer.Interfaces.Delete(uint32(loopback)))
	if action, verdict := run(t, p, packet4(t, layers.IPProtocolTCP, front4)); action != xdpPass || verdict != Verdicts {
		t.Errorf("action %d, counted as %v", action, verdict)
	}
}

// BenchmarkSteer measures the program alone, in the kernel, hot caches.
func BenchmarkSteer(b *testing.B) { benchmarkSteer(b, newTestProgram(b, false), front4) }

// BenchmarkPortRange is BenchmarkSteer with a range of 10,000 UDP ports, and without.
func BenchmarkPortRange(b *testing.B) {
	p := newTestProgram(b, false)
	media := netip.AddrPortFrom(front4.Addr(), 10_000)
	must(b, p.AddFrontend(media, unix.IPPROTO_UDP, 0))
	b.Run("one", func(b *testing.B) { benchmarkSteer(b, p, media) })
	must(b, p.RemoveFrontend(media, unix.IPPROTO_UDP))
	must(b, p.AddRange(media, 19_999, unix.IPPROTO_UDP, 0))
	b.Run("range", func(b *testing.B) { benchmarkSteer(b, p, netip.AddrPortFrom(front4.Addr(), 17_000)) })
}

// benchmarkSteer measures packets, among them one to a UDP frontend.
func benchmarkSteer(b *testing.B, p *Program, udp netip.AddrPort) {
	tcp4 := packet4(b, layers.IPProtocolTCP, front4)
	for unit, packet := range map[string][]byte{
		"ns/frontend":     tcp4,
		"ns/udp-frontend": packet4(b, layers.IPProtocolUDP, udp),
		"ns/snat":         packet4(b, layers.IPProtocolTCP, at(snat4, 62000)),
		"ns/no-match":     packet6(b, layers.IPProtocolTCP, at(node6, 22)),
		"ns/arp":          append(append([]byte(nil), tcp4[:atEtherType]...), 8, 6),
	} {
		_, perPacket, err := steering(b, p).Benchmark(packet, 1_000_000, nil)
		must(b, err)
		b.ReportMetric(float64(perPacket.Nanoseconds()), unit)
	}
	b.ReportMetric(0, "ns/op") // means nothing here
}
