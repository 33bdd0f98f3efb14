package packet

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weirlb/weir/cmd/weir/api"
)

// What changes under flows that the kernel forwards.

// terminating runs f while an endpoint of the Service terminates.
func (s *scene) terminating(e endpoint, f func()) {
	s.Helper()
	changed := *s.service
	changed.editSlices = func(slice *discoveryv1.EndpointSlice) {
		for i := range slice.Endpoints {
			if at := &slice.Endpoints[i]; at.Addresses[0] == e.addr(false).String() || at.Addresses[0] == e.addr(true).String() {
				ready, terminates := false, true
				at.Conditions.Ready, at.Conditions.Terminating = &ready, &terminates
			}
		}
	}
	s.whileIs(&changed, f)
}

// closedTo runs f while clients may begin no flow.
func (s *scene) closedTo(f func()) {
	s.Helper()
	changed := *s.service
	changed.edit = func(svc *corev1.Service) {
		if s.service.edit != nil {
			s.service.edit(svc)
		}
		svc.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24", "2001:db8:ffff::/48"}
	}
	s.whileIs(&changed, f)
}

// whileIs runs f while the Service is another.
func (s *scene) whileIs(changed *service, f func()) {
	s.Helper()
	publish := func(v *service) {
		before, err := s.lab.status()
		if err != nil {
			s.Fatal(err)
		}
		s.publish(v, func(now *api.Status) bool { return now.Snapshot > before.Snapshot })
	}
	publish(changed)
	defer publish(s.service)
	f()
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
// forwards it. It returns an exchange of data.
func (s *scene) repeatsAtNode() (exchange func()) {
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
	exchange = func() {
		there(s.tcp(ack|psh, 1001, 5001, "hello"))
		back(s.tcp(ack|psh, 5001, 1006, "good day"))
	}
	s.repeats(2, exchange)
	return exchange
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
