package worker

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/weirlb/weir/lb/header"
)

// extended is an IPv6 frame with one more header of a kind behind its IPv6
// header; the header's first byte is filled in.
func extended(frame []byte, kind uint8, h ...byte) []byte {
	f := slices.Insert(slices.Clone(frame), header.EthernetLen+header.IPv6Len, h...)
	f[header.EthernetLen+header.IPv6Len], f[20] = f[20], kind
	binary.BigEndian.PutUint16(f[18:], uint16(len(f)-header.EthernetLen-header.IPv6Len))
	return f
}

// optioned is an IPv4 frame with options.
func optioned(frame []byte, o ...byte) []byte {
	f := slices.Insert(slices.Clone(frame), header.EthernetLen+header.IPv4Len, o...)
	f[14] += uint8(len(o) / 4)
	binary.BigEndian.PutUint16(f[16:], uint16(len(f)-header.EthernetLen))
	f[24], f[25] = 0, 0
	binary.LittleEndian.PutUint16(f[24:], header.Checksum(0, f[14:34+len(o)]))
	return f
}

var (
	padding    = []byte{0, 0, 1, 4, 0, 0, 0, 0}
	atomic6    = []byte{0, 0, 0, 0, 1, 2, 3, 4}
	typeZero   = []byte{0, 2, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	endRouting = []byte{0, 2, 2, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
)

// Options and extension headers are carried as they are: the packet that
// leaves is the one that would leave without them, and they.
func TestOptionsAndExtensionHeadersAreCarried(t *testing.T) {
	wedge6 := func(kind uint8, h []byte) func([]byte) []byte {
		return func(f []byte) []byte { return extended(f, kind, h...) }
	}
	tests := []struct {
		name  string
		v6    bool
		wedge func([]byte) []byte
	}{
		{"router alert", false, func(f []byte) []byte { return optioned(f, 148, 4, 0, 0) }},
		{"record route", false, func(f []byte) []byte { return optioned(f, 7, 7, 4, 0, 0, 0, 0, 0) }},
		{"hop-by-hop options", true, wedge6(0, padding)},
		{"destination options", true, wedge6(60, padding)},
		{"a routing header at its end", true, wedge6(43, endRouting)},
		{"an atomic fragment", true, wedge6(44, atomic6)},
		{"two kinds", true, func(f []byte) []byte { return extended(extended(f, 60, padding...), 0, padding...) }},
	}
	for _, tt := range tests {
		for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
			for _, partial := range []bool{false, true} {
				t.Run(tt.name, func(t *testing.T) {
					b := newBench(t)
					req := request(tt.v6, proto)
					req.partial = partial
					f := b.one(portClient, tt.wedge(req.build(t)), portServer)

					snat, ep := snat4, endpoint4
					if tt.v6 {
						snat, ep = snat6, endpoint6
					}
					var p header.Packet
					if header.Parse(f, len(f), &p) != header.OK {
						t.Fatal("what was sent does not parse")
					}
					port := binary.BigEndian.Uint16(f[p.L4:])
					want := req
					want.srcMAC, want.dstMAC, want.ttl, want.partial = macWeirB, macServer, 63, false
					want.src, want.dst = ap(snat, port), ap(ep, 8080)
					if w := tt.wedge(want.build(t)); !bytes.Equal(f, w) {
						t.Errorf("to the endpoint:\n got %x\nwant %x", f, w)
					}

					ans := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(ep, 8080), dst: ap(snat, port), proto: proto, partial: partial, df: true}
					if proto == header.ProtoTCP {
						ans.flags, ans.seq, ans.ack = header.SYN|header.ACK, 5000, 1001
					}
					g := b.one(portServer, tt.wedge(ans.build(t)), portClient)
					back := ans
					back.srcMAC, back.dstMAC, back.ttl, back.partial = macWeir, macClient, 63, false
					back.src, back.dst = req.dst, req.src
					if w := tt.wedge(back.build(t)); !bytes.Equal(g, w) {
						t.Errorf("to the client:\n got %x\nwant %x", g, w)
					}
					b.framesHome()
				})
			}
		}
	}
}

func TestBadOptionsAndExtensionHeadersAreDropped(t *testing.T) {
	udp4, udp6 := request(false, header.ProtoUDP).build(t), request(true, header.ProtoUDP).build(t)
	fragment4 := func(word uint16, n int) []byte {
		f := slices.Clone(udp4[:header.EthernetLen+header.IPv4Len+n])
		binary.BigEndian.PutUint16(f[20:], word)
		f = optioned(f) // lengths and checksum anew
		return f
	}
	tests := []struct {
		name   string
		frame  []byte
		reason Drop
	}{
		{"loose source route", optioned(udp4, 131, 7, 4, 10, 0, 0, 1, 0), DropSourceRoute},
		{"strict source route", optioned(udp4, 137, 7, 4, 10, 0, 0, 1, 0), DropSourceRoute},
		{"an option beyond the header", optioned(udp4, 148, 8, 0, 0), DropBadIPHeader},
		{"routing header of type 0", extended(udp6, 43, typeZero...), DropSourceRoute},
		{"hop-by-hop options behind others", extended(extended(udp6, 0, padding...), 60, padding...), DropExtension},
		{"options beyond the end", extended(udp6, 60, 0, 200, 1, 4, 0, 0, 0, 0), DropExtension},
		{"a fragment of nothing", fragment4(0x2000, 0), DropBadFragment},
		{"a fragment not of eight bytes", fragment4(0x2000, 20), DropBadFragment},
		{"TCP flags in a later fragment", func() []byte { f := fragment4(0x0001, 16); f[23] = header.ProtoTCP; return optioned(f) }(), DropTinyFragment},
		{"IPv6 first fragment without ports", func() []byte {
			f := extended(extended(udp6, 60, padding...), 44, 0, 0, 0, 1, 0, 0, 0, 1)[:14+40+8+8]
			f[18], f[19] = 0, 16
			return f
		}(), DropTinyFragment},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.one(portClient, tt.frame, -1)
			if b.drops()[tt.reason.String()] != 1 {
				t.Errorf("counted %v, want %s", b.drops(), tt.reason)
			}
			b.framesHome()
		})
	}
}
