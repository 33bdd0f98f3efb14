package packet

import (
	"encoding/binary"
	"net/netip"

	"github.com/weirlb/weir/perf/netlab"
)

// What a router looks at before it forwards a packet (RFC 1812 section 5.2).
func init() {
	add(
		scenario{row: "router", name: "ttl-1-new", modes: natModes, run: func(s *scene) {
			p := s.udp("too far")
			p.ttl = 1
			s.send(p)
			s.refusedBy(p, timeExceeded, 0)
		}, drops: drop("ttl-exceeded")},
		scenario{row: "router", name: "ttl-1-flow", modes: natModes, run: func(s *scene) {
			s.passes(s.udp("as far as it goes"))
			p := s.udp("too far")
			p.ttl = 1
			s.send(p)
			s.refusedBy(p, timeExceeded, 0)
		}, drops: drop("ttl-exceeded")},
		scenario{row: "router", name: "ttl-2", run: func(s *scene) {
			p := s.udp("just so far")
			p.ttl = 2
			s.passes(p)
		}},
		scenario{row: "router", name: "bad-header-checksum", modes: every, families: []int{ipv4}, run: func(s *scene) {
			s.spoiled(s.udp("x"), func(ip []byte) { ip[10] ^= 1 })
		}, drops: drop("bad-ip-header")},
		scenario{row: "router", name: "longer-than-the-frame", modes: every, run: func(s *scene) {
			s.spoiled(s.udp("x"), func(ip []byte) { lengthen(ip, 1) })
		}, drops: drop("truncated")},
		scenario{row: "router", name: "shorter-than-its-transport", modes: every, run: func(s *scene) {
			s.spoiled(s.udp("x"), func(ip []byte) { lengthen(ip, -4) })
		}, drops: drop("bad-transport-header")},
		scenario{row: "router", name: "tcp-offset-too-small", modes: every, run: func(s *scene) {
			s.spoiled(s.tcp(syn, 1, 0, ""), func(ip []byte) { transport(ip)[12] = 4 << 4 })
		}, drops: drop("bad-transport-header")},
		scenario{row: "router", name: "tcp-offset-beyond-the-end", modes: every, run: func(s *scene) {
			s.spoiled(s.tcp(syn, 1, 0, ""), func(ip []byte) { transport(ip)[12] = 15 << 4 })
		}, drops: drop("bad-transport-header")},
		scenario{row: "router", name: "udp-length-too-small", modes: every, run: func(s *scene) {
			s.spoiled(s.udp("x"), func(ip []byte) { transport(ip)[5] = 7 })
		}, drops: drop("bad-transport-header")},
		scenario{row: "router", name: "udp-length-beyond-the-end", modes: every, run: func(s *scene) {
			s.spoiled(s.udp("x"), func(ip []byte) { transport(ip)[5] = 10 })
		}, drops: drop("bad-transport-header")},
		scenario{row: "router", name: "from-loopback", modes: every, run: func(s *scene) {
			s.send(s.claiming("127.0.0.1", "::1"))
		}, drops: drop("martian")},
		scenario{row: "router", name: "from-multicast", modes: every, run: func(s *scene) {
			s.send(s.claiming("224.0.0.1", "ff02::1"))
		}, drops: drop("martian")},
		scenario{row: "router", name: "from-nowhere", modes: every, run: func(s *scene) {
			s.send(s.claiming("0.0.0.0", "::"))
		}, drops: drop("martian")},
		scenario{row: "router", name: "from-the-node-itself", modes: every, run: func(s *scene) {
			s.send(s.claiming(netlab.Host4(netlab.ClientNet, 1).String(), netlab.Host6(netlab.ClientNet, 1).String()))
		}, drops: drop("martian")},
		scenario{row: "router", name: "from-broadcast", modes: every, families: []int{ipv4}, run: func(s *scene) {
			s.send(s.claiming("255.255.255.255", ""))
		}, drops: drop("martian")},
		scenario{row: "router", name: "bad-transport-checksum-stays-bad", modes: []string{nat, dnat, l2dsr, ipip}, run: func(s *scene) {
			p := s.udp("what was summed")
			frame := p.bytes(s)
			copy(frame[len(frame)-6:], "signed")
			s.sendFrame(frame)
			got := s.frame(s.station())
			want := wanted[s.mode](s, p, got)
			copy(want[len(want)-6:], "signed")
			s.same(s.station(), got, want)
		}},
		// What a wrong checksum says of a connection is not believed.
		scenario{row: "router", name: "syn-with-a-bad-checksum", modes: every, run: func(s *scene) {
			s.sendFrame(miscounted(s.tcp(syn, 1000, 0, "abc").bytes(s)))
		}, drops: drop("bad-checksum")},
		scenario{row: "router", name: "dscp-and-ecn-stay", modes: natModes, run: func(s *scene) {
			p := s.udp("urgent")
			p.tos = 46<<2 | 3
			s.passes(p)
		}},
		scenario{row: "router", name: "another-host's-MAC", modes: every, run: func(s *scene) {
			p := s.udp("not for the edge")
			p.dstMAC = mac(netlab.ClientNet, 77)
			s.send(p)
		}},
	)
}

// spoiled sends p with its IP packet changed.
func (s *scene) spoiled(p packet, spoil func(ip []byte)) {
	s.Helper()
	frame := p.bytes(s)
	spoil(frame[p.l3():])
	s.sendFrame(frame)
}

// claiming is a datagram from an address that it cannot be from.
func (s *scene) claiming(four, six string) packet {
	p := s.udp("believe me")
	if s.six {
		four = six
	}
	p.src = netip.AddrPortFrom(netip.MustParseAddr(four), 4000)
	return p
}

// transport is what follows an IP header without extensions.
func transport(ip []byte) []byte {
	if ip[0]>>4 == 6 {
		return ip[40:]
	}
	return ip[int(ip[0]&15)*4:]
}

// lengthen changes the length that the IP header says, its checksum too.
func lengthen(ip []byte, by int) {
	if ip[0]>>4 == 6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(int(binary.BigEndian.Uint16(ip[4:]))+by))
		return
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(int(binary.BigEndian.Uint16(ip[2:]))+by))
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^sum16(ip[:int(ip[0]&15)*4]))
}

// miscounted changes the last byte of a frame's payload, and not its checksum.
func miscounted(frame []byte) []byte {
	frame[len(frame)-1] ^= 0x55
	return frame
}
