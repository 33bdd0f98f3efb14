package packet

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/cmd/weir/api"
)

func annotated(annotation, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations[annotation] = value }
}

// policies are Services that limit or choose, by name. Their endpoints are
// nobody else's where it matters how many connections those have.
func init() {
	ranges := func(list ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = list }
	}
	four := func(first uint8) []endpoint {
		return []endpoint{fabric(first), fabric(first + 1), fabric(first + 2), fabric(first + 3)}
	}
	pods := func(first uint8) []endpoint {
		return []endpoint{podAt(first), podAt(first + 1), podAt(first + 2), podAt(first + 3)}
	}
	definitions["others-only"] = definition{edit: ranges("198.51.100.0/24", "2001:db8:ffff::/48")}
	definitions["clients-only"] = definition{edit: ranges("198.51.100.0/24", "203.0.113.0/24", "2001:db8::/64")}
	definitions["others-only-ipv4"] = definition{edit: ranges("198.51.100.0/24")}
	definitions["others-only-annotated"] = definition{edit: annotated(corev1.AnnotationLoadBalancerSourceRangesKey, "198.51.100.0/24, 2001:db8:ffff::/48")}
	definitions["sticky"] = definition{endpoints: four(11), pods: pods(11), edit: func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }}
	definitions["least-conn"] = definition{endpoints: four(20), pods: pods(20), edit: annotated("weir.dev/algorithm", "least-conn")}
	definitions["one-connection"] = definition{endpoints: []endpoint{fabric(24)}, pods: []endpoint{podAt(24)}, edit: annotated("weir.dev/max-connections", "1")}
	definitions["removed-reset"] = definition{endpoints: []endpoint{fabric(25)}, pods: []endpoint{podAt(25)}, edit: annotated("weir.dev/on-endpoint-removal", "reset")}
	definitions["removed-drop"] = definition{endpoints: []endpoint{fabric(26)}, pods: []endpoint{podAt(26)}, edit: annotated("weir.dev/on-endpoint-removal", "drop")}
	definitions["removed-keep"] = definition{endpoints: []endpoint{fabric(27)}, pods: []endpoint{podAt(27)}}
	setUps["no-grace"] = setUp{conntrack: "takeoverSeconds: 0, endpointRemovalGraceSeconds: 0"}
}

func init() {
	outside := func(s *scene) { s.send(s.udp("from outside")) }
	add(
		scenario{row: "source-range", name: "outside-udp", modes: every, service: "others-only", run: outside, drops: drop("source-range")},
		scenario{row: "source-range", name: "outside-tcp", modes: every, service: "others-only", run: func(s *scene) {
			s.send(s.tcp(syn, 1000, 0, ""))
		}, drops: drop("source-range")},
		scenario{row: "source-range", name: "outside-without-a-flow", modes: every, service: "others-only", run: func(s *scene) {
			s.send(s.tcp(ack, 1000, 2000, "no RST either"))
		}, drops: drop("source-range")},
		scenario{row: "source-range", name: "outside-by-annotation", modes: every, service: "others-only-annotated", run: outside, drops: drop("source-range")},
		scenario{row: "source-range", name: "outside-a-node-port", modes: natModes, service: "others-only", run: func(s *scene) {
			p := s.udp("node ports have no ranges")
			p.dst = s.nodeFrontend(udpPort)
			s.send(p)
			p.dst = s.frontend(udpPort)
			s.delivered(p)
		}},
		scenario{row: "source-range", name: "inside", modes: every, service: "clients-only", run: func(s *scene) { s.passes(s.udp("from inside")) }},
		scenario{row: "source-range", name: "no-range-of-the-family", modes: every, service: "others-only-ipv4", families: []int{ipv6}, run: func(s *scene) {
			s.passes(s.udp("open"))
		}},
		scenario{row: "policy", name: "affinity", modes: every, service: "sticky", run: func(s *scene) {
			s.passes(s.tcp(syn, 1000, 0, ""))
			first := s.seen
			for range 8 {
				s.nextPort()
				if s.passes(s.tcp(syn, 1000, 0, "")); s.seen != first {
					s.Errorf("the client went to %v, then to %v", first, s.seen)
				}
			}
		}},
		scenario{row: "policy", name: "least-connections", modes: every, service: "least-conn", run: func(s *scene) {
			used := map[endpoint]int{}
			for range 2 * len(s.service.hosts()) {
				s.nextPort()
				s.passes(s.tcp(syn, 1000, 0, ""))
				used[s.seen]++
			}
			for e, n := range used {
				if n != 2 {
					s.Errorf("%d connections to %v of %v", n, e, used)
				}
			}
		}},
		scenario{row: "policy", name: "connection-limit", modes: every, service: "one-connection", run: func(s *scene) {
			for range 3 { // SYNs alone take no room
				s.passes(s.tcp(syn, 1000, 0, ""))
				s.nextPort()
			}
			s.completes()
			first := s.from
			s.nextPort()
			s.send(s.tcp(syn, 1000, 0, ""))
			s.countedAtLeast("connection-limit", 1)
			s.from = first // ends, and leaves room
			s.passed(s.tcp(rst, 1001, 0, ""))
			s.nextPort()
			s.completes()
			s.passes(s.tcp(rst, 1001, 0, ""))
		}, drops: drop("connection-limit")},
		scenario{row: "gone", name: "reset", modes: natModes, service: "removed-reset", lab: "no-grace", run: func(s *scene) {
			s.connect()
			request, answer := s.tcp(ack|psh, 1001, 5001, "GET /"), s.answer(s.tcp(ack|psh, 5001, 1001, "200 OK"))
			s.withoutEndpoints(func() {
				s.send(request)
				s.arrives(s.lab.client, s.resetOf(request).bytes(s))
				endsReceiver(request, s.delivered)
				send(s, s.station(), answer.bytes(s))
				r := s.resetOf(answer)
				if s.seen.isPod() {
					r.ttl-- // the kernel
				}
				s.arrives(s.station(), r.bytes(s))
				endsReceiver(answer, func(r packet) { s.arrives(s.lab.client, s.translatedBack(r, tcpPort).bytes(s)) })
			})
		}, drops: map[string]int{"endpoint-removed": 2}},
		scenario{row: "gone", name: "drop", modes: natModes, service: "removed-drop", lab: "no-grace", run: func(s *scene) {
			s.connect()
			s.withoutEndpoints(func() {
				s.send(s.tcp(ack|psh, 1001, 5001, "GET /"))
				send(s, s.station(), s.answer(s.tcp(ack|psh, 5001, 1001, "200 OK")).bytes(s))
				s.countedAtLeast("endpoint-removed", 2)
			})
		}, drops: map[string]int{"endpoint-removed": 2}},
		scenario{row: "gone", name: "keep", modes: natModes, service: "removed-keep", lab: "no-grace", run: func(s *scene) {
			s.connect()
			s.withoutEndpoints(func() {
				s.passes(s.tcp(ack|psh, 1001, 5001, "GET /"))
				s.returns(s.answer(s.tcp(ack|psh, 5001, 1006, "200 OK")), tcpPort)
			})
		}},
	)
	for i, mode := range dsrModes {
		for j, choice := range []string{"reset", "drop", "keep"} {
			name := "removed-" + choice + "-" + mode
			definitions[name] = definition{endpoints: []endpoint{fabric(28 + uint8(3*i+j))}, edit: annotated("weir.dev/on-endpoint-removal", choice)}
			c := scenario{row: "gone", name: choice + "-of-dsr", modes: []string{mode}, service: name, lab: "no-grace", run: func(s *scene) { s.goneDSR(choice) }}
			if choice != "keep" {
				c.drops = drop("endpoint-removed")
			}
			add(c)
		}
	}
	elsewhere["denied"] = [2]string{"lb/worker", "TestDenied"}
	elsewhere["prefix-rate"] = [2]string{"lb/worker", "TestPrefixRate"}
	elsewhere["connection-rate"] = [2]string{"lb/worker", "TestConnectionRate"}
}

