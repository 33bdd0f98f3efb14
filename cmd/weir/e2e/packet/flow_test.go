package packet

import (
	"net/netip"
	"time"
)

// A TCP connection's life, and what belongs to no flow.
func init() {
	add(
		scenario{row: "flow", name: "tcp-close", modes: natModes, run: func(s *scene) {
			s.connect()
			s.passes(s.tcp(fin|ack, 1001, 5001, ""))
			s.returns(s.answer(s.tcp(fin|ack, 5001, 1002, "")), tcpPort)
			s.passes(s.tcp(ack, 1002, 5002, ""))
		}},
		scenario{row: "flow", name: "tcp-half-closed", modes: natModes, run: func(s *scene) {
			s.connect()
			s.passes(s.tcp(fin|ack, 1001, 5001, ""))
			s.returns(s.answer(s.tcp(ack|psh, 5001, 1002, "still sending")), tcpPort)
			s.passes(s.tcp(ack, 1002, 5014, ""))
		}},
		scenario{row: "flow", name: "tcp-reset-by-client", modes: natModes, run: func(s *scene) {
			s.connect()
			s.passes(s.tcp(rst, 1001, 0, ""))
		}},
		scenario{row: "flow", name: "tcp-reset-by-endpoint", modes: natModes, run: func(s *scene) {
			s.connect()
			s.returns(s.answer(s.tcp(rst, 5001, 0, "")), tcpPort)
		}},
		scenario{row: "flow", name: "syn-again", modes: natModes, run: func(s *scene) {
			s.passes(s.tcp(syn, 1000, 0, ""))
			s.passes(s.tcp(syn, 1000, 0, "")) // sent again: the same endpoint, as the same client
		}},
		// The first endpoint's answer is late: the kernel resets it, and the connection is with the second.
		scenario{row: "flow", name: "syn-again-then-both-answer", tags: untagged, service: "many", run: func(s *scene) {
			s.passes(s.tcp(syn, 1000, 0, ""))
			first, late := s.seen, s.answer(s.tcp(syn|ack, 9000, 1001, ""))
			time.Sleep(time.Second) // as a client waits at least
			s.snat = netip.AddrPort{}
			if s.passes(s.tcp(syn, 1000, 0, "")); s.seen == first {
				s.Errorf("both SYNs went to %v", first)
			}
			send(s, s.station(), late.bytes(s))
			s.kernelResets(s.station(), late)
			s.returns(s.answer(s.tcp(syn|ack, 5000, 1001, "")), tcpPort)
			s.passes(s.tcp(ack, 1001, 5001, ""))
			s.goesOn()
			send(s, s.station(), late.bytes(s))
			s.kernelResets(s.station(), late)
		}},
		// Packets from nowhere, with the connection's addresses and ports. In dnat the
		// kernel that is a pod's router sorts out those of the endpoint's side.
		scenario{row: "flow", name: "forged-resets", modes: []string{nat}, run: func(s *scene) {
			s.connect()
			s.passes(s.tcp(rst, 70_000_000, 0, ""))
			s.passes(s.tcp(rst|ack, 1<<30, 9, ""))
			s.returns(s.answer(s.tcp(rst, 90_000_000, 0, "")), tcpPort)
			s.goesOn()
		}},
		scenario{row: "flow", name: "forged-reset-with-a-bad-checksum", modes: natModes, run: func(s *scene) {
			s.connect()
			s.sendFrame(miscounted(s.tcp(rst, 1001, 0, "abc").bytes(s)))
			s.goesOn()
		}, drops: drop("bad-checksum")},
		scenario{row: "flow", name: "forged-reset-then-syn", modes: natModes, run: func(s *scene) {
			s.connect()
			s.passes(s.tcp(rst, 70_000_000, 0, ""))
			s.passes(s.tcp(syn, 80_000_000, 0, ""))
			s.returns(s.answer(s.tcp(ack, 5001, 1001, "")), tcpPort) // a challenge (RFC 5961)
			s.goesOn()
		}},
		scenario{row: "flow", name: "reset-then-syn", modes: natModes, run: func(s *scene) {
			s.connect()
			s.passes(s.tcp(rst, 1001, 0, ""))
			s.passes(s.tcp(syn, 80_000_000, 0, "")) // the same endpoint, as the same client
			s.returns(s.answer(s.tcp(syn|ack, 9000, 80_000_001, "")), tcpPort)
			s.passes(s.tcp(ack, 80_000_001, 9001, ""))
		}},
		scenario{row: "flow", name: "forged-close-of-both-sides-then-syn", modes: []string{nat}, run: func(s *scene) {
			s.connect()
			s.passes(s.tcp(fin|ack, 70_000_000, 80_000_000, ""))
			s.returns(s.answer(s.tcp(fin|ack, 80_000_000, 70_000_001, "")), tcpPort)
			s.passes(s.tcp(ack, 70_000_001, 80_000_001, ""))
			s.passes(s.tcp(syn, 90_000_000, 0, ""))
			s.goesOn()
		}},
		scenario{row: "flow", name: "same-endpoint-of-many", service: "many", run: func(s *scene) {
			s.passes(s.udp("the first packet chooses"))
			for range 20 {
				s.passes(s.udp("the others follow"))
			}
		}},
		scenario{row: "no-flow", name: "syn-ack-is-reset", modes: natModes, run: func(s *scene) {
			p := s.tcp(syn|ack, 1000, 2000, "")
			s.send(p)
			r := s.back(p)
			r.flags, r.seq, r.ack = rst, 2000, 0
			s.arrives(s.lab.client, r.bytes(s))
		}, drops: drop("no-conntrack-entry")},
		scenario{row: "no-flow", name: "fin-without-ack-is-reset", modes: natModes, run: func(s *scene) {
			p := s.tcp(fin, 1000, 0, "abc")
			s.send(p)
			r := s.back(p)
			r.flags, r.seq, r.ack = rst|ack, 0, 1004
			s.arrives(s.lab.client, r.bytes(s))
		}, drops: drop("no-conntrack-entry")},
		scenario{row: "no-flow", name: "rst-is-dropped", modes: natModes, run: func(s *scene) {
			s.send(s.tcp(rst, 1000, 0, ""))
		}, drops: drop("no-conntrack-entry")},
		// Of a connection that began before Weir: the kernel, which knows
		// nothing of it here, refuses it.
		scenario{row: "no-flow", name: "takeover-to-the-kernel", modes: natModes, lab: "takeover", tags: untagged, run: func(s *scene) {
			p := s.tcp(ack, 1000, 2000, "")
			p.dst = s.nodeFrontend(tcpPort)
			s.send(p)
			s.kernelResets(s.lab.client, p)
		}},
	)
}

