package header

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// outerAddrs are the tunnel's ends, of each family.
var (
	outerSrc4, outerDst4 = net.IP{10, 1, 0, 1}, net.IP{10, 1, 0, 5}
	outerSrc6, outerDst6 = net.ParseIP("2001:db8:2::1"), net.ParseIP("2001:db8:2::5")
)

func encapOf(v6, gue bool) Encap {
	e := Encap{V6: v6, GUE: gue, Flow: 0x000abcde, ID: 0x1234}
	e.Addr4 = binary.LittleEndian.Uint64(append(bytes.Clone(outerSrc4), outerDst4...))
	for i, b := range [][]byte{outerSrc6[:8], outerSrc6[8:], outerDst6[:8], outerDst6[8:]} {
		e.Addr6[i] = binary.LittleEndian.Uint64(b)
	}
	return e
}

// wantOuter builds the tunnel packet independently.
func wantOuter(t *testing.T, v6, gue bool, tos uint8, df bool, inner []byte) []byte {
	t.Helper()
	proto := layers.IPProtocolIPv4
	if inner[0]>>4 == 6 {
		proto = layers.IPProtocolIPv6
	}
	var ls []gopacket.SerializableLayer
	next := proto
	if gue {
		next = layers.IPProtocolUDP
	}
	var nl gopacket.NetworkLayer
	if v6 {
		ip := &layers.IPv6{Version: 6, TrafficClass: tos, FlowLabel: 0xabcde, HopLimit: 64, NextHeader: next, SrcIP: outerSrc6, DstIP: outerDst6}
		ls, nl = append(ls, ip), ip
	} else {
		ip := &layers.IPv4{Version: 4, TOS: tos, TTL: 64, Protocol: next, SrcIP: outerSrc4, DstIP: outerDst4}
		if df {
			ip.Flags = layers.IPv4DontFragment
		} else {
			ip.Id = 0x1234
		}
		ls, nl = append(ls, ip), ip
	}
	if gue {
		udp := &layers.UDP{SrcPort: 0xc000 | 0xbcde, DstPort: 6080}
		_ = udp.SetNetworkLayerForChecksum(nl)
		ls = append(ls, udp, gopacket.Payload([]byte{0, byte(proto), 0, 0}))
	}
	ls = append(ls, gopacket.Payload(inner))
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatal(err)
	}
	out := bytes.Clone(buf.Bytes())
	if gue && !v6 {
		out[26], out[27] = 0, 0 // no UDP checksum over IPv4
	}
	return out
}

// put encapsulates inner as the packet path does.
func put(e *Encap, inner []byte) []byte {
	n := e.Len()
	b := append(make([]byte, n), inner...)
	e.Put(b, len(inner))
	if e.V6 && e.GUE {
		l4 := b[IPv6Len:]
		binary.LittleEndian.PutUint16(l4[6:], Checksum(e.UDPSum(len(l4)), l4))
	}
	return b
}

func TestOuterHeadersInEveryFamily(t *testing.T) {
	for _, gue := range []bool{false, true} {
		for _, outer6 := range []bool{false, true} {
			for _, inner6 := range []bool{false, true} {
				for _, df := range []bool{false, true} {
					t.Run(fmt.Sprintf("gue=%v/outer6=%v/inner6=%v/df=%v", gue, outer6, inner6, df), func(t *testing.T) {
						inner := spec{v6: inner6, proto: ProtoUDP, payload: 51}.build(t)[EthernetLen:]
						if !inner6 && !df {
							inner[6] = 0
						}
						e := encapOf(outer6, gue)
						got := put(&e, inner)
						if want := wantOuter(t, outer6, gue, 0, df || inner6, inner); !bytes.Equal(got, want) {
							t.Errorf("\n got %x\nwant %x", got, want)
						}
						if e.Len() != len(got)-len(inner) || e.Len() > MaxEncapLen {
							t.Errorf("length %d", e.Len())
						}
					})
				}
			}
		}
	}
}

