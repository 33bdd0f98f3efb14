package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/gopacket/layers"
)

// Types of IPv6 extension headers.
const (
	hopByHop    = 0
	routing     = 43
	destOptions = 60
)

var (
	padding      = []byte{0, 0, 1, 4, 0, 0, 0, 0}
	rfc5095      = append([]byte{0, 2, 0, 0, 0, 0, 0, 0}, make([]byte, 16)...) // type 0
	atItsEnd     = append([]byte{0, 2, 2, 0, 0, 0, 0, 0}, make([]byte, 16)...)
	segmentsLeft = append([]byte{0, 2, 2, 1, 0, 0, 0, 0}, make([]byte, 16)...)
)

// What packets of the real world have beside addresses, ports and data.
func init() {
	six, four := []int{ipv6}, []int{ipv4}
	option := func(kind uint8, data ...byte) func(*scene) {
		return func(s *scene) {
			p := s.udp("with options")
			p.options = []layers.IPv4Option{{OptionType: kind, OptionLength: uint8(2 + len(data)), OptionData: data}}
			s.passes(p)
		}
	}
	sourceRoute := func(kind uint8) func(*scene) {
		return func(s *scene) {
			p := s.udp("by my way")
			p.options = []layers.IPv4Option{{OptionType: kind, OptionLength: 7, OptionData: []byte{4, 10, 0, 0, 1}}}
			s.send(p)
		}
	}
	header := func(kinds []uint8, headers ...[]byte) func(*scene) {
		return func(s *scene) { s.carried(s.udp("behind more headers"), kinds, headers...) }
	}
	refusedHeader := func(kinds []uint8, headers ...[]byte) func(*scene) {
		return func(s *scene) {
			p := s.udp("behind more headers")
			s.sendFrame(behind(p.bytes(s), p.l3(), kinds, headers))
		}
	}
	six8 := slices.Repeat([][]byte{padding}, 6)
	add(
		scenario{row: "options", name: "router-alert", modes: natModes, families: four, run: option(148, 0, 0)},
		scenario{row: "options", name: "record-route", families: four, run: option(7, 4, 0, 0, 0, 0, 0)},
		scenario{row: "options", name: "timestamp", families: four, run: option(68, 5, 0, 0, 0, 0, 0)},
		scenario{row: "options", name: "loose-source-route", modes: every, families: four, run: sourceRoute(131), drops: drop("source-routed")},
		scenario{row: "options", name: "strict-source-route", modes: every, families: four, run: sourceRoute(137), drops: drop("source-routed")},
		scenario{row: "options", name: "option-beyond-the-header", modes: every, families: four, run: func(s *scene) {
			p := s.udp("by my way")
			p.options = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
			s.spoiled(p, func(ip []byte) {
				ip[21], ip[10], ip[11] = 12, 0, 0
				binary.BigEndian.PutUint16(ip[10:], ^sum16(ip[:24]))
			})
		}, drops: drop("bad-ip-header")},

		scenario{row: "options", name: "hop-by-hop", modes: unwrapped, families: six, run: header([]uint8{hopByHop}, padding)},
		scenario{row: "options", name: "destination-options", modes: unwrapped, families: six, run: header([]uint8{destOptions}, padding)},
		scenario{row: "options", name: "six-headers", modes: unwrapped, families: six, run: header([]uint8{hopByHop, 60, 60, 60, 60, 60}, six8...)},
		scenario{row: "options", name: "routing-at-its-end", modes: unwrapped, families: six, run: header([]uint8{routing}, atItsEnd)},
		scenario{row: "options", name: "atomic-fragment", modes: []string{nat, l2dsr}, families: six, run: header([]uint8{44}, []byte{0, 0, 0, 0, 1, 2, 3, 4})},
		scenario{row: "options", name: "routing-of-type-0", modes: every, families: six, run: refusedHeader([]uint8{routing}, rfc5095), drops: drop("source-routed")},
		scenario{row: "options", name: "routing-on-its-way", modes: every, families: six, run: refusedHeader([]uint8{hopByHop, routing}, padding, segmentsLeft), drops: drop("source-routed")},
		scenario{row: "options", name: "hop-by-hop-second", modes: every, families: six, run: refusedHeader([]uint8{destOptions, hopByHop}, padding, padding), drops: drop("bad-extension-header")},

		scenario{row: "options", name: "padding-of-a-short-frame", modes: unwrapped, run: func(s *scene) {
			p := s.udp("x")
			pad := make([]byte, 10)
			s.sendFrame(append(p.bytes(s), pad...))
			got := s.frame(s.station())
			want := wanted[s.mode](s, p, got)
			s.same(s.station(), bytes.TrimSuffix(got, pad), want)
		}},
		scenario{row: "options", name: "udp-without-checksum", modes: natModes, run: func(s *scene) {
			// In IPv6 too: what a tunnel leaves out is not Weir's to judge
			// (RFC 6936 section 5).
			p := s.udp("unsummed")
			p.noChecksum = true
			s.passes(p)
			s.returns(s.answer(p), udpPort)
		}},
		scenario{row: "options", name: "tcp-options", modes: every, run: func(s *scene) {
			p := s.tcp(syn, 1000, 0, "")
			p.tcpOptions = []layers.TCPOption{
				{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 0xb4}},
				{OptionType: layers.TCPOptionKindSACKPermitted, OptionLength: 2},
				{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: make([]byte, 8)},
			}
			s.passes(p)
		}},
		scenario{row: "options", name: "tcp-fast-open", modes: natModes, run: func(s *scene) {
			p := s.tcp(syn, 1000, 0, "data with the SYN")
			p.tcpOptions = []layers.TCPOption{{OptionType: 34, OptionLength: 10, OptionData: []byte("a cookie")}}
			s.passes(p)
			s.returns(s.answer(s.tcp(syn|ack, 5000, 1018, "")), tcpPort)
			s.passes(s.tcp(ack, 1018, 5001, ""))
		}},
		scenario{row: "flow", name: "tcp-both-close-at-once", modes: natModes, run: func(s *scene) {
			s.connect()
			s.passes(s.tcp(fin|ack, 1001, 5001, ""))
			s.returns(s.answer(s.tcp(fin|ack, 5001, 1001, "")), tcpPort)
			s.passes(s.tcp(ack, 1002, 5002, ""))
			s.returns(s.answer(s.tcp(ack, 5002, 1002, "")), tcpPort)
		}},
		scenario{row: "flow", name: "port-used-again", modes: natModes, run: func(s *scene) {
			s.connect()
			s.passes(s.tcp(fin|ack, 1001, 5001, ""))
			s.returns(s.answer(s.tcp(fin|ack, 5001, 1002, "")), tcpPort)
			s.passes(s.tcp(ack, 1002, 5002, ""))
			s.snat = netip.AddrPort{} // a new flow, which may choose anew
			s.passes(s.tcp(syn, 900_000, 0, ""))
		}},
	)
}

