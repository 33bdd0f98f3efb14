package packet

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"

	"github.com/weirlb/weir/perf/netlab"
)

// SCTP chunk types (RFC 9260 section 3.2).
const (
	chunkData             = 0
	chunkInit             = 1
	chunkInitAck          = 2
	chunkHeartbeat        = 4
	chunkAbort            = 6
	chunkShutdown         = 7
	chunkShutdownAck      = 8
	chunkCookieEcho       = 10
	chunkCookieAck        = 11
	chunkShutdownComplete = 14
)

// Tags that the two sides of an association chose: each sends the other's.
const clientTag, endpointTag = 0xc0ffee01, 0xe0ffee02

func init() {
	add(
		scenario{row: "sctp", name: "init", modes: every, run: func(s *scene) { s.passes(s.init()) }},
		scenario{row: "sctp", name: "association", modes: natModes, run: func(s *scene) {
			s.associate()
			s.passes(s.sctp(endpointTag, chunk(chunkData, 3, make([]byte, 1001)...)))
			s.returns(s.answer(s.sctp(clientTag, chunk(chunkData, 3, make([]byte, 1002)...))), sctpPort)
		}},
		scenario{row: "sctp", name: "shutdown", modes: natModes, run: func(s *scene) {
			s.associate()
			s.passes(s.sctp(endpointTag, chunk(chunkShutdown, 0, 0, 0, 0, 1)))
			s.returns(s.answer(s.sctp(clientTag, chunk(chunkShutdownAck, 0))), sctpPort)
			s.passes(s.sctp(endpointTag, chunk(chunkShutdownComplete, 0)))
		}},
		scenario{row: "sctp", name: "abort-and-begin-again", modes: natModes, run: func(s *scene) {
			s.associate()
			s.returns(s.answer(s.sctp(clientTag, chunk(chunkAbort, 0))), sctpPort)
			s.snat = netip.AddrPort{} // a new flow may have another port
			s.passes(s.init())
		}},
		scenario{row: "sctp", name: "heartbeats", modes: dsrModes, run: func(s *scene) {
			s.passes(s.init())
			s.passes(s.sctp(endpointTag, chunk(chunkCookieEcho, 0, 1, 2, 3, 4)))
			s.passes(s.sctp(endpointTag, chunk(chunkHeartbeat, 0, 0, 1, 0, 4)))
		}},
		scenario{row: "sctp", name: "crc-left-to-the-device", modes: []string{nat, l2dsr, ipip, gue}, run: func(s *scene) {
			p := s.init()
			frame := p.bytes(s)
			binary.LittleEndian.PutUint32(frame[p.l4Offset(frame)+8:], 0)
			s.sendFrame(frame)
			s.delivered(p)
		}},
		scenario{row: "sctp", name: "wrong-crc-stays-wrong", run: func(s *scene) {
			s.passes(s.init())
			p := s.sctp(endpointTag, chunk(chunkHeartbeat, 0, 0, 1, 0, 4))
			p.badCRC = 0x80000001
			s.passes(p)
		}},
		scenario{row: "sctp", name: "multihomed-is-refused", modes: every, run: func(s *scene) {
			s.sctpRefused(s.init(0, 5, 0, 8, 192, 0, 2, 99), clientTag, chunk(chunkAbort, 0))
		}, drops: drop("sctp-multihomed")},
		scenario{row: "sctp", name: "host-name-is-refused", run: func(s *scene) {
			s.sctpRefused(s.init(0, 11, 0, 5, 'a', 0, 0, 0), clientTag, chunk(chunkAbort, 0))
		}, drops: drop("sctp-multihomed")},
		scenario{row: "sctp", name: "its-own-address-may-be-named", modes: natModes, run: func(s *scene) {
			a := s.from.Addr().AsSlice()
			s.passes(s.init(append([]byte{0, map[int]byte{4: 5, 16: 6}[len(a)], 0, byte(4 + len(a))}, a...)...))
		}},
		scenario{row: "sctp", name: "of-no-association", modes: natModes, run: func(s *scene) {
			s.sctpRefused(s.sctp(9, chunk(chunkData, 3, make([]byte, 100)...)), 9, chunk(chunkAbort, 1))
		}, drops: drop("no-conntrack-entry")},
		scenario{row: "sctp", name: "shutdown-ack-of-no-association", run: func(s *scene) {
			s.sctpRefused(s.sctp(9, chunk(chunkShutdownAck, 0)), 9, chunk(chunkShutdownComplete, 1))
		}, drops: drop("no-conntrack-entry")},
		scenario{row: "sctp", name: "abort-of-no-association", run: func(s *scene) {
			s.send(s.sctp(9, chunk(chunkAbort, 0)))
		}, drops: drop("no-conntrack-entry")},
		scenario{row: "sctp", name: "init-with-a-tag", run: func(s *scene) {
			p := s.init()
			p.tag = 5
			s.send(p)
		}, drops: drop("bad-transport-header")},
		scenario{row: "sctp", name: "no-endpoint", service: "empty", run: func(s *scene) {
			p := s.init()
			s.send(p)
			s.refusedBy(p, portUnreachable, 0)
		}, drops: drop("no-endpoint")},
		scenario{row: "sctp", name: "to-an-snat-port", run: func(s *scene) {
			p := s.toSNAT(protoSCTP)
			p.payload = s.init().payload
			send(s, s.lab.fabric, p.bytes(s))
			if byFlow() {
				s.frame(s.lab.fabric) // of the kernel, as it has SCTP or not
				return
			}
			r := s.back(p)
			r.srcMAC, r.dstMAC = edge1MAC, mac(netlab.FabricNet, 11)
			r.tag, r.payload = clientTag, chunk(chunkAbort, 0)
			s.arrives(s.lab.fabric, r.bytes(s))
		}, byRange: true, drops: drop("no-conntrack-entry")},
	)
}

