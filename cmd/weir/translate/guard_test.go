package translate

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

func TestEndpointsOfTheNodeItselfAreGuarded(t *testing.T) {
	own := addrs("10.77.0.1", "10.99.0.1", "2001:db8::1", "fe80::1")
	guard := Guard{
		Own:      func(a netip.Addr) bool { return slices.Contains(own, a) },
		Ports:    []uint16{22, 9100},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("169.254.77.0/24"), netip.MustParsePrefix("fd77:7765:6972::/64")},
	}
	for _, tt := range []struct {
		endpoint string
		refused  bool
	}{
		{"10.77.0.1:22", true},
		{"10.77.0.1:9100", true},
		{"10.99.0.1:22", true}, // an address of another interface
		{"[2001:db8::1]:22", true},
		{"[fe80::1]:22", true},
		{"[::ffff:10.77.0.1]:22", true},
		{"169.254.77.1:8080", true}, // of the host veth, whatever the port
		{"169.254.77.3:80", true},
		{"[fd77:7765:6972::1]:22", true},
		{"[fd77:7765:6972::10]:8080", true},
		{"10.77.0.1:80", false}, // an ingress controller in the host's network
		{"10.77.0.1:443", false},
		{"10.77.0.2:22", false}, // another host
		{"10.244.1.7:9100", false},
	} {
		if why := guard.Refuses(netip.MustParseAddrPort(tt.endpoint)); (why != "") != tt.refused {
			t.Errorf("%s: %q, want it refused: %v", tt.endpoint, why, tt.refused)
		}
	}
}

func TestAGuardedEndpointGetsNothingAndIsAProblem(t *testing.T) {
	own := true
	tr := New(Options{NodeAddresses: []netip.Addr{node1}, Guard: Guard{
		Own: func(a netip.Addr) bool { return own && a == node1 }, Ports: []uint16{9100},
	}})
	svc := service("web", func(s *discovery.Service) {}, "10.1.1.1:80", node1.String()+":9100")
	served := func(b Batch) (list []netip.AddrPort) {
		for _, p := range b.Put[0].Pools {
			for _, e := range p.Endpoints {
				list = append(list, e.AddrPort)
			}
		}
		return list
	}
	b := tr.Apply(update(svc))
	if got := served(b); len(got) != 1 || got[0].Port() != 80 {
		t.Errorf("endpoints %v", got)
	}
	if len(b.Complaints) != 1 || b.Complaints[0].Problems[0].Kind != problem.ProtectedPort {
		t.Errorf("complaints %v", b.Complaints)
	}
	if e := svc.Ports[0].Endpoints; !slices.ContainsFunc(e, func(e topology.Endpoint) bool { return e.Ready && e.AddrPort.Port() == 9100 }) {
		t.Error("the Service of the source was changed")
	}
	own = false // the address leaves the node
	if got := served(tr.SetNodeAddresses([]netip.Addr{node1})); len(got) != 2 {
		t.Errorf("endpoints %v", got)
	}
}

// The Service gets an Event for the whole fleet, not one per node.
func TestNodesComplainAlikeOfTheirOwnEndpoints(t *testing.T) {
	var said []string
	svc := service("exporter", func(s *discovery.Service) {}, node1.String()+":9100", node2.String()+":9100")
	for _, self := range []netip.Addr{node1, node2} {
		tr := New(Options{NodeAddresses: []netip.Addr{self}, Guard: Guard{
			Own: func(a netip.Addr) bool { return a == self }, Ports: []uint16{9100},
		}})
		for _, c := range tr.Apply(update(svc)).Complaints {
			for _, p := range c.Problems {
				said = append(said, p.Line())
			}
		}
	}
	if len(said) != 2 || said[0] != said[1] {
		t.Errorf("the nodes say %q", said)
	}
}

