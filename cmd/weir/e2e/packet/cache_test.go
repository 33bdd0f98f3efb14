package packet

import (
	"bytes"
	"net"
	"os"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// arrangement is who forwards packets of established flows: "off" is the packet loop, "xdp"
// and "tcx" the kernel, at that hook of the attached interfaces. The table runs in each; the
// environment variable WEIR_CACHE chooses one.
var arrangement = arrangementOf(os.Getenv("WEIR_CACHE"))

func arrangementOf(name string) string {
	if name == "" {
		return "off"
	}
	return name
}

// byFlow reports whether packets to SNAT addresses are told by flow: those without one are the
// kernel's.
func byFlow() bool { return arrangement != "off" }

// cacheLines are the lines of the configuration for the arrangement.
func cacheLines() string {
	if arrangement == "off" {
		return "flowCache: {mode: \"off\"}\ninterfaces: [{name: eth0}, {name: eth1}]"
	}
	return "flowCache: {mode: auto}\ninterfaces: [{name: eth0, hook: " + arrangement +
		"}, {name: eth1, hook: " + arrangement + "}]"
}

// arrange prepares a station: XDP programs can send to a veth only if its peer polls.
func arrange(n *netlab.Namespace) error {
	if arrangement != "xdp" {
		return nil
	}
	return n.SetOffloads("eth0", map[string]bool{"rx-gro": true})
}

// lowerMTU is above narrowMTU: when a link has the MTU of an IPv6 route and gets a larger MTU, the
// kernel gives that to the route, too.
const lowerMTU = 1450

// movedMAC is another address of a neighbor.
var movedMAC = net.HardwareAddr{2, 0, 0, 0, 99, 99}

func init() {
	definitions["moving"] = definition{endpoints: []endpoint{fabric(35)}}
	definitions["routed"] = definition{endpoints: []endpoint{behindRouter(5)}}
	definitions["routed-narrow"] = definition{endpoints: []endpoint{behindRouter(6)}}
	definitions["cached-removed"] = definition{endpoints: []endpoint{fabric(38)}, pods: []endpoint{podAt(38)}, edit: annotated("weir.dev/on-endpoint-removal", "reset")}
	definitions["cached-two"] = definition{endpoints: []endpoint{fabric(11), fabric(12)}, pods: []endpoint{podAt(11), podAt(12)}}
	definitions["cached-kept"] = definition{endpoints: []endpoint{fabric(34)}, pods: []endpoint{podAt(34)}}
	definitions["cached-ranges"] = definition{}
	definitions["withdrawn"] = definition{endpoints: []endpoint{fabric(36)}, pods: []endpoint{podAt(36)}}
	add(
		scenario{row: "cached", name: "tcp", modes: natModes, run: func(s *scene) { s.repeats(s.cachedTCP()) }},
		scenario{row: "cached", name: "udp", modes: unwrapped, run: func(s *scene) { s.repeats(s.cachedUDP()) }},
		scenario{row: "cached", name: "udp-in-a-tunnel", modes: tunnels, run: func(s *scene) {
			s.repeatsInTunnel(func() { s.passes(s.udp("there")) })
		}},
		scenario{row: "cached", name: "tcp-in-a-tunnel", modes: tunnels, run: func(s *scene) {
			s.passes(s.tcp(syn, 1000, 0, ""))
			s.passes(s.tcp(ack, 1001, 5001, ""))
			s.repeatsInTunnel(func() { s.passes(s.tcp(ack|psh, 1001, 5001, "GET /")) })
			s.passes(s.tcp(ack|fin, 1006, 5001, ""))
			s.passes(s.tcp(ack, 1007, 5002, ""))
		}},
		scenario{row: "cached", name: "one-byte-too-large-for-a-tunnel", modes: tunnels, tags: untagged, families: []int{ipv4}, lab: "jumbo", run: func(s *scene) {
			s.repeatsInTunnel(func() { s.passes(s.udp("there")) })
			largest := s.sized(s.room(linkMTU))
			s.repeatsInTunnel(func() { s.passes(largest) })
			p := s.sized(s.room(linkMTU) + 1)
			s.send(p)
			s.refusedBy(p, tooBig, uint32(s.room(linkMTU)))
		}, drops: drop("larger-than-mtu")},
		scenario{row: "cached", name: "closed", modes: natModes, tags: untagged, run: func(s *scene) {
			s.repeats(s.cachedTCP())
			s.passes(s.tcp(fin|ack, 1006, 5009, ""))
			s.returns(s.answer(s.tcp(fin|ack, 5009, 1007, "")), tcpPort)
			s.passes(s.tcp(ack, 1007, 5010, ""))
		}},
		scenario{row: "cached", name: "one-byte-too-large", modes: unwrapped, tags: untagged, families: []int{ipv4}, lab: "jumbo", run: func(s *scene) {
			s.repeats(s.cachedUDP())
			p := s.sized(linkMTU + 1)
			s.send(p)
			s.refusedBy(p, tooBig, uint32(s.room(linkMTU)))
		}, drops: drop("larger-than-mtu")},
		scenario{row: "cached", name: "neighbor-moves", modes: []string{nat, l2dsr}, tags: untagged, service: "moving", run: func(s *scene) {
			s.repeats(s.cachedUDP())
			s.tells("eth1", fabric(35), movedMAC)
			defer s.tells("eth1", fabric(35), mac(netlab.FabricNet, 35))
			s.repeatsTo(movedMAC)
		}},
		scenario{row: "cached", name: "route-fails-over", tags: untagged, service: "routed", run: func(s *scene) {
			s.repeatsTo(mac(netlab.FabricNet, 33))
			s.routes(fabric(34), 0)
			defer s.routes(fabric(33), 0)
			s.repeatsTo(mac(netlab.FabricNet, 34))
		}},
		scenario{row: "cached", name: "route-narrows", tags: untagged, service: "routed-narrow", run: func(s *scene) {
			s.repeatsTo(mac(netlab.FabricNet, 33))
			s.routes(fabric(33), narrowMTU)
			defer s.routes(fabric(33), 0)
			s.narrowed(narrowMTU)
		}},
		scenario{row: "cached", name: "link-narrows", tags: untagged, service: "moving", run: func(s *scene) {
			s.repeats(s.cachedUDP())
			s.linkMTU("eth1", lowerMTU)
			defer s.linkMTU("eth1", linkMTU)
			s.narrowed(lowerMTU)
		}},
		scenario{row: "cached", name: "endpoint-removed", modes: natModes, tags: untagged, service: "cached-removed", lab: "no-grace", run: func(s *scene) {
			s.repeats(s.cachedTCP())
			request, answer := s.tcp(ack|psh, 1006, 5009, "GET /"), s.answer(s.tcp(ack|psh, 5009, 1006, "200 OK"))
			s.withoutEndpoints(func() {
				s.send(request)
				s.arrives(s.lab.client, s.resetOf(request).bytes(s))
				endsReceiver(request, s.delivered)
				send(s, s.station(), answer.bytes(s))
				s.countedAtLeast("endpoint-removed", 2)
				s.station().next(s, within) // a RST, see gone/reset
				endsReceiver(answer, func(r packet) { s.arrives(s.lab.client, s.translatedBack(r, tcpPort).bytes(s)) })
			})
		}, drops: map[string]int{"endpoint-removed": 2}},
		scenario{row: "cached", name: "endpoint-removed-and-kept", modes: natModes, tags: untagged, service: "cached-kept", lab: "no-grace", run: func(s *scene) {
			packets, exchange := s.cachedTCP()
			s.repeats(packets, exchange)
			s.withoutEndpoints(func() { s.steers(exchange) })
			s.repeats(packets, exchange)
		}},
		scenario{row: "cached", name: "endpoint-terminates", modes: natModes, tags: untagged, service: "cached-two", run: func(s *scene) {
			packets, exchange := s.cachedTCP()
			s.repeats(packets, exchange)
			was := s.seen
			s.terminating(was, func() {
				s.repeats(packets, exchange)
				s.nextPort()
				if s.passes(s.tcp(syn, 1000, 0, "")); s.seen == was {
					s.Errorf("a new connection goes to %v, which terminates", was)
				}
			})
		}},
		scenario{row: "cached", name: "source-ranges-change", modes: unwrapped, tags: untagged, service: "cached-ranges", run: func(s *scene) {
			packets, exchange := s.cachedUDP()
			s.repeats(packets, exchange)
			s.closedTo(func() {
				s.repeats(packets, exchange)
				s.nextPort()
				s.send(s.udp("from outside"))
				s.countedAtLeast("source-range", 1)
			})
		}, drops: drop("source-range")},
		scenario{row: "cached", name: "service-removed", modes: natModes, tags: untagged, service: "withdrawn", run: func(s *scene) {
			exchange := s.repeatsAtNode()
			s.withoutService(func() { s.steers(exchange) })
			exchange()
		}},
	)
}

// cachedTCP opens a connection, and returns data both ways: how many packets, and sending
// them.
func (s *scene) cachedTCP() (packets int, exchange func()) {
	s.Helper()
	s.connect()
	return 3, s.goesOn
}

// cachedUDP begins a flow, and returns a datagram each way that Weir sees.
func (s *scene) cachedUDP() (packets int, exchange func()) {
	s.Helper()
	there := func() { s.passes(s.udp("there")) }
	if s.mode == l2dsr {
		return 1, there
	}
	return 2, func() {
		there()
		s.returns(s.answer(s.udp("back")), udpPort)
	}
}

// repeats checks that the kernel forwards the packets of a flow, all of them: exchange sends
// so many. A change of routes by the scene before may send a packet to the packet loop; then
// it looks again.
func (s *scene) repeats(packets int, exchange func()) {
	s.Helper()
	const times = 5
	for deadline := time.Now().Add(within); ; {
		s.settles(packets, exchange)
		if arrangement == "off" {
			return
		}
		before := s.repeated()
		for range times {
			exchange()
		}
		n := s.repeated() - before
		if n == uint64(times*packets) {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("the kernel has forwarded %d of %d packets", n, times*packets)
		}
	}
}

// repeatsInTunnel is repeats of an exchange of a single packet that gets an outer header: from
// the packet loop, where its checksum is over the whole packet.
func (s *scene) repeatsInTunnel(exchange func()) {
	s.Helper()
	if arrangement != "off" && !(s.six && s.mode == gue) {
		s.repeats(1, exchange)
		return
	}
	before := s.repeated()
	for range 3 {
		exchange()
	}
	if n := s.repeated() - before; n != 0 {
		s.Errorf("the kernel has forwarded %d packets", n)
	}
}

// settles exchanges packets until the kernel has forwarded all of an exchange.
func (s *scene) settles(packets int, exchange func()) {
	s.Helper()
	deadline := time.Now().Add(within)
	for {
		before := s.repeated()
		exchange()
		if n := s.repeated() - before; arrangement == "off" || n == uint64(packets) {
			return
		} else if time.Now().After(deadline) {
			s.Fatalf("the kernel forwards %d of %d packets", n, packets)
		}
	}
}

// repeated are the packets that the kernel has forwarded so far.
func (s *scene) repeated() (n uint64) {
	s.Helper()
	status, err := s.lab.status()
	if err != nil {
		s.Fatal(err)
	}
	for _, i := range status.Interfaces {
		if i.Repeated != nil {
			n += i.Repeated.Packets
		}
	}
	return n
}

// arrivesBy checks that datagrams of the flow come to be sent to a neighbor.
func (s *scene) arrivesBy(want net.HardwareAddr) {
	s.Helper()
	deadline := time.Now().Add(within)
	for {
		s.send(s.udp("there"))
		frame := s.frame(s.lab.fabric)
		if bytes.Equal(frame[:6], want) {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("packets still go to %s", net.HardwareAddr(frame[:6]))
		}
	}
}

// repeatsTo checks that datagrams of the flow come to be sent to a neighbor, which all of them
// are from then on, also by the kernel.
func (s *scene) repeatsTo(want net.HardwareAddr) {
	s.Helper()
	s.arrivesBy(want)
	s.repeats(1, func() {
		s.send(s.udp("there"))
		if frame := s.frame(s.lab.fabric); !bytes.Equal(frame[:6], want) {
			s.Fatalf("a packet goes to %s again, not to %s", net.HardwareAddr(frame[:6]), want)
		}
	})
}

// steers checks that the kernel forwards none of the packets of an exchange.
func (s *scene) steers(exchange func()) {
	s.Helper()
	before := s.repeated()
	for range 5 {
		exchange()
	}
	if n := s.repeated() - before; n != 0 {
		s.Errorf("the kernel has forwarded %d packets", n)
	}
}

// narrowed checks that the client comes to be told of a narrower path.
func (s *scene) narrowed(mtu int) {
	s.Helper()
	p := s.sized(mtu + 1)
	deadline := time.Now().Add(within)
	for {
		s.send(p)
		if frame := s.lab.fabric.next(s, 20*time.Millisecond); frame == nil {
			break
		}
		if time.Now().After(deadline) {
			s.Fatal("packets still go on that the route has no room for")
		}
	}
	s.refusedBy(p, tooBig, uint32(mtu))
	s.steers(func() {
		s.send(p)
		s.refusedBy(p, tooBig, uint32(mtu))
	})
	s.countedAtLeast("larger-than-mtu", 1)
	s.before = s.lab.drops(s) // one packet or more
}
