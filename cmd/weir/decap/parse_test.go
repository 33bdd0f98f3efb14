package decap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/lb/header"
)

var (
	vip4, vip6 = netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8::10")
	weir4      = netip.MustParseAddr("10.1.0.1")
	rules      = Rules{Addresses: []netip.Addr{vip4, vip6}, From: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}
)

// inner is a client's packet to an address.
func inner(t testing.TB, src, dst string, tos uint8) []byte {
	t.Helper()
	udp := &layers.UDP{SrcPort: 40000, DstPort: 80}
	var l3 gopacket.SerializableLayer
	if a := net.ParseIP(src); a.To4() != nil {
		ip := &layers.IPv4{Version: 4, TOS: tos, TTL: 63, Protocol: layers.IPProtocolUDP, SrcIP: a, DstIP: net.ParseIP(dst)}
		_ = udp.SetNetworkLayerForChecksum(ip)
		l3 = ip
	} else {
		ip := &layers.IPv6{Version: 6, TrafficClass: tos, HopLimit: 63, NextHeader: layers.IPProtocolUDP, SrcIP: a, DstIP: net.ParseIP(dst)}
		_ = udp.SetNetworkLayerForChecksum(ip)
		l3 = ip
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, l3, udp, gopacket.Payload("hello")); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(buf.Bytes())
}

func protoOf(b []byte) uint8 {
	if b[0]>>4 == 6 {
		return header.ProtoIPv6
	}
	return header.ProtoIPIP
}

func TestWhatIsHandedOn(t *testing.T) {
	good4, good6 := inner(t, "192.0.2.7", "198.51.100.10", 0), inner(t, "2001:db8:1::7", "2001:db8::10", 0)
	cut := func(b []byte, n int) []byte { return b[:n] }
	with := func(b []byte, at int, v byte) []byte { b = bytes.Clone(b); b[at] = v; return b }
	for _, tt := range []struct {
		name  string
		b     []byte
		proto uint8 // 0: as the packet says
		from  string
		want  Drop
	}{
		{"IPv4", good4, 0, "", Delivered},
		{"IPv6", good6, 0, "", Delivered},
		{"with padding behind", append(bytes.Clone(good4), 1, 2, 3), 0, "", Delivered},
		{"from another sender", good4, 0, "10.2.0.1", DropSource},
		{"to another address", inner(t, "192.0.2.7", "198.51.100.11", 0), 0, "", DropDestination},
		{"to another address, IPv6", inner(t, "2001:db8:1::7", "2001:db8::11", 0), 0, "", DropDestination},
		{"from loopback", inner(t, "127.0.0.1", "198.51.100.10", 0), 0, "", DropMartian},
		{"from a group", inner(t, "224.0.0.1", "198.51.100.10", 0), 0, "", DropMartian},
		{"from class E", inner(t, "255.255.255.255", "198.51.100.10", 0), 0, "", DropMartian},
		{"from network 0", inner(t, "0.1.2.3", "198.51.100.10", 0), 0, "", DropMartian},
		{"from itself", inner(t, "198.51.100.10", "198.51.100.10", 0), 0, "", DropMartian},
		{"from IPv6 loopback", inner(t, "::1", "2001:db8::10", 0), 0, "", DropMartian},
		{"from nowhere", inner(t, "::", "2001:db8::10", 0), 0, "", DropMartian},
		{"another family than named", good4, header.ProtoIPv6, "", DropMalformed},
		{"another protocol", good4, 47, "", DropMalformed},
		{"empty", nil, header.ProtoIPIP, "", DropMalformed},
		{"cut in the header", cut(good4, 19), 0, "", DropMalformed},
		{"cut in the IPv6 header", cut(good6, 39), 0, "", DropMalformed},
		{"cut in the payload", cut(good4, len(good4)-1), 0, "", DropMalformed},
		{"cut in the IPv6 payload", cut(good6, len(good6)-1), 0, "", DropMalformed},
		{"header checksum", with(good4, 8, 9), 0, "", DropMalformed},
		{"header length", with(good4, 0, 0x44), 0, "", DropMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			proto, from := tt.proto, weir4
			if proto == 0 {
				proto = protoOf(tt.b)
			}
			if tt.from != "" {
				from = netip.MustParseAddr(tt.from)
			}
			got, d := rules.accept(bytes.Clone(tt.b), proto, outer{src: from})
			if d != tt.want {
				t.Fatalf("%v, want %v", d, tt.want)
			}
			if d == Delivered && (!bytes.HasPrefix(tt.b, got) || len(got) < min(len(good4), len(good6))) {
				t.Errorf("changed: %x", got)
			}
		})
	}
}