// A load balancer in front of API servers on its own nodes is told which option leaves one out.
func TestAnAPIServerOnTheNodeIsNamedWithTheOption(t *testing.T) {
	svc := service("kubernetes", func(*discovery.Service) {}, node1.String()+":6443", node2.String()+":6443")
	guard := GuardOf(config.Default(), func(a netip.Addr) bool { return a == node1 })
	b := New(Options{NodeAddresses: []netip.Addr{node1}, Guard: guard}).Apply(update(svc))
	if len(b.Complaints) != 1 || len(b.Complaints[0].Problems) != 1 {
		t.Fatalf("complaints %v", b.Complaints)
	}
	said := b.Complaints[0].Problems[0].Line()
	for _, want := range []string{"6443", "the node's own addresses", "protectedEndpointPorts"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q does not name %q", said, want)
		}
	}
}

// Packets to an endpoint that is a frontend come back, and each pass makes a flow.
func TestAnEndpointThatIsAFrontendOfItsServiceGetsNothing(t *testing.T) {
	vip := netip.MustParseAddr("203.0.113.1")
	for _, tt := range []struct {
		name, endpoint, protocol, node string
		change                         func(*discovery.Service, *Guard)
		refused                        bool
	}{
		{"load balancer address", "203.0.113.1:80", "TCP", "", nil, true},
		{"another port of the Service", "203.0.113.1:81", "TCP", "", nil, true},
		{"a port that is none of the Service", "203.0.113.1:8080", "TCP", "", nil, false},
		{"another protocol", "203.0.113.1:81", "UDP", "", nil, false},
		{"another address", "203.0.113.2:80", "TCP", "", nil, false},
		{"an address of the node, whose kernel has it", "203.0.113.1:80", "TCP", "",
			func(_ *discovery.Service, g *Guard) { g.Own = func(a netip.Addr) bool { return a == vip } }, false},
		{"a pod in the network of another node", "203.0.113.1:80", "TCP", "n2", nil, false},
		{"an external address", "198.51.100.9:80", "TCP", "", func(s *discovery.Service, g *Guard) {
			s.ExternalIPs, g.ExternalIPs = addrs("198.51.100.9"), true
		}, true},
		{"an external address that is not served", "198.51.100.9:80", "TCP", "", func(s *discovery.Service, _ *Guard) {
			s.ExternalIPs = addrs("198.51.100.9")
		}, false},
		{"an address for another load balancer", "203.0.113.1:80", "TCP", "",
			func(_ *discovery.Service, g *Guard) { g.LoadBalancerClass = "other" }, false},
	} {
		guard := Guard{}
		svc := service("web", func(s *discovery.Service) {
			s.LoadBalancerIPs = []netip.Addr{vip}
			s.Ports[0].Port, s.Ports[0].Protocol = 80, tt.protocol
			s.Ports = append(s.Ports, discovery.Port{Name: "other", Protocol: "TCP", Port: 81})
		}, "10.1.1.1:8080", tt.endpoint)
		eps := svc.Ports[0].Endpoints
		loop := slices.IndexFunc(eps, func(e topology.Endpoint) bool { return e.AddrPort.String() == tt.endpoint })
		eps[loop].NodeName = tt.node
		if tt.change != nil {
			tt.change(svc, &guard)
		}
		b := New(Options{NodeAddresses: []netip.Addr{node1}, Guard: guard}).Apply(update(svc))
		served := slices.ContainsFunc(b.Put[0].Pools[0].Endpoints, func(e table.Endpoint) bool { return e.AddrPort.String() == tt.endpoint })
		complained := len(b.Complaints) == 1 && b.Complaints[0].Problems[0].Kind == problem.InvalidObject
		applied := !(&Readiness{Guard: &guard}).Of(svc).Ports[0].Endpoints[loop].Ready
		if served == tt.refused || complained != tt.refused || applied != tt.refused {
			t.Errorf("%s: served %v, problem %v, hidden %v; want it refused: %v", tt.name, served, complained, applied, tt.refused)
		}
	}
}