// extended is an IPv6 frame with one more header of a kind behind its IPv6
// header, which is at l3; the header's first byte is filled in.
func extended(frame []byte, l3 int, kind uint8, h []byte) []byte {
	f := slices.Insert(bytes.Clone(frame), l3+40, h...)
	f[l3+40], f[l3+6] = f[l3+6], kind
	binary.BigEndian.PutUint16(f[l3+4:], uint16(len(f)-l3-40))
	return f
}

// behind is extended with several headers, in their order.
func behind(frame []byte, l3 int, kinds []uint8, headers [][]byte) []byte {
	for i := len(kinds) - 1; i >= 0; i-- {
		frame = extended(frame, l3, kinds[i], headers[i])
	}
	return frame
}

// carried sends p with extension headers, and checks that it is delivered with
// them.
func (s *scene) carried(p packet, kinds []uint8, headers ...[]byte) {
	s.Helper()
	s.sendFrame(behind(p.bytes(s), p.l3(), kinds, headers))
	got := s.frame(s.station())
	p.tags = nil // tags end at the node
	n, l3 := 0, p.l3()
	for _, h := range headers {
		n += len(h)
	}
	if len(got) < l3+40+n {
		s.Fatalf("too short: %s", summary(got))
	}
	plain := slices.Delete(bytes.Clone(got), l3+40, l3+40+n)
	s.same(s.station(), got, behind(wanted[s.mode](s, p, plain), l3, kinds, headers))
}
