package packet

func init() {
	add(
		scenario{row: "new", name: "udp", modes: natModes, run: func(s *scene) { s.passes(s.udp("a question")) }},
		scenario{row: "new", name: "tcp-syn", modes: natModes, run: func(s *scene) { s.passes(s.tcp(syn, 1000, 0, "")) }},
		scenario{row: "flow", name: "udp-again", modes: natModes, run: func(s *scene) {
			s.passes(s.udp("one"))
			s.passes(s.udp("two"))
		}},
		scenario{row: "answer", name: "udp", modes: natModes, run: func(s *scene) {
			s.passes(s.udp("a question"))
			a := s.answer(s.udp("its answer"))
			s.returns(a, udpPort)
		}},
		scenario{row: "answer", name: "tcp-handshake", modes: natModes, run: func(s *scene) {
			s.passes(s.tcp(syn, 1000, 0, ""))
			s.returns(s.answer(s.tcp(syn|ack, 5000, 1001, "")), tcpPort)
			s.passes(s.tcp(ack, 1001, 5001, ""))
			s.passes(s.tcp(ack|psh, 1001, 5001, "GET /"))
			s.returns(s.answer(s.tcp(ack|psh, 5001, 1006, "200 OK")), tcpPort)
		}},
		scenario{row: "no-flow", name: "ack-is-reset", modes: natModes, run: func(s *scene) {
			p := s.tcp(ack, 1000, 2000, "some data")
			s.send(p)
			r := s.back(p)
			r.flags, r.seq, r.ack = rst, 2000, 0
			s.arrives(s.lab.client, r.bytes(s))
		}, drops: drop("no-conntrack-entry")},
		scenario{row: "no-endpoint", name: "tcp-reset", modes: natModes, service: "empty", run: func(s *scene) {
			p := s.tcp(syn, 1000, 0, "")
			s.send(p)
			r := s.back(p)
			r.flags, r.seq, r.ack = rst|ack, 0, 1001
			s.arrives(s.lab.client, r.bytes(s))
		}, drops: drop("no-endpoint")},
		scenario{row: "no-local", name: "tcp", modes: every, service: "no-local", run: func(s *scene) {
			s.send(s.tcp(syn, 1000, 0, ""))
		}, drops: drop("no-local-endpoint")},
		scenario{row: "no-local", name: "udp", modes: natModes, service: "no-local", run: func(s *scene) {
			s.send(s.udp("a question"))
		}, drops: drop("no-local-endpoint")},
	)
}
