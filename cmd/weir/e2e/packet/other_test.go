package packet

import (
	"net/netip"

	"github.com/weirlb/weir/perf/netlab"
)

func init() {
	definitions["many"] = definition{endpoints: []endpoint{fabric(11), fabric(12), fabric(13), fabric(14), fabric(15)}}
	definitions["unresolved-too"] = definition{endpoints: []endpoint{fabric(52)}}
	definitions["silent"] = definition{endpoints: []endpoint{fabric(51)}}
	add(
		scenario{row: "no-endpoint", name: "udp-unreachable", modes: every, service: "empty", run: func(s *scene) {
			p := s.udp("anybody there?")
			s.send(p)
			s.refusedBy(p, portUnreachable, 0)
		}, drops: drop("no-endpoint")},

		scenario{row: "snat", name: "tcp-is-reset", run: func(s *scene) {
			p := s.toSNAT(protoTCP)
			p.flags, p.seq = syn, 77
			send(s, s.lab.fabric, p.bytes(s))
			if byFlow() {
				s.kernelResets(s.lab.fabric, p)
				return
			}
			r := s.back(p)
			r.srcMAC, r.dstMAC = edge1MAC, p.srcMAC
			r.flags, r.seq, r.ack = rst|ack, 0, 78
			s.arrives(s.lab.fabric, r.bytes(s))
		}, byRange: true, drops: drop("no-conntrack-entry")},
		// An answer may be to a packet that the kernel translated: the kernel, which knows
		// of no such packet here, refuses it.
		scenario{row: "snat", name: "tcp-answer-to-the-kernel", tags: untagged, run: func(s *scene) {
			p := s.toSNAT(protoTCP)
			p.flags, p.seq, p.ack = ack, 77, 99
			send(s, s.lab.fabric, p.bytes(s))
			s.kernelResets(s.lab.fabric, p)
		}},
		scenario{row: "snat", name: "tcp-rst-to-the-kernel", tags: untagged, run: func(s *scene) {
			p := s.toSNAT(protoTCP)
			p.flags = rst
			send(s, s.lab.fabric, p.bytes(s))
		}},
		scenario{row: "snat", name: "udp-to-the-kernel", tags: untagged, run: func(s *scene) {
			p := s.toSNAT(protoUDP)
			send(s, s.lab.fabric, p.bytes(s))
			s.kernelRefuses(s.lab.fabric, p)
		}},
		scenario{row: "snat", name: "of-another-endpoint", tags: untagged, run: func(s *scene) {
			s.passes(s.udp("a question"))
			a := s.answer(s.udp("from elsewhere"))
			a.src = netip.AddrPortFrom(fabric(12).addr(s.six), a.src.Port())
			send(s, s.lab.fabric, a.bytes(s))
			s.kernelRefuses(s.lab.fabric, a)
		}},

		// Only the first packet's way is in question here: with a tag the
		// kernel has no interface to ask on.
		scenario{row: "next-hop", name: "hold-full", service: "unresolved-too", tags: untagged, run: func(s *scene) {
			p := s.udp("many wait")
			s.send(p)
			s.asked(52)
			const sent = 280
			for range sent - 1 { // untraced: traces take longer than a packet waits
				must(s, s.lab.client.tap.Send(p.bytes(s)))
			}
			for _, unexpected := range s.lab.sentinels[1].pass(s) { // Weir has seen them all
				s.Error(unexpected)
			}
			// 128 wait, and as many at another worker.
			dropped := s.countedAtLeast("neighbor-queue-full", sent-2*128)
			if dropped > sent-100 { // not all places: packets to other next hops may wait, too
				s.Errorf("%d of %d packets are dropped: fewer than 100 wait", dropped, sent)
			}
			s.drops = map[string]int{"neighbor-queue-full": dropped}
			s.resolve(52)
			for range sent - dropped {
				s.delivered(p)
			}
			s.forget(52)
		}, drops: map[string]int{"neighbor-queue-full": 24}},
		scenario{row: "next-hop", name: "never-resolved", service: "silent", tags: untagged, run: func(s *scene) {
			p := s.udp("anybody there?")
			s.send(p)
			s.refusedBy(p, hostUnreachable, 0)
		}, drops: drop("neighbor-unresolved")},

		scenario{row: "other", name: "the-node's-own-tcp", tags: untagged, run: func(s *scene) {
			p := s.tcp(ack, 1, 9000, "")
			p.dst = netip.AddrPortFrom(s.node(), 22)
			s.send(p)
			s.kernelResets(s.lab.client, p)
		}},
		// The kernel's, which for IPv4 does not forward, and for IPv6 sends
		// it to the host veth: it is not Weir's there either.
		scenario{row: "other", name: "another-port-of-the-frontend", families: []int{ipv4}, run: func(s *scene) {
			p := s.tcp(syn, 1, 0, "")
			p.dst = netip.AddrPortFrom(p.dst.Addr(), 81)
			s.send(p)
		}},
		scenario{row: "other", name: "another-port-forwarded", families: []int{ipv6}, tags: untagged, run: func(s *scene) {
			p := s.tcp(syn, 1, 0, "")
			p.dst = netip.AddrPortFrom(p.dst.Addr(), 81)
			s.send(p)
		}, drops: drop("punt-loop")},
		// A VLAN is a network of its own, which has its own neighbors and routes: the
		// kernel's, which has no interface for it here.
		scenario{row: "other", name: "of-a-vlan-that-is-not-attached", modes: onFabric, tags: [][]uint16{{100}, {7, 100}}, run: func(s *scene) {
			s.send(s.udp("of another network"))
			s.send(s.tcp(syn, 1, 0, ""))
		}},
		scenario{row: "other", name: "another-ethertype", run: func(s *scene) {
			frame := s.udp("not IP at all").bytes(s)
			at := len(s.tags)*4 + 12
			frame[at], frame[at+1] = 0x88, 0xb5 // IEEE 802: for experiments
			s.sendFrame(frame)
		}},
	)
	// One endpoint for each mode: who is known not to answer is not waited for.
	for i, mode := range onFabric {
		host := 53 + uint8(i)
		definitions["unresolved-"+mode] = definition{endpoints: []endpoint{fabric(host)}}
		add(scenario{row: "next-hop", name: "held-until-resolved", modes: []string{mode}, service: "unresolved-" + mode, tags: untagged, run: func(s *scene) {
			p := s.udp("worth waiting")
			s.send(p)
			s.asked(host)
			s.resolve(host)
			s.delivered(p)
			s.forget(host)
		}})
	}
}