// connect opens a TCP connection: client's next number 1001, endpoint's 5001.
func (s *scene) connect() {
	s.Helper()
	s.passes(s.tcp(syn, 1000, 0, ""))
	s.returns(s.answer(s.tcp(syn|ack, 5000, 1001, "")), tcpPort)
	s.passes(s.tcp(ack, 1001, 5001, ""))
}

// goesOn sends data both ways on the connection that connect opened, with the source
// that the endpoint knows.
func (s *scene) goesOn() {
	s.Helper()
	s.passes(s.tcp(ack|psh, 1001, 5001, "hello"))
	s.returns(s.answer(s.tcp(ack|psh, 5001, 1006, "good day")), tcpPort)
	s.passes(s.tcp(ack, 1006, 5009, ""))
}

// kernelResets checks that the edge's kernel refuses p, a TCP segment with an
// ACK, to the station that sent it.
func (s *scene) kernelResets(at *station, p packet) {
	s.Helper()
	got := s.frame(at)
	p.src, p.dst = p.dst, p.src
	p.srcMAC, p.dstMAC = p.dstMAC, p.srcMAC
	if p.flags&ack == 0 {
		p.flags, p.seq, p.ack = rst|ack, 0, p.seq+1
	} else {
		p.flags, p.seq, p.ack = rst, p.ack, 0
	}
	p.id, p.df, p.ttl, p.payload, p.tags = 0, !s.six, 64, nil, nil
	want := p.bytes(s)
	if s.six { // the kernel makes up a flow label
		copy(want[15:18], got[15:18])
	}
	s.same(at, got, want)
}
