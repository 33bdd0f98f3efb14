package l2

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

var (
	own, client = hardware{2, 0, 0, 0, 0, 1}, hardware{2, 0, 0, 0, 0, 2}
	a4, a6      = netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	c4, c6      = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
)

// solicitation is a neighbor solicitation of client for a6, made by gopacket.
func solicitation(t testing.TB, source netip.Addr, hops uint8, options ...layers.ICMPv6Option) []byte {
	t.Helper()
	group := solicitedNode(a6)
	mac := multicastMAC(group)
	ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolICMPv6, HopLimit: hops, SrcIP: source.AsSlice(), DstIP: group.AsSlice()}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(neighborSolicitation, 0)}
	if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: client[:], DstMAC: mac[:], EthernetType: layers.EthernetTypeIPv6}, ip, icmp,
		&layers.ICMPv6NeighborSolicitation{TargetAddress: a6.AsSlice(), Options: options})
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b.Bytes())
}

func sourceOption() layers.ICMPv6Option {
	return layers.ICMPv6Option{Type: layers.ICMPv6OptSourceAddress, Data: client[:]}
}

func TestSolicitationsAreAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		source netip.Addr
		to     netip.Addr
		mac    hardware
		flags  uint8
	}{
		"of a host":                       {c6, c6, client, flagSolicited | flagOverride},
		"to detect duplicates (RFC 4862)": {netip.IPv6Unspecified(), allNodes, multicastMAC(allNodes), flagOverride},
	} {
		var options []layers.ICMPv6Option
		if !c.source.IsUnspecified() {
			options = append(options, sourceOption())
		}
		h, ok := parse(solicitation(t, c.source, linkHops, options...))
		if !ok || !h.question || h.target != a6 {
			t.Fatalf("%s: %+v %v", name, h, ok)
		}
		p := gopacket.NewPacket(h.answer(own), layers.LayerTypeEthernet, gopacket.Default)
		if p.ErrorLayer() != nil {
			t.Fatalf("%s: %v", name, p.ErrorLayer().Error())
		}
		eth, ip := p.LinkLayer().(*layers.Ethernet), p.NetworkLayer().(*layers.IPv6)
		na, _ := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
		if na == nil || !na.TargetAddress.Equal(a6.AsSlice()) || na.Flags != c.flags || !bytes.Equal(na.Options[0].Data, own[:]) ||
			!ip.DstIP.Equal(c.to.AsSlice()) || !ip.SrcIP.Equal(a6.AsSlice()) || ip.HopLimit != 255 || !bytes.Equal(eth.DstMAC, c.mac[:]) {
			t.Errorf("%s: %v", name, p)
		}
		icmp := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
		if back, ok := parse(h.answer(own)); !ok || back.claimed != a6 || back.mac != own {
			t.Errorf("%s: the checksum %#x is wrong, or %+v", name, icmp.Checksum, back)
		}
	}
}

func TestForwardedAndMalformedMessagesAreIgnored(t *testing.T) {
	good := solicitation(t, c6, linkHops, sourceOption())
	for name, f := range map[string][]byte{
		"hop limit 254":                   solicitation(t, c6, 254, sourceOption()),
		"a link-layer address in a probe": solicitation(t, netip.IPv6Unspecified(), linkHops, sourceOption()),
		"an option of length 0":           append(solicitation(t, c6, linkHops), 1, 0),
		"cut off":                         good[:len(good)-1],
		"another checksum":                append(bytes.Clone(good[:len(good)-1]), good[len(good)-1]+1),
		"short ARP":                       probe(a4, own)[:41],
		"empty":                           {},
	} {
		if name == "an option of length 0" {
			f[etherLen+5] += 2
		}
		if h, ok := parse(f); ok {
			t.Errorf("%s: %+v", name, h)
		}
	}
}

func TestARP(t *testing.T) {
	request := arp(arpRequest, hardware(broadcast), client, c4, hardware{}, a4)
	h, ok := parse(request)
	if !ok || !h.question || h.target != a4 || h.claimed != c4 || h.mac != client {
		t.Fatalf("%+v %v", h, ok)
	}
	p := gopacket.NewPacket(h.answer(own), layers.LayerTypeEthernet, gopacket.Default)
	r := p.Layer(layers.LayerTypeARP).(*layers.ARP)
	if r.Operation != layers.ARPReply || !net.IP(r.SourceProtAddress).Equal(a4.AsSlice()) || !bytes.Equal(r.SourceHwAddress, own[:]) ||
		!net.IP(r.DstProtAddress).Equal(c4.AsSlice()) || !bytes.Equal(r.DstHwAddress, client[:]) {
		t.Errorf("%v", p)
	}
	if h, ok := parse(probe(a4, client)); !ok || !h.question || h.claimed.IsValid() {
		t.Errorf("a probe claims nothing and is answered (RFC 5227): %+v %v", h, ok)
	}
	for _, f := range announcements(a4, client) {
		if h, ok := parse(f); !ok || h.question || h.claimed != a4 || h.mac != client {
			t.Errorf("an announcement claims and asks nothing: %+v %v", h, ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(solicitation(f, c6, linkHops, sourceOption()))
	f.Add(probe(a4, own))
	f.Add(probe(a6, own))
	f.Add(question(a4, c4, client))
	f.Add(question(a6, c6, client))
	for _, a := range []netip.Addr{a4, a6} {
		for _, x := range announcements(a, own) {
			f.Add(x)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := parse(b)
		if !ok {
			return
		}
		_ = addressee(b)
		if h.question {
			answer := h.answer(own)
			if back, ok := parse(answer); !ok || back.claimed != h.target || back.mac != own {
				t.Errorf("%+v is answered with what cannot be read: %+v %v", h, back, ok)
			}
			if to := addressee(answer); to != h.asker && (h.target.Is4() || !h.asker.IsUnspecified()) {
				t.Errorf("%+v is answered to %v", h, to)
			}
		}
		if !h.question && !h.claimed.IsValid() {
			t.Errorf("%+v says nothing", h)
		}
	})
}

func FuzzDecode(f *testing.F) {
	c := claims{Member: "a/192.0.2.1", Node: "a", MAC: own.String(), Process: 1, Sequence: 2, Eligible: []netip.Addr{a4, a6}, Owned: []netip.Addr{a6}}
	f.Add(c.encode())
	f.Add([]byte(`{"member":"a","node":"a","mac":"02:00:00:00:00:01","eligible":["fe80::1%eth0"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decode(b)
		if err != nil {
			return
		}
		if p.Member == "" || p.Node == "" || len(p.Eligible) > maxAddresses || len(p.Owned) > maxAddresses {
			t.Errorf("%+v", p.claims)
		}
		for a := range p.eligible {
			if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
				t.Errorf("%v", a)
			}
		}
	})
}
