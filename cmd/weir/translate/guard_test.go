package translate

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery"
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
