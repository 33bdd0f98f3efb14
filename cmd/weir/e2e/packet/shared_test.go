package packet

import (
	"encoding/binary"
	"net/netip"

	"github.com/weirlb/weir/cmd/weir/api"
)

// Services whose only endpoint is the same. One of them loses it, and the others keep it.
func init() {
	shared, other := []endpoint{fabric(37)}, []endpoint{fabric(38)}
	sharedPod, otherPod := []endpoint{podAt(37)}, []endpoint{podAt(38)}
	for _, choice := range []string{"keep", "reset", "drop"} {
		definitions["shared-"+choice] = definition{endpoints: shared, pods: sharedPod, edit: annotated("weir.dev/on-endpoint-removal", choice)}
	}
	leaves := func(s *scene, f func()) {
		s.Helper()
		left := *s.service
		left.endpoints, left.pods = other, otherPod
		s.withService(&left, f)
	}
	add(
		scenario{row: "gone", name: "syn-of-a-kept-connection", modes: natModes, service: "shared-keep", lab: "no-grace", run: func(s *scene) {
			s.connect()
			syn := s.tcp(syn, 9000, 0, "")
			leaves(s, func() {
				s.send(syn)
				// Who gets the challenge can tell that there is no connection.
				got := s.frame(s.lab.client)
				challenge := s.back(syn)
				numbers := got[len(got)-16:]
				challenge.noWindow = true
				challenge.flags, challenge.seq, challenge.ack = ack, binary.BigEndian.Uint32(numbers), binary.BigEndian.Uint32(numbers[4:])
				s.same(s.lab.client, got, challenge.bytes(s))
				s.send(s.tcp(rst, challenge.ack, 0, ""))
				s.snat = netip.AddrPort{}
				s.passes(syn)
			})
		}, drops: map[string]int{"endpoint-removed": 2}},
		scenario{row: "gone", name: "syn-of-a-dropped-connection", modes: natModes, service: "shared-drop", lab: "no-grace", run: func(s *scene) {
			s.connect()
			leaves(s, func() {
				s.snat = netip.AddrPort{}
				s.passes(s.tcp(syn, 9000, 0, ""))
			})
		}},
		scenario{row: "gone", name: "shared-udp", modes: natModes, service: "shared-keep", lab: "no-grace", run: func(s *scene) {
			s.passes(s.udp("to the shared endpoint"))
			// The same client, by a Service that keeps the endpoint.
			sibling := *s
			sibling.nextPort()
			sibling.service = s.lab.services["shared-reset-"+s.mode]
			sibling.passes(sibling.udp("by another Service"))
			leaves(s, func() {
				s.snat = netip.AddrPort{}
				s.passes(s.udp("to the endpoint that the Service has"))
				sibling.passes(sibling.udp("goes on"))
			})
		}},
		scenario{row: "gone", name: "shared-reset", modes: natModes, service: "shared-reset", lab: "no-grace", run: func(s *scene) {
			s.connect()
			request := s.tcp(ack|psh, 1001, 5001, "GET /")
			leaves(s, func() {
				s.send(request)
				s.arrives(s.lab.client, s.resetOf(request).bytes(s))
			})
			endsReceiver(request, s.delivered) // to the endpoint that left
		}, drops: drop("endpoint-removed")},
		scenario{row: "gone", name: "shared-drop", modes: natModes, service: "shared-drop", lab: "no-grace", run: func(s *scene) {
			s.connect()
			leaves(s, func() {
				s.send(s.tcp(ack|psh, 1001, 5001, "GET /"))
				s.countedAtLeast("endpoint-removed", 1)
			})
		}, drops: drop("endpoint-removed")},
	)
}

// withService runs f while Weir serves the scene's Service as it is in with.
func (s *scene) withService(with *service, f func()) {
	s.Helper()
	was := s.service
	publish := func(v *service) {
		s.Helper()
		before, err := s.lab.status()
		if err != nil {
			s.Fatal(err)
		}
		s.publish(v, func(now *api.Status) bool { return now.Snapshot > before.Snapshot })
		s.service = v
	}
	publish(with)
	defer publish(was)
	f()
}
