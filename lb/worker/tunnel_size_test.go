package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// The bench's way to the endpoints is 1,400 bytes wide.
const pathMTU = 1400

func overhead(mode conntrack.Mode, outer6 bool) int {
	n := map[conntrack.Mode]int{conntrack.ModeL2DSR: 0, conntrack.ModeIPIP: 20, conntrack.ModeGUE: 32}[mode]
	if outer6 && n > 0 {
		n += 20
	}
	return n
}

func TestTheTunnelsMTUToTheByte(t *testing.T) {
	for mode, name := range modeNames {
		for _, inner6 := range []bool{false, true} {
			for _, outer6 := range []bool{false, true} {
				if mode == conntrack.ModeL2DSR && inner6 != outer6 {
					continue
				}
				t.Run(fmt.Sprintf("%s/inner6=%v/outer6=%v", name, inner6, outer6), func(t *testing.T) {
					b := newBench(t)
					ep, ipLen := endpoint4, header.IPv4Len
					if outer6 {
						ep = endpoint6
					}
					if inner6 {
						ipLen = header.IPv6Len
					}
					b.serveDirect(mode, ep, nil)
					mtu := pathMTU - overhead(mode, outer6)
					req := request(inner6, header.ProtoUDP)
					req.payload = mtu - ipLen - header.UDPLen
					if f := b.one(portClient, req.build(t), portServer); len(f) != header.EthernetLen+pathMTU {
						t.Errorf("%d bytes left, want %d", len(f), header.EthernetLen+pathMTU)
					}
					req.payload++
					f := b.one(portClient, req.build(t), portClient)
					if got := toldMTU(t, f); got != mtu {
						t.Errorf("the client is told %d, want %d", got, mtu)
					}
					if b.drops()["larger-than-mtu"] != 1 {
						t.Errorf("drops %v", b.drops())
					}
					b.framesHome()
				})
			}
		}
	}
}

// toldMTU is the MTU in an ICMP error that a packet was too big.
func toldMTU(t *testing.T, f []byte) int {
	t.Helper()
	pkt := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
	if icmp, ok := pkt.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok {
		if icmp.TypeCode != layers.CreateICMPv4TypeCode(3, 4) {
			t.Fatalf("%v", icmp.TypeCode)
		}
		return int(icmp.Seq)
	}
	icmp, ok := pkt.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
	if !ok || icmp.TypeCode != layers.CreateICMPv6TypeCode(2, 0) {
		t.Fatalf("no packet too big: %v", pkt)
	}
	return int(binary.BigEndian.Uint32(icmp.Payload))
}

// RFC 8200: no link of IPv6 is narrower than 1,280 bytes, so nobody is told so.
func TestIPv6IsNeverToldLessThanItsLeastMTU(t *testing.T) {
	b := newBench(t)
	b.serveDirect(conntrack.ModeGUE, narrow4, nil) // 1280 - 32
	req := request(true, header.ProtoUDP)
	req.payload = 1281 - header.IPv6Len - header.UDPLen
	if got := toldMTU(t, b.one(portClient, req.build(t), portClient)); got != 1280 {
		t.Errorf("told %d", got)
	}
	req.payload--
	b.one(portClient, req.build(t), -1)
	if b.drops()["larger-than-mtu"] != 2 {
		t.Errorf("drops %v", b.drops())
	}
	b.framesHome()
}

func TestWhatMayBeFragmentedIs(t *testing.T) {
	for mode, name := range modeNames {
		for _, outer6 := range []bool{false, true} {
			for _, partial := range []bool{false, true} {
				if mode == conntrack.ModeL2DSR && outer6 {
					continue
				}
				t.Run(fmt.Sprintf("%s/outer6=%v/partial=%v", name, outer6, partial), func(t *testing.T) {
					b := newBench(t)
					ep := endpoint4
					if outer6 {
						ep = endpoint6
					}
					b.serveDirect(mode, ep, nil)
					req := request(false, header.ProtoUDP)
					req.df, req.partial, req.payload = false, partial, 3000
					b.give(portClient, tags(req.build(t), 100))
					got := b.round()[portServer]
					if len(got) != 3 {
						t.Fatalf("%d packets left (drops %v)", len(got), b.drops())
					}
					var data []byte
					for i, f := range got {
						data = append(data, fragmentData(t, tags(f, 100), mode, outer6, len(data), i == len(got)-1)...)
					}
					req.partial = false
					if w := req.build(t)[header.EthernetLen+header.IPv4Len:]; !bytes.Equal(data, w) {
						t.Errorf("put together again it is another datagram")
					}
					b.framesHome()
				})
			}
		}
	}
}

