// Package packet tests the table of outcomes per kind of packet: each case sends crafted
// frames into a running `weir run` over veth, and compares every frame that comes out, byte
// by byte, with one rebuilt by gopacket. A frame for which no frame comes out must be
// counted under one drop reason.
//
// A case belongs to a row of the table, and is run for IPv4 and IPv6, without
// and with a priority tag, and in each forwarding mode that it names. To add one:
//
//	func init() {
//		add(scenario{row: "new", name: "udp", modes: every, run: func(s *scene) {
//			s.client.send(s.udp("hello"))
//			s.delivered(s.udp("hello"))
//		}})
//	}
//
// COVERAGE.md lists row, family, tag and mode with the name of the test; write
// it anew with
//
//	go test ./cmd/weir/e2e/packet -run Coverage -update
//
// The stations are frames only, no kernel answers for them:
//
//	client eth0 ---- eth0 edge eth1 ---- eth0 fabric: endpoints 10.20.0.x
//	                      cni0 ---- eth0 pod: endpoints 10.40.0.x, behind the edge's kernel
package packet
