package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// withTOS sets DSCP and ECN of a packet.
func withTOS(f []byte, v6 bool, tos uint8) []byte {
	ip := f[header.EthernetLen:]
	if v6 {
		binary.BigEndian.PutUint16(ip, 6<<12|uint16(tos)<<4|uint16(ip[1]&0xf))
		return f
	}
	ip[1], ip[10], ip[11] = tos, 0, 0
	binary.LittleEndian.PutUint16(ip[10:], header.Checksum(0, ip[:header.IPv4Len]))
	return f
}

// The fast path must put the same outer header on a packet as the slow path: length, DSCP
// and ECN, DF and identification, TTL, checksum, ports and flow label.
func TestEstablishedPacketsOfTunnelsAreForwardedAsAllOthers(t *testing.T) {
	for _, mode := range []conntrack.Mode{conntrack.ModeIPIP, conntrack.ModeGUE} {
		for i := range 8 {
			v6, outer6, proto := i&1 != 0, i&2 != 0, uint8(header.ProtoUDP)
			if i&4 != 0 {
				proto = header.ProtoTCP
			}
			t.Run(fmt.Sprintf("%s/v6=%v/outer6=%v/%d", modeNames[mode], v6, outer6, proto), func(t *testing.T) {
				b := newBench(t)
				b.w.cfg.GUEZeroChecksum = true
				endpoint, outer := endpoint4, header.Encap{V6: outer6, GUE: mode == conntrack.ModeGUE}
				if outer6 {
					endpoint = endpoint6
				}
				b.serveDirect(mode, endpoint, nil)
				req := request(v6, proto)
				b.one(portClient, req.build(t), portServer)
				req.flags = header.ACK
				b.one(portClient, req.build(t), portServer)
				if proto == header.ProtoTCP { // the numbers of a young connection are followed
					b.give(portClient, req.build(t))
					b.w.beginRound()
					b.w.tick += 60 * secondTicks
					b.roundAtTheSameTime()
				}
				headers := len(req.build(t)) - req.payload - header.EthernetLen
				for _, p := range []struct {
					df      bool
					ttl     uint8
					tos     uint8
					payload int
				}{{true, 64, 0, 0}, {false, 64, 0xb9, 33}, {true, 2, 3, 700}, {false, 255, 2, pathMTU - headers - outer.Len()}} {
					req.df, req.ttl, req.payload = p.df, p.ttl, p.payload
					f := append(withTOS(req.build(t), v6, p.tos), 1, 2, 3) // padding
					id := b.w.ipID
					b.w.batch.pkts[0].ref = 0 // the slow path sets it
					short := b.one(portClient, f, portServer)
					if b.w.batch.pkts[0].ref != 0 {
						t.Errorf("%+v is on the slow path", p)
					}
					b.w.ipID = id
					if long := b.long(portClient, f, portServer); !bytes.Equal(short, long) {
						t.Errorf("%+v:\nshort %x\nlong  %x", p, short, long)
					}
				}
				b.framesHome()
			})
		}
	}
}

// A packet that fits the path only without the outer header is not for the fast path. Nor is a
// checksum over all of a packet.
func TestTunnelsLeaveTheRestToTheSlowPath(t *testing.T) {
	b := newBench(t)
	b.serveDirect(conntrack.ModeGUE, endpoint6, nil)
	req := request(true, header.ProtoUDP)
	for range 3 {
		b.w.batch.pkts[0].ref = 0
		f := b.one(portClient, req.build(t), portServer)
		if b.w.batch.pkts[0].ref == 0 {
			t.Error("a packet that needs a checksum is on the fast path")
		}
		udp := f[header.EthernetLen+header.IPv6Len:]
		sum := header.PseudoSum6(f[header.EthernetLen:], header.ProtoUDP, len(udp))
		if header.Fold(header.Sum(sum, udp)) != 0xffff {
			t.Errorf("wrong checksum: %x", f)
		}
	}
	b = newBench(t)
	b.serveDirect(conntrack.ModeIPIP, endpoint4, nil)
	req = request(false, header.ProtoUDP)
	b.one(portClient, req.build(t), portServer)
	b.one(portClient, req.build(t), portServer)
	req.payload = pathMTU - header.IPv4Len - header.UDPLen - header.IPv4Len + 1
	isICMP(3, 4)(t, b.one(portClient, req.build(t), portClient))
	b.framesHome()
}