// fragmentData checks a tagged frame with a fragment that begins at byte at of
// the datagram, and returns what it holds of it.
func fragmentData(t *testing.T, f []byte, mode conntrack.Mode, outer6 bool, at int, last bool) []byte {
	t.Helper()
	const l3 = header.EthernetLen + header.TagLen
	if len(f) > l3+pathMTU {
		t.Errorf("fragment at %d has %d bytes", at, len(f))
	}
	inner := f[l3+overhead(mode, outer6):]
	if mode != conntrack.ModeL2DSR {
		port, label, id := variable(f, l3, mode, outer6)
		w := tunnelled(t, mode, outer6, append(make([]byte, header.EthernetLen), inner...), port, label, id)
		if w = tags(w, 100); !bytes.Equal(f, w) {
			t.Errorf("fragment at %d:\n got %x\nwant %x", at, f, w)
		}
	}
	if header.Fold(header.Sum(0, inner[:header.IPv4Len])) != 0xffff || inner[8] != 63 {
		t.Errorf("fragment at %d: header %x", at, inner[:header.IPv4Len])
	}
	field := binary.BigEndian.Uint16(inner[6:])
	if int(field&0x1fff)*8 != at || (field&0x2000 == 0) != last || field&0x4000 != 0 {
		t.Errorf("fragment at %d: flags and offset %#x", at, field)
	}
	return inner[header.IPv4Len:]
}

func TestGUEChecksumOverIPv6MayBeZeroWhenToldSo(t *testing.T) {
	b := newBench(t)
	b.w.cfg.GUEZeroChecksum = true
	b.serveDirect(conntrack.ModeGUE, endpoint6, nil)
	f := b.one(portClient, request(false, header.ProtoUDP).build(t), portServer)
	if c := f[14+40+6 : 14+40+8]; c[0] != 0 || c[1] != 0 {
		t.Errorf("checksum %x", c)
	}
}

// Each piece is made of the packet as it came, whatever became of the tags of the
// one before it.
func TestPiecesAreTaggedAlike(t *testing.T) {
	for _, in := range []string{"untagged", "tagged"} {
		for _, out := range []string{"untagged", "tagged"} {
			for mode, name := range modeNames {
				t.Run(fmt.Sprintf("%s/from %s/to %s", name, in, out), func(t *testing.T) {
					b := newBench(t)
					b.serveDirect(mode, endpoint4, nil)
					at := portServer
					if out == "tagged" {
						b.onVLAN(portServer, portClient, unix.ETH_P_8021Q, 100)
						at = portClient
					}
					req := request(false, header.ProtoUDP)
					req.df, req.payload = false, 3000
					f := req.build(t)
					if in == "tagged" {
						f = tagged(f, unix.ETH_P_8021Q, 200)
					}
					b.give(portClient, f)
					got := b.round()[at]
					if len(got) != 3 {
						t.Fatalf("%d packets left (drops %v)", len(got), b.drops())
					}
					var data []byte
					for i, f := range got {
						if out == "untagged" {
							f = tags(f, 100)
						} else if tag := binary.BigEndian.Uint32(f[12:]); tag != unix.ETH_P_8021Q<<16|100 {
							t.Fatalf("tag %#x", tag)
						}
						data = append(data, fragmentData(t, f, mode, false, len(data), i == len(got)-1)...)
					}
					if w := req.build(t)[header.EthernetLen+header.IPv4Len:]; !bytes.Equal(data, w) {
						t.Errorf("put together again it is another datagram")
					}
					b.framesHome()
				})
			}
		}
	}
}
