package translate

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/discovery"
)

func TestProtectedPortsStayWithTheNode(t *testing.T) {
	svc := service("web", func(s *discovery.Service) {
		s.Ports[0].NodePort, s.Ports[0].Port = 22, 6443
		s.LoadBalancerIPs = addrs("192.0.2.1", "198.51.100.1")
		s.Ports = append(s.Ports, discovery.Port{Name: "other", Protocol: "TCP", Port: 81, NodePort: 30081})
	}, "10.1.1.1:80")
	tr := New(Options{NodeAddresses: []netip.Addr{node1}, ProtectedPorts: []uint16{22, 6443, 10250}})
	expect(t, tr.Apply(update(svc)),
		"put ns/web",
		"LoadBalancer 198.51.100.1:6443/6 -> all 10.1.1.1:80",
		"NodePort 192.0.2.1:30081/6 -> none Reject",
		"LoadBalancer 192.0.2.1:81/6 -> none Reject",
		"LoadBalancer 198.51.100.1:81/6 -> none Reject",
		"protected-port ns/web: NodePort 192.0.2.1:22 is not taken: port 22 is protected on the node's own addresses (protectedPorts)",
		"protected-port ns/web: LoadBalancer 192.0.2.1:6443 is not taken: port 6443 is protected on the node's own addresses (protectedPorts)")

	again := *svc
	if b := tr.Apply(update(&again)); len(b.Complaints) != 0 {
		t.Errorf("complained twice: %v", b.Complaints)
	}
	tr.Apply(&discovery.Update{Deleted: []discovery.ServiceName{svc.Name}})
	if b := tr.Apply(update(svc)); len(b.Complaints) != 1 || len(b.Complaints[0].Problems) != 2 {
		t.Errorf("no complaint about a new Service: %v", b.Complaints)
	}
}

func TestOwnAddressesBeyondThoseOfNodePorts(t *testing.T) {
	svc := service("web", func(s *discovery.Service) {
		s.Ports[0].Port, s.LoadBalancerIPs = 22, addrs("192.0.2.2")
	})
	tr := New(Options{Local: func(a netip.Addr) bool { return a == node2 }, ProtectedPorts: []uint16{22}})
	if b := tr.Apply(update(svc)); len(b.Put) != 0 || len(b.Complaints) != 1 {
		t.Errorf("%q", show(b))
	}
}

// A frontend at a port on which Weir itself listens would take the place of its own answers.
func TestPortsOnWhichWeirListensAreProtected(t *testing.T) {
	cfg := config.Default()
	cfg.Announce.L2.Interfaces = []string{"eth0"}
	tr := New(Options{NodeAddresses: []netip.Addr{node1}, Listener: cfg.ListenerAt})
	expect(t, tr.Apply(update(service("web", func(s *discovery.Service) {
		s.Ports[0].Port, s.Ports[0].NodePort = 9465, 9465
		s.Ports = append(s.Ports, discovery.Port{Name: "link", Protocol: "UDP", Port: 81, NodePort: 7949},
			discovery.Port{Name: "local", Protocol: "TCP", Port: 82, NodePort: 9464})
		s.LoadBalancerIPs = addrs("192.0.2.1")
	}))),
		"put ns/web",
		"LoadBalancer 192.0.2.1:81/17 -> none Reject",
		"NodePort 192.0.2.1:9464/6 -> none Reject",
		"LoadBalancer 192.0.2.1:82/6 -> none Reject",
		"protected-port ns/web: NodePort 192.0.2.1:9465 is not taken: Weir itself listens there (healthzBindAddress)",
		"protected-port ns/web: LoadBalancer 192.0.2.1:9465 is not taken: Weir itself listens there (healthzBindAddress)",
		"protected-port ns/web: NodePort 192.0.2.1:7949 is not taken: Weir itself listens there (announce.l2)")
}

// An address that becomes the node's own must not keep the way in taken.
func TestAddressThatBecomesTheNodesOwn(t *testing.T) {
	own := false
	tr := New(Options{Local: func(a netip.Addr) bool { return own && a == node2 }, ProtectedPorts: []uint16{22}})
	tr.Apply(update(service("web", func(s *discovery.Service) {
		s.Ports[0].Port, s.Ports[0].NodePort, s.LoadBalancerIPs = 22, 0, addrs("192.0.2.2")
	})))
	own = true
	expect(t, tr.SetNodeAddresses(nil), "delete ns/web",
		"protected-port ns/web: LoadBalancer 192.0.2.2:22 is not taken: port 22 is protected on the node's own addresses (protectedPorts)")
	own = false
	expect(t, tr.SetNodeAddresses(nil), "put ns/web", "LoadBalancer 192.0.2.2:22/6 -> none Reject")
}

func TestNodeAddressesConcernNodePortsAlone(t *testing.T) {
	tr := New(Options{NodeAddresses: []netip.Addr{node1}, Local: func(netip.Addr) bool { return false }})
	tr.Apply(update(service("np", nil), service("lb", func(s *discovery.Service) {
		s.Ports[0].NodePort, s.LoadBalancerIPs = 0, addrs("198.51.100.1")
	})))
	expect(t, tr.SetNodeAddresses([]netip.Addr{node2, node1}),
		"put ns/np", "NodePort 192.0.2.1:30080/6 -> none Reject", "NodePort 192.0.2.2:30080/6 -> none Reject")
	if b := tr.SetNodeAddresses([]netip.Addr{node1, node2}); !b.Empty() {
		t.Errorf("the same addresses: %q", show(b))
	}
	// All addresses gone: the Service has no frontend, and comes back with them.
	expect(t, tr.SetNodeAddresses(nil), "delete ns/np")
	expect(t, tr.SetNodeAddresses([]netip.Addr{node1}), "put ns/np", "NodePort 192.0.2.1:30080/6 -> none Reject")
}

// Manifests may name any node port. A port among Weir's own source ports is served, and is a
// problem. Other addresses have no source ports of Weir.
func TestAPortAmongTheSourcePortsIsAProblem(t *testing.T) {
	tr := New(Options{NodeAddresses: []netip.Addr{node1}, SNATPorts: config.PortRange{Lo: 61000, Hi: 65535}})
	expect(t, tr.Apply(update(service("web", func(s *discovery.Service) {
		s.Ports[0].NodePort, s.Ports[0].Port = 61005, 61006
		s.LoadBalancerIPs = addrs("192.0.2.1", "198.51.100.1")
	}, "10.1.1.1:80"))),
		"put ns/web",
		"NodePort 192.0.2.1:61005/6 -> all 10.1.1.1:80",
		"LoadBalancer 192.0.2.1:61006/6 -> all 10.1.1.1:80",
		"LoadBalancer 198.51.100.1:61006/6 -> all 10.1.1.1:80",
		"service-warning ns/web: NodePort 192.0.2.1:61005 has a port in snat.ports 61000-65535 of the configuration, "+
			"which Weir takes on the node's addresses: choose another port",
		"service-warning ns/web: LoadBalancer 192.0.2.1:61006 has a port in snat.ports 61000-65535 of the configuration, "+
			"which Weir takes on the node's addresses: choose another port")
}