// RFC 6040 section 4.1, normal mode: what the inner header says, whatever that
// is; RFC 2983: the DSCP too.
func TestOuterECNAndDSCPAreTheInnerOnes(t *testing.T) {
	for _, dscp := range []uint8{0, 10, 46, 63} {
		for ecn, name := range []string{"Not-ECT", "ECT(1)", "ECT(0)", "CE"} {
			for _, outer6 := range []bool{false, true} {
				for _, inner6 := range []bool{false, true} {
					tos := dscp<<2 | uint8(ecn)
					inner := spec{v6: inner6, proto: ProtoUDP, payload: 3}.build(t)[EthernetLen:]
					if inner6 {
						binary.BigEndian.PutUint32(inner, 6<<28|uint32(tos)<<20|0x54321)
					} else {
						inner[1] = tos
					}
					e := encapOf(outer6, true)
					if want := wantOuter(t, outer6, true, tos, true, inner); !bytes.Equal(put(&e, inner), want) {
						t.Errorf("dscp %d %s outer6=%v inner6=%v: differs", dscp, name, outer6, inner6)
					}
				}
			}
		}
	}
}

// syn is a TCP header with options, its checksum over itself alone.
func syn(options ...byte) []byte {
	for len(options)%4 != 0 {
		options = append(options, 0)
	}
	b := make([]byte, TCPLen, TCPLen+len(options))
	b[12], b[13] = byte((TCPLen+len(options))/4<<4), SYN
	b = append(b, options...)
	binary.LittleEndian.PutUint16(b[16:], Checksum(0, b))
	return b
}

func TestClampMSS(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options []byte
		want    []byte // nil: unchanged
	}{
		{"first", []byte{2, 4, 5, 0xb4, 1, 3, 3, 7}, []byte{2, 4, 5, 0x78, 1, 3, 3, 7}},
		{"at an odd offset", []byte{1, 2, 4, 5, 0xb4, 1, 1, 1}, []byte{1, 2, 4, 5, 0x78, 1, 1, 1}},
		{"behind others", []byte{4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 2, 4, 0xff, 0xff}, []byte{4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 2, 4, 5, 0x78}},
		{"small enough", []byte{2, 4, 5, 0x78}, nil},
		{"none", nil, nil},
		{"behind the end of the list", []byte{0, 2, 4, 5, 0xb4, 0, 0, 0}, nil},
		{"of a wrong length", []byte{2, 3, 5, 0xb4}, nil},
		{"cut", []byte{1, 1, 2, 4}, nil},
		{"without a length", []byte{1, 1, 1, 2}, nil},
		{"length zero", []byte{8, 0, 2, 4, 5, 0xb4}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := syn(tt.options...)
			want := bytes.Clone(b)
			if tt.want != nil {
				want = syn(tt.want...)
			}
			if delta := ClampMSS(b, 1400); delta != 0 {
				binary.LittleEndian.PutUint16(b[16:], Update(binary.LittleEndian.Uint16(b[16:]), delta))
			}
			if !bytes.Equal(b, want) {
				t.Errorf("\n got %x\nwant %x", b, want)
			}
		})
	}
}

func FuzzClampMSS(f *testing.F) {
	f.Add(syn(2, 4, 5, 0xb4, 1, 3, 3, 7), uint16(1400))
	f.Add(syn(1, 2, 4, 5, 0xb4, 1, 1, 1), uint16(536))
	f.Fuzz(func(t *testing.T, b []byte, mss uint16) {
		if len(b) < TCPLen || TCP(b).DataOffset() < TCPLen || TCP(b).DataOffset() > len(b) {
			return
		}
		b = bytes.Clone(b[:TCP(b).DataOffset()])
		b[16], b[17] = 0, 0
		binary.LittleEndian.PutUint16(b[16:], Checksum(0, b))
		if delta := ClampMSS(b, mss); delta != 0 {
			binary.LittleEndian.PutUint16(b[16:], Update(binary.LittleEndian.Uint16(b[16:]), delta))
		}
		if Fold(Sum(0, b)) != 0xffff {
			t.Fatalf("checksum is wrong: %x", b)
		}
	})
}
