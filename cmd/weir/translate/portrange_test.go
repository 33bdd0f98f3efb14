package translate

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
)

// A range of ports is served at load balancer addresses that are not the node's own, and by no
// endpoint to which packets would come back.
func TestPortRange(t *testing.T) {
	vip := netip.MustParseAddr("203.0.113.1")
	for name, test := range map[string]struct {
		address   netip.Addr
		endpoint  string
		want      string // of the frontend, "" for none
		endpoints int
		complaint string
	}{
		"served":              {vip, "10.1.1.1:20010", "203.0.113.1:20000-20099", 1, ""},
		"the node's own":      {node1, "10.1.1.1:20010", "", 0, "would take the answers to the node's own connections"},
		"another port":        {vip, "10.1.1.1:9", "203.0.113.1:20000-20099", 1, "listed with another port than 20010 of the Service"},
		"an endpoint at home": {vip, "203.0.113.1:9", "203.0.113.1:20000-20099", 0, "is a frontend of the Service itself"},
	} {
		svc := service("web", func(s *discovery.Service) {
			s.LoadBalancerIPs = []netip.Addr{test.address}
			s.Ports = s.Ports[:1]
			s.Ports[0].Port, s.Ports[0].NodePort = 20010, 0
			s.Options.PortRange = discovery.PortRange{First: 20000, Last: 20099}
		}, test.endpoint)
		b := New(Options{NodeAddresses: []netip.Addr{node1}}).Apply(update(svc))
		got, endpoints := "", 0
		for _, s := range b.Put {
			for _, f := range s.Frontends {
				got += table.AddressText(f.AddrPort, f.LastPort)
				endpoints += len(s.Pools[f.Pool].Endpoints)
			}
		}
		said := ""
		for _, c := range b.Complaints {
			for _, p := range c.Problems {
				said += p.Reason
			}
		}
		if got != test.want || endpoints != test.endpoints || !strings.Contains(said, test.complaint) {
			t.Errorf("%s: %q with %d endpoints, %q", name, got, endpoints, said)
		}
	}
}
