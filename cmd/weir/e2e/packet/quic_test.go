package packet

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weirlb/weir/cmd/weir/api"
)

// Services whose QUIC connection IDs name the server in the bytes 1 to 4.
func init() {
	follow := func(value string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Annotations["weir.dev/quic-cid"] = value }
	}
	several := func(first uint8) []endpoint {
		var out []endpoint
		for host := first; host < first+4; host++ {
			out = append(out, fabric(host))
		}
		return out
	}
	definitions["quic-lb"] = definition{endpoints: several(11), edit: follow("quic-lb,4")}
	definitions["quic-offset"] = definition{endpoints: several(11), edit: follow("3,2")}
	definitions["quic-pod"] = definition{endpoints: []endpoint{pod}, edit: follow("quic-lb,4")}
	definitions["quic-not-followed"] = definition{endpoints: several(11)}
}

// tries is how many tuples a case looks at: that all choose the same of four
// endpoints by chance is out of the question.
const tries = 12

// serverID is a connection ID of a server of the scene's own; nobody has used the
// name before.
func (s *scene) serverID() string { return fmt.Sprintf("\x05%04d nonce", s.lab.next%10000) }

// initial is a datagram with a long header, moved one of the client with a short
// header.
func initial(dst, src string) string {
	return fmt.Sprintf("\xc3\x00\x00\x00\x01%c%s%c%s and so on", len(dst), dst, len(src), src)
}

func moved(id string) string { return "\x4a" + id + " and so on" }

// handshake opens a QUIC connection, in which the endpoint calls itself id.
func (s *scene) handshake(id string) endpoint {
	s.Helper()
	first := s.udp(initial("client's choice", "client"))
	s.passes(first)
	a := s.answer(first)
	a.payload = []byte(initial("client", id))
	s.returns(a, udpPort)
	return s.seen
}

// moves has the client go on from another port and address.
func (s *scene) moves(i int) {
	s.nextPort()
	if a := s.from.Addr(); i%2 == 1 {
		s.from = netip.AddrPortFrom(a.Next(), s.from.Port())
	} else if i > 0 {
		s.from = netip.AddrPortFrom(a.Prev(), s.from.Port())
	}
}

// goesTo sends a datagram from many tuples and says to how many endpoints it went.
func (s *scene) goesTo(payload string) map[endpoint]int {
	s.Helper()
	to := map[endpoint]int{}
	for i := range tries {
		s.moves(i)
		s.passes(s.udp(payload))
		to[s.seen]++
	}
	return to
}

// follows checks that a datagram goes to the endpoint from wherever it comes.
func (s *scene) follows(at endpoint, payload string) {
	s.Helper()
	if to := s.goesTo(payload); to[at] != tries {
		s.Errorf("the server is %v, went to %v", at, to)
	}
}

// spreads checks that a datagram has the usual choice.
func (s *scene) spreads(payload string) {
	s.Helper()
	if to := s.goesTo(payload); len(to) < 2 {
		s.Errorf("went to %v", to)
	}
}

func init() {
	quic := func(name, service string, run func(*scene)) {
		add(scenario{row: "quic", name: name, service: service, run: run})
	}
	quic("moved-client", "quic-lb", func(s *scene) {
		id := s.serverID()
		s.follows(s.handshake(id), moved(id))
	})
	quic("moved-client-long-header", "quic-lb", func(s *scene) {
		id := s.serverID()
		s.follows(s.handshake(id), initial(id, "client"))
	})
	quic("another-id-of-the-server", "quic-lb", func(s *scene) {
		id := s.serverID()
		s.follows(s.handshake(id), moved(id[:5]+"other"))
	})
	quic("moved-client-by-offset", "quic-offset", func(s *scene) {
		id := "\xe0.." + string([]byte{byte(s.lab.next >> 8), byte(s.lab.next)}) // no mark here
		s.follows(s.handshake(id), moved("xyz"+id[3:]))
	})
	quic("answers-to-the-moved-client", "quic-lb", func(s *scene) {
		id := s.serverID()
		at := s.handshake(id)
		for i := range tries {
			s.moves(i)
			p := s.udp(moved(id))
			s.passes(p)
			if s.seen != at {
				s.Fatalf("the server is %v, went to %v", at, s.seen)
			}
			a := s.answer(p)
			a.payload = []byte(moved("client"))
			s.returns(a, udpPort)
		}
	})
	quic("unknown-id", "quic-lb", func(s *scene) { s.spreads(moved("\x05????")) })
	quic("no-configuration", "quic-lb", func(s *scene) {
		id := "\xe5" + s.serverID()[1:]
		s.handshake(id)
		s.spreads(moved(id))
	})
	quic("short-datagram", "quic-lb", func(s *scene) {
		s.handshake(s.serverID())
		s.spreads("\x4a\x05")
	})
	quic("not-quic", "quic-lb", func(s *scene) {
		id := s.serverID()
		s.handshake(id)
		s.spreads("\x0a" + id)
	})
	quic("version-negotiation", "quic-lb", func(s *scene) {
		id := s.serverID()
		first := s.udp(initial(id, "client"))
		s.passes(first)
		a := s.answer(first)
		a.payload = fmt.Appendf(nil, "\x80\x00\x00\x00\x00\x06client%c%s\x00\x00\x00\x01", len(id), id)
		s.returns(a, udpPort)
		s.spreads(moved(id))
	})
	quic("not-asked-for", "quic-not-followed", func(s *scene) {
		id := s.serverID()
		s.handshake(id)
		s.spreads(moved(id))
	})
	quic("terminating", "quic-lb", func(s *scene) {
		id := s.serverID()
		at := s.handshake(id)
		s.leaving(at, func() {
			s.follows(at, moved(id))
			if to := s.goesTo(moved("\x05????")); to[at] != 0 {
				s.Errorf("new clients go to %v, which is terminating: %v", at, to)
			}
		})
	})
	add(scenario{row: "quic", name: "moved-client-of-a-pod", service: "quic-pod", modes: natModes, tags: untagged, run: func(s *scene) {
		id := s.serverID()
		s.follows(s.handshake(id), moved(id))
	}})
	add(scenario{row: "quic", name: "answers-do-not-pass", service: "quic-lb", modes: dsrModes, run: func(s *scene) { s.spreads(moved("\x05????")) }})
}

// leaving runs f while an endpoint of the Service is terminating.
func (s *scene) leaving(e endpoint, f func()) {
	s.Helper()
	changed := *s.service
	changed.editSlices = func(slice *discoveryv1.EndpointSlice) {
		no, yes := false, true
		for i := range slice.Endpoints {
			if slice.Endpoints[i].Addresses[0] == e.addr(s.six).String() {
				slice.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
			}
		}
	}
	s.publishNext(&changed)
	defer s.publishNext(s.service)
	f()
}

// publishNext writes a Service's manifest anew, and waits for the next snapshot.
func (s *scene) publishNext(v *service) {
	s.Helper()
	before, err := s.lab.status()
	if err != nil {
		s.Fatal(err)
	}
	s.publish(v, func(now *api.Status) bool { return now.Snapshot != before.Snapshot })
}
