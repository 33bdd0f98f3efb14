package changes

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/perf/growth"
	"github.com/weirlb/weir/topology"
)

// manyPorts is a Service of n ports with an endpoint each, as discovery has it and as the tables.
func manyPorts(n int, endpoint string) (*discovery.Service, table.Service) {
	svc := &discovery.Service{Name: discovery.ServiceName{Namespace: "ns", Name: "many"}}
	out := table.Service{Name: "ns/many", Pools: []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: netip.MustParseAddrPort(endpoint)}}, Tier: endpoint}}}
	for i := range n {
		port := uint16(i + 1)
		svc.Ports = append(svc.Ports, discovery.Port{Name: fmt.Sprint("p", i), Protocol: "TCP", Port: port, NodePort: port,
			Endpoints: []topology.Endpoint{{AddrPort: netip.MustParseAddrPort(endpoint), Ready: true}}})
		out.Frontends = append(out.Frontends, table.Frontend{AddrPort: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.1"), port), Proto: 6, Kind: table.LoadBalancer, Port: port})
	}
	return svc, out
}

func TestWorkGrowsInProportionToPorts(t *testing.T) {
	for name, prepare := range map[string]func(n int) func(){
		"tiers": func(n int) func() {
			_, a := manyPorts(n, "10.0.0.1:80")
			_, b := manyPorts(n, "10.0.0.2:80")
			return func() {
				var x Tiers
				x.Follow([]table.Service{a}, nil, time.Now())
				c := x.Follow([]table.Service{b}, nil, time.Now())
				scopeOf(c.tiers)
				for port := range n {
					x.Of("ns/many", uint16(port+1), 6)
				}
			}
		},
		"changes of endpoints": func(n int) func() {
			a, _ := manyPorts(n, "10.0.0.1:80")
			b, _ := manyPorts(n, "10.0.0.2:80")
			return func() { endpointChanges(a, b) }
		},
	} {
		if r := growth.Ratio(500, 4000, prepare); r > growth.Linear(500, 4000) {
			t.Errorf("%s: 4,000 ports take %.0f times the CPU time of 500", name, r)
		}
	}
}

// A Service that the tables keep as it was is not served as asked: no event says so.
func TestAPublicationThatFailsIsNoChange(t *testing.T) {
	put := []table.Service{{Name: "ns/kept"}, {Name: "ns/partly"}, {Name: "ns/served"}}
	err := errors.Join(
		&table.ServiceError{Service: "ns/kept", Kept: true, Err: table.ErrTooManyEndpoints},
		&table.ServiceError{Service: "ns/partly", Err: table.ErrFrontendTaken})
	c := &Cause{endpoints: map[string][]endpointChange{"ns/kept": {{}}, "ns/served": {{}}}}
	var x Tiers
	changes := x.Follow(WithoutKept(put, err, c), nil, time.Now())
	if got := fmt.Sprint(changes.added); got != "[ns/partly ns/served]" {
		t.Errorf("served: %s", got)
	}
	if len(c.endpoints) != 1 || c.endpoints["ns/served"] == nil {
		t.Errorf("changes of endpoints: %v", c.endpoints)
	}
}
