package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirlb/weir/perf/netlab"
)

// Fragments go where the first one of their datagram goes. In dnat the kernel,
// which marks connections, puts them together, and sends the same pieces on
// once it has all.
func init() {
	add(
		scenario{row: "fragment", name: "udp-both-ways", modes: natModes, run: func(s *scene) {
			p := s.long()
			s.fragmented(p, 0, 1, 2)
			s.fragmentedBack(p)
		}},
		scenario{row: "fragment", name: "udp-past-weir", modes: dsrModes, run: func(s *scene) {
			s.fragmented(s.long(), 0, 1, 2)
			s.passes(s.udp("and a whole one"))
		}},
		scenario{row: "fragment", name: "tcp-past-weir", modes: dsrModes, run: func(s *scene) {
			s.passes(s.tcp(syn, 1000, 0, ""))
			p := s.tcp(ack|psh, 1001, 5001, strings.Repeat("fragmented ", 200))
			p.df = false
			s.fragmented(p, 0, 1, 2)
		}},
		scenario{row: "fragment", name: "the-last-comes-first", modes: every, run: func(s *scene) {
			s.fragmented(s.long(), 2, 1, 0)
		}},
		scenario{row: "fragment", name: "the-first-in-the-middle", modes: onFabric, run: func(s *scene) {
			p := s.long()
			s.restOf(p, s.fragmented(p, 1, 0))
		}},
		scenario{row: "fragment", name: "to-a-node-port", modes: natModes, run: func(s *scene) {
			p := s.long()
			p.dst = s.nodeFrontend(udpPort)
			s.fragmented(p, 0, 1, 2)
		}},
		// What is to the node's address may be the kernel's: it keeps what
		// comes before it can be told.
		scenario{row: "fragment", name: "to-a-node-port-too-early", run: func(s *scene) {
			p := s.long()
			p.dst = s.nodeFrontend(udpPort)
			f := s.cut(p, 7, 0, 800, 1600)
			s.sendFrame(f[2])
			s.fragmented(p, 0, 1)
		}},
		scenario{row: "fragment", name: "tcp", modes: natModes, run: func(s *scene) {
			s.connect()
			p := s.tcp(ack|psh, 1001, 5001, strings.Repeat("fragmented ", 200))
			p.df = false
			s.fragmented(p, 0, 1, 2)
		}},
		scenario{row: "fragment", name: "duplicate", modes: onFabric, run: func(s *scene) {
			p := s.long()
			got := s.fragmented(p, 0, 1)
			s.sendFrame(s.cut(p, 7, 0, 800, 1600)[1])
			s.restOf(p, got)
		}, drops: drop("fragment-overlap")},
		scenario{row: "fragment", name: "overlap-ends-the-datagram", modes: onFabric, run: func(s *scene) {
			p := s.long()
			s.fragmented(p, 0, 1)
			s.sendFrame(s.cut(p, 7, 0, 1592)[1])
			s.sendFrame(s.cut(p, 7, 0, 800, 1600)[2])
		}, drops: map[string]int{"fragment-overlap": 2}},
		scenario{row: "fragment", name: "tcp-header-cut", modes: every, run: func(s *scene) {
			p := s.tcp(syn, 1000, 0, strings.Repeat("x", 40))
			s.sendFrame(s.cut(p, 7, 0, 16)[0])
		}, drops: drop("tiny-fragment")},
		scenario{row: "fragment", name: "tcp-flags-in-the-second", modes: every, run: func(s *scene) {
			p := s.tcp(syn, 1000, 0, strings.Repeat("x", 40))
			s.sendFrame(s.cut(p, 7, 0, 8)[1])
		}, drops: drop("tiny-fragment")},
		scenario{row: "fragment", name: "not-of-eight-bytes", modes: every, run: func(s *scene) {
			s.sendFrame(s.cut(s.long(), 7, 0, 804)[0])
		}, drops: drop("bad-fragment")},
		scenario{row: "fragment", name: "beyond-the-longest-datagram", modes: every, run: func(s *scene) {
			frame := s.cut(s.long(), 7, 0, 800)[1]
			s.sendFrame(s.place(frame, 65528, false))
		}, drops: drop("bad-fragment")},
		scenario{row: "fragment", name: "of-what-was-refused", modes: every, service: "no-local", run: func(s *scene) {
			for _, f := range s.cut(s.long(), 7, 0, 800, 1600) {
				s.sendFrame(f)
			}
		}, drops: map[string]int{"no-local-endpoint": 1, "orphan-fragment": 2}},
		scenario{row: "fragment", name: "ttl-1-of-a-later-one", modes: onFabric, run: func(s *scene) {
			p := s.long()
			s.fragmented(p, 0, 1)
			p.ttl = 1
			s.sendFrame(s.cut(p, 7, 0, 800, 1600)[2])
		}, drops: drop("ttl-exceeded")},
		scenario{row: "fragment", name: "first-never-comes", tags: untagged, run: func(s *scene) {
			s.sendFrame(s.cut(s.long(), 7, 0, 800)[1])
		}, drops: drop("fragment-expired")},
		scenario{row: "fragment", name: "too-many-wait", tags: untagged, run: func(s *scene) {
			frame := s.cut(s.long(), 7, 0, 800, 808)[1]
			for n := range 65 { // untraced: traces take longer than a fragment waits
				must(s, s.lab.client.tap.Send(s.place(frame, 800+8*n, true)))
			}
		}, drops: map[string]int{"fragment-limit": 1, "fragment-expired": 64}},
		scenario{row: "fragment", name: "the-node's-own", tags: untagged, run: func(s *scene) {
			// Weir's datagram and the kernel's, to the same address and with
			// the same identification, one in the other.
			ours, own := s.long(), s.long()
			ours.dst, own.dst = s.nodeFrontend(udpPort), netip.AddrPortFrom(s.node(), 999)
			own.src = netip.AddrPortFrom(endpoint{netlab.ClientNet, 2, ""}.addr(s.six), 999)
			f := s.cut(own, 7, 0, 800, 1600)
			s.sendFrame(f[0])
			got := s.fragmented(ours, 0, 1)
			s.sendFrame(f[1])
			s.restOf(ours, got)
			s.sendFrame(f[2])
			s.kernelPutTogether(own)
		}},
	)
}