// goneDSR has a client go on whose endpoint is gone and answers past Weir.
func (s *scene) goneDSR(choice string) {
	s.passes(s.tcp(syn, 1000, 0, ""))
	s.passes(s.tcp(ack, 1001, 5001, ""))
	request := s.tcp(ack|psh, 1001, 5001, "GET /")
	s.withoutEndpoints(func() {
		switch choice {
		case "keep":
			s.passes(request)
		case "reset":
			s.send(request)
			s.arrives(s.lab.client, s.resetOf(request).bytes(s))
			endsReceiver(request, s.delivered)
		default:
			s.send(request)
			s.countedAtLeast("endpoint-removed", 1)
		}
	})
}

// completes is connect in every mode: in some the endpoint's answers go another way.
func (s *scene) completes() {
	s.Helper()
	if slices.Contains(dsrModes, s.mode) {
		s.passes(s.tcp(syn, 1000, 0, ""))
		s.passes(s.tcp(ack, 1001, 5001, ""))
		return
	}
	s.connect()
}

// nextPort has the client use another port, for another flow.
func (s *scene) nextPort() {
	s.from = netip.AddrPortFrom(s.from.Addr(), s.from.Port()+1000)
	s.snat = netip.AddrPort{}
}

// passed sends a packet of an earlier flow of the client, which gets to its
// endpoint.
func (s *scene) passed(p packet) {
	s.Helper()
	s.snat = netip.AddrPort{}
	s.passes(p)
}

// resetOf is the RST that p's sender gets from Weir, by p's own ACK number.
func (s *scene) resetOf(p packet) packet {
	r := s.back(p)
	r.srcMAC, r.dstMAC = p.dstMAC, p.srcMAC
	r.flags, r.seq, r.ack = rst, p.ack, 0
	return r
}

// endsReceiver checks the RSTs to the other side of a connection that ends with data p: that side may have
// p, or not.
func endsReceiver(p packet, check func(packet)) {
	r := p
	r.flags, r.payload, r.noWindow = rst|ack, nil, true
	check(r)
	r.seq += uint32(len(p.payload))
	check(r)
}

// withoutEndpoints runs f while the Service has none.
func (s *scene) withoutEndpoints(f func()) {
	s.Helper()
	gone := *s.service
	gone.empty = true
	before, err := s.lab.status()
	if err != nil {
		s.Fatal(err)
	}
	s.publish(&gone, func(now *api.Status) bool { return now.Endpoints < before.Endpoints })
	defer s.publish(s.service, func(now *api.Status) bool { return now.Endpoints == before.Endpoints })
	f()
}

// publish writes a Service's manifest anew, and waits until Weir serves it,
// which done knows by the status.
func (s *scene) publish(v *service, done func(*api.Status) bool) {
	s.Helper()
	dir := filepath.Join(s.lab.Dir(), "manifests")
	next := filepath.Join(dir, ".next")
	if err := os.WriteFile(next, v.manifest(s), 0o644); err != nil {
		s.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, v.name+".yaml")); err != nil {
		s.Fatal(err)
	}
	s.until(done)
}

// until waits until Weir's status is as done wants it.
func (s *scene) until(done func(*api.Status) bool) {
	s.Helper()
	deadline := time.Now().Add(within)
	for {
		status, err := s.lab.status()
		if err == nil && done(status) {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("Weir does not see the change: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
