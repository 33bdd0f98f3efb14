package packet

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/api"
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

// cacheLines are the lines of the configuration for the arrangement.
func cacheLines() string {
	if arrangement == "off" {
		return "interfaces: [{name: eth0}, {name: eth1}]"
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
	definitions["withdrawn"] = definition{endpoints: []endpoint{fabric(36)}, pods: []endpoint{podAt(36)}}
	// At hook tcx packets with a priority tag are the packet loop's.
	var tags [][]uint16
	if arrangement == "tcx" {
		tags = untagged
	}
	add(
		scenario{row: "cached", name: "tcp", modes: natModes, tags: tags, run: func(s *scene) { s.repeats(s.cachedTCP()) }},
		scenario{row: "cached", name: "udp", modes: unwrapped, tags: tags, run: func(s *scene) { s.repeats(s.cachedUDP()) }},
		scenario{row: "cached", name: "udp-in-a-tunnel", modes: tunnels, tags: tags, run: func(s *scene) {
			s.repeatsInTunnel(func() { s.passes(s.udp("there")) })
		}},
		scenario{row: "cached", name: "tcp-in-a-tunnel", modes: tunnels, tags: tags, run: func(s *scene) {
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
			s.arrivesBy(movedMAC)
		}},
		scenario{row: "cached", name: "route-fails-over", tags: untagged, service: "routed", run: func(s *scene) {
			s.repeatsBy(fabric(33))
			s.routes(fabric(34), 0)
			defer s.routes(fabric(33), 0)
			s.arrivesBy(mac(netlab.FabricNet, 34))
		}},
		scenario{row: "cached", name: "route-narrows", tags: untagged, service: "routed-narrow", run: func(s *scene) {
			s.repeatsBy(fabric(33))
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
				send(s, s.station(), answer.bytes(s))
				s.countedAtLeast("endpoint-removed", 2)
				s.station().next(s, within) // a RST, see gone/reset
			})
		}, drops: map[string]int{"endpoint-removed": 2}},
		scenario{row: "cached", name: "service-removed", modes: natModes, tags: untagged, service: "withdrawn", run: func(s *scene) {
			s.repeatsAtNode()
			request := s.tcp(ack|psh, 1001, 5001, "hello")
			request.dst = s.nodeFrontend(tcpPort)
			s.withoutService(func() {
				s.send(request)
				s.kernelResets(s.lab.client, request)
			})
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
// the packet loop, where the hook has none for it.
func (s *scene) repeatsInTunnel(exchange func()) {
	s.Helper()
	if arrangement == "xdp" && !(s.six && s.mode == gue) {
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

// arrivesBy checks that datagrams of the flow come to be sent to another neighbor, which
// all of them are from then on.
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

// repeatsBy checks that the kernel forwards datagrams of a flow to an endpoint behind a
// router.
func (s *scene) repeatsBy(router endpoint) {
	s.Helper()
	s.settles(1, func() { s.arrivesBy(mac(router.network, router.host)) })
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
	s.countedAtLeast("larger-than-mtu", 1)
	s.before = s.lab.drops(s) // one packet or more
}

// tells gives a neighbor of the edge another MAC address.
func (s *scene) tells(ifname string, e endpoint, to net.HardwareAddr) {
	s.Helper()
	dev, err := s.lab.edge.Interface(ifname)
	if err != nil {
		s.Fatal(err)
	}
	err = s.lab.edge.Netlink().NeighSet(&netlink.Neigh{LinkIndex: dev.Attrs().Index,
		IP: e.addr(s.six).AsSlice(), HardwareAddr: to, State: netlink.NUD_PERMANENT})
	if err != nil {
		s.Fatal(err)
	}
}

// linkMTU gives an interface of the edge another MTU.
func (s *scene) linkMTU(ifname string, mtu int) {
	s.Helper()
	dev, err := s.lab.edge.Interface(ifname)
	if err == nil {
		err = s.lab.edge.Netlink().LinkSetMTU(dev, mtu)
	}
	if err != nil {
		s.Fatal(err)
	}
}

// behindRouter is an endpoint that the edge reaches by a router.
func behindRouter(host uint8) endpoint { return endpoint{61, host, "other"} }

// routes leads packets to the Service's endpoint by a router. mtu is that of the route, 0: the
// link's.
func (s *scene) routes(router endpoint, mtu int) {
	s.Helper()
	if err := s.lab.routeBy(s.service.hosts()[0].addr(s.six), router.addr(s.six), mtu); err != nil {
		s.Fatal(err)
	}
}

// routeBy leads packets to an address by a router on the fabric.
func (l *lab) routeBy(to, router netip.Addr, mtu int) error {
	dev, err := l.edge.Interface("eth1")
	if err != nil {
		return err
	}
	return l.edge.Netlink().RouteReplace(&netlink.Route{
		LinkIndex: dev.Attrs().Index, MTU: mtu, Gw: router.AsSlice(),
		Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())},
	})
}

// repeatsAtNode opens a connection to the Service's node port, and checks that the kernel
// forwards it.
func (s *scene) repeatsAtNode() {
	s.Helper()
	there := func(p packet) {
		at := p
		at.dst = s.nodeFrontend(tcpPort)
		s.send(at)
		s.delivered(p)
	}
	back := func(p packet) {
		a := s.answer(p)
		send(s, s.station(), a.bytes(s))
		a = s.translatedBack(a, tcpPort)
		a.src = s.nodeFrontend(tcpPort)
		s.arrives(s.lab.client, a.bytes(s))
	}
	there(s.tcp(syn, 1000, 0, ""))
	back(s.tcp(syn|ack, 5000, 1001, ""))
	there(s.tcp(ack, 1001, 5001, ""))
	s.repeats(2, func() {
		there(s.tcp(ack|psh, 1001, 5001, "hello"))
		back(s.tcp(ack|psh, 5001, 1006, "good day"))
	})
}

// withoutService runs f while the Service does not exist.
func (s *scene) withoutService(f func()) {
	s.Helper()
	before, err := s.lab.status()
	if err != nil {
		s.Fatal(err)
	}
	file := filepath.Join(s.lab.Dir(), "manifests", s.service.name+".yaml")
	if err := os.Remove(file); err != nil {
		s.Fatal(err)
	}
	s.until(func(now *api.Status) bool { return now.Services < before.Services })
	defer s.publish(s.service, func(now *api.Status) bool { return now.Services == before.Services })
	f()
}