// long is a datagram of the client that is to be sent in fragments.
func (s *scene) long() packet { return s.udp(strings.Repeat("in pieces ", 200)) }

// cut is p in fragments with an identification, from the given offsets on.
func (s *scene) cut(p packet, id uint32, offsets ...int) [][]byte {
	s.Helper()
	frame := p.bytes(s)
	return s.cutFrame(frame, p.l4Offset(frame), id, offsets...)
}

// cutFrame is a frame in fragments; head is where its payload begins.
func (s *scene) cutFrame(frame []byte, head int, id uint32, offsets ...int) [][]byte {
	l3 := ipOffset(frame)
	var out [][]byte
	for i, from := range offsets {
		end, more := len(frame), i+1 < len(offsets)
		if more {
			end = head + offsets[i+1]
		}
		f := append(frame[:head:head], frame[head+from:end]...)
		if s.six {
			f = extended(f, l3, 44, make([]byte, 8))
			binary.BigEndian.PutUint32(f[head+4:], id)
		} else {
			binary.BigEndian.PutUint16(f[l3+2:], uint16(len(f)-l3))
			binary.BigEndian.PutUint16(f[l3+4:], uint16(id))
		}
		out = append(out, s.place(f, from, more))
	}
	return out
}

// place is a fragment with another place in its datagram.
func (s *scene) place(frame []byte, offset int, more bool) []byte {
	f, l3 := bytes.Clone(frame), ipOffset(frame)
	if s.six {
		w := uint16(offset)
		if more {
			w |= 1
		}
		binary.BigEndian.PutUint16(f[l3+42:], w)
		return f
	}
	w := uint16(offset / 8)
	if more {
		w |= 0x2000
	}
	ip := f[l3 : l3+20]
	binary.BigEndian.PutUint16(ip[6:], w)
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^sum16(ip))
	return f
}

// identification is that of a fragment.
func (s *scene) identification(frame []byte) uint32 {
	l3 := ipOffset(frame)
	if s.six {
		return binary.BigEndian.Uint32(frame[l3+44:])
	}
	return uint32(binary.BigEndian.Uint16(frame[l3+4:]))
}

// fragmented sends fragments of p, by number, and checks that the first is
// delivered, then those that came before it, then the others. It returns the
// first as delivered.
func (s *scene) fragmented(p packet, order ...int) []byte {
	s.Helper()
	f := s.cut(p, 7, 0, 800, 1600)
	for _, n := range order {
		s.sendFrame(f[n])
	}
	if s.mode == dnat {
		slices.Sort(order) // so does the kernel
	}
	first := s.frame(s.station())
	s.same(s.station(), first, s.wantedPiece(p, 0, first, first))
	for _, n := range order {
		if n != 0 {
			got := s.frame(s.station())
			s.same(s.station(), got, s.wantedPiece(p, n, got, first))
		}
	}
	return first
}

// restOf sends the last fragment of p, of which the first was delivered.
func (s *scene) restOf(p packet, first []byte) {
	s.Helper()
	s.sendFrame(s.cut(p, 7, 0, 800, 1600)[2])
	got := s.frame(s.station())
	s.same(s.station(), got, s.wantedPiece(p, 2, got, first))
}

// wantedPiece is fragment n of p as the endpoint is to get it, which it got,
// and the first one, as they came. In a tunnel each has an outer header of its
// own.
func (s *scene) wantedPiece(p packet, n int, got, first []byte) []byte {
	s.Helper()
	p.tags = nil
	if s.mode == ipip || s.mode == gue {
		s.tunnel(got)
		return s.wrap(p, s.cut(s.requested(p), 7, 0, 800, 1600)[n][p.l3():], got)
	}
	plain, head := bytes.Clone(first), ipOffset(first)+20
	if s.six {
		head += 20
		plain = slices.Delete(plain, head, head+8)
	}
	return s.cutFrame(wanted[s.mode](s, p, plain), head, s.identification(first), 0, 800, 1600)[n]
}

// fragmentedBack sends the endpoint's answer to p in fragments and checks that
// the client gets it.
func (s *scene) fragmentedBack(p packet) {
	s.Helper()
	a := s.answer(p)
	for _, f := range s.cut(a, 8, 0, 800, 1600) {
		send(s, s.station(), f)
	}
	var id uint32
	for n := range 3 {
		got := s.frame(s.lab.client)
		if n == 0 {
			id = s.identification(got)
		}
		s.same(s.lab.client, got, s.cut(s.translatedBack(a, udpPort), id, 0, 800, 1600)[n])
	}
}

// kernelPutTogether checks that the edge's kernel got all of p, a datagram that
// nobody there waits for: it says so, of the whole.
func (s *scene) kernelPutTogether(p packet) {
	s.Helper()
	got, whole := s.frame(s.lab.client), p.bytes(s)
	proto, next, at := byte(protoICMP), p.l3()+9, p.l3()+20
	if s.six {
		proto, next, at = protoICMPv6, p.l3()+6, p.l3()+40
	}
	if got[next] != proto || !bytes.Contains(got[at+8:], whole[p.l4Offset(whole):][:400]) {
		s.Fatalf("not the kernel's error about the datagram: %s", summary(got))
	}
}