func TestGUEHeaders(t *testing.T) {
	b4, b6 := inner(t, "192.0.2.7", "198.51.100.10", 0), inner(t, "2001:db8:1::7", "2001:db8::10", 0)
	gueTo := func(first, proto byte, flags uint16, b []byte) []byte {
		return append(binary.BigEndian.AppendUint16([]byte{first, proto}, flags), b...)
	}
	for _, tt := range []struct {
		name  string
		b     []byte
		want  Drop
		proto uint8
	}{
		{"variant 0, IPv4", gueTo(0, 4, 0, b4), Delivered, 4},
		{"variant 0, IPv6", gueTo(0, 41, 0, b6), Delivered, 41},
		{"variant 1, IPv4", b4, Delivered, 4},
		{"variant 1, IPv6", b6, Delivered, 41},
		{"variant 2", gueTo(0x80, 4, 0, b4), DropGUE, 0},
		{"control message", gueTo(0x20, 1, 0, b4), DropGUE, 0},
		{"optional fields", gueTo(1, 4, 0, b4), DropGUE, 0},
		{"flags", gueTo(0, 4, 0x8000, b4), DropGUE, 0},
		{"short", []byte{0, 4, 0}, DropMalformed, 0},
	} {
		got, proto, d := gue(tt.b)
		if d != tt.want || proto != tt.proto {
			t.Errorf("%s: %v, protocol %d", tt.name, d, proto)
			continue
		}
		if d == Delivered && !bytes.Equal(got, b4) && !bytes.Equal(got, b6) {
			t.Errorf("%s: %x", tt.name, got)
		}
	}
}

// RFC 6040, figure 4.
func TestECNIsPutTogether(t *testing.T) {
	const drop = 0xff
	names := []string{"Not-ECT", "ECT(1)", "ECT(0)", "CE"}
	want := [4][4]uint8{ // inner, outer
		{0, 0, 0, drop},
		{1, 1, 1, 3},
		{2, 1, 2, 3},
		{3, 3, 3, 3},
	}
	for in := range names {
		for out := range names {
			for _, dst := range []string{"198.51.100.10", "2001:db8::10"} {
				src := map[bool]string{true: "2001:db8:1::7", false: "192.0.2.7"}[len(dst) < 13]
				t.Run(fmt.Sprintf("%s in %s to %s", names[in], names[out], dst), func(t *testing.T) {
					b := inner(t, src, dst, 46<<2|uint8(in))
					got, d := rules.accept(b, protoOf(b), outer{src: weir4, ecn: uint8(out)})
					if want[in][out] == drop {
						if d != DropECN {
							t.Errorf("%v", d)
						}
						return
					}
					if w := inner(t, src, dst, 46<<2|want[in][out]); d != Delivered || !bytes.Equal(got, w) {
						t.Errorf("%v\n got %x\nwant %x", d, got, w)
					}
				})
			}
		}
	}
}

func FuzzDecapsulate(f *testing.F) {
	b4, b6 := inner(f, "192.0.2.7", "198.51.100.10", 2), inner(f, "2001:db8:1::7", "2001:db8::10", 1)
	f.Add(b4, uint8(3))
	f.Add(append([]byte{0, 41, 0, 0}, b6...), uint8(1))
	f.Add([]byte{0x45, 0, 0, 20}, uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, ecn uint8) {
		in, proto, d := gue(bytes.Clone(b))
		if d != Delivered {
			return
		}
		got, d := rules.accept(in, proto, outer{src: weir4, ecn: ecn & 3})
		if d != Delivered {
			return
		}
		var dst netip.Addr
		if got[0]>>4 == 4 {
			ip := header.IPv4(got)
			if len(got) != ip.TotalLen() || header.Fold(header.Sum(0, got[:ip.HeaderLen()])) != 0xffff {
				t.Fatalf("not whole: %x", got)
			}
			dst = netip.AddrFrom4([4]byte(got[16:20]))
		} else {
			if len(got) != header.IPv6Len+header.IPv6(got).PayloadLen() {
				t.Fatalf("not whole: %x", got)
			}
			dst = netip.AddrFrom16([16]byte(got[24:40]))
		}
		if !rules.serves(dst) {
			t.Fatalf("to %v", dst)
		}
	})
}