// toSNAT is a packet of an endpoint to a port of Weir's range that no flow
// has.
func (s *scene) toSNAT(proto uint8) packet {
	e := fabric(11)
	return packet{srcMAC: mac(e.network, e.host), dstMAC: edge1MAC, tags: s.tags, ttl: 64, proto: proto, df: true,
		src: netip.AddrPortFrom(e.addr(s.six), 999), dst: netip.AddrPortFrom(endpoint{netlab.FabricNet, 1, ""}.addr(s.six), 65500)}
}

// node is the edge's own address towards the clients.
func (s *scene) node() netip.Addr { return endpoint{netlab.ClientNet, 1, ""}.addr(s.six) }

// nodeFrontend is the node port of one of the Service's ports.
func (s *scene) nodeFrontend(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(s.node(), s.service.nodePort(port))
}

// asked waits until the edge asks for an endpoint's MAC address.
func (s *scene) asked(host uint8) {
	s.Helper()
	if !s.lab.fabric.asked(s, endpoint{netlab.FabricNet, host, ""}.addr(s.six)) {
		s.Fatal("the edge's kernel does not ask for the endpoint's MAC address")
	}
}

// resolve tells the edge an endpoint's MAC address, as its answer would.
func (s *scene) resolve(host uint8) {
	s.Helper()
	if err := s.lab.neighbor("eth1", netlab.FabricNet, host); err != nil {
		s.Fatal(err)
	}
}

// forget takes it back.
func (s *scene) forget(host uint8) {
	s.Helper()
	if err := s.lab.noNeighbor("eth1", netlab.FabricNet, host); err != nil {
		s.Fatal(err)
	}
}