// chunk is an SCTP chunk, padded.
func chunk(kind, flags uint8, body ...byte) []byte {
	out := binary.BigEndian.AppendUint16([]byte{kind, flags}, uint16(4+len(body)))
	out = append(out, body...)
	return append(out, make([]byte, -len(out)&3)...)
}

// sctp is an SCTP packet of the client to the frontend.
func (s *scene) sctp(tag uint32, chunks []byte) packet {
	return packet{srcMAC: clientMAC, dstMAC: edge0MAC, tags: s.tags, src: s.from, dst: s.frontend(sctpPort),
		ttl: 64, id: 9, df: true, proto: protoSCTP, tag: tag, payload: chunks}
}

// init is the client's INIT, with these parameters.
func (s *scene) init(params ...byte) packet {
	body := binary.BigEndian.AppendUint32(nil, clientTag)
	return s.sctp(0, chunk(chunkInit, 0, append(append(body, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1), params...)...))
}

// associate makes an association.
func (s *scene) associate() {
	s.Helper()
	s.passes(s.init())
	s.returns(s.answer(s.sctp(clientTag, chunk(chunkInitAck, 0, make([]byte, 24)...))), sctpPort)
	s.passes(s.sctp(endpointTag, append(chunk(chunkCookieEcho, 0, 1, 2, 3, 4), chunk(chunkData, 3, make([]byte, 20)...)...)))
	s.returns(s.answer(s.sctp(clientTag, chunk(chunkCookieAck, 0))), sctpPort)
}

// sctpRefused sends the client's packet p and checks that Weir answers it with a
// chunk under a tag.
func (s *scene) sctpRefused(p packet, tag uint32, answer []byte) {
	s.Helper()
	s.send(p)
	r := s.back(p)
	r.tag, r.payload = tag, answer
	s.arrives(s.lab.client, r.bytes(s))
}

// sctpBytes is an SCTP packet from its common header on.
func (p packet) sctpBytes() []byte {
	b := binary.BigEndian.AppendUint16(nil, p.src.Port())
	b = binary.BigEndian.AppendUint16(b, p.dst.Port())
	b = binary.BigEndian.AppendUint32(b, p.tag)
	b = append(append(b, 0, 0, 0, 0), p.payload...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))^p.badCRC)
	return b
}
