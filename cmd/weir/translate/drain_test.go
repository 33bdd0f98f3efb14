package translate

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weirlb/weir/discovery"
)

// A drained endpoint gets no new connections while another is ready, and is still listed, so
// that its connections go on. Other Services are not translated again.
func TestADrainedEndpointCountsAsTerminating(t *testing.T) {
	tr := New(Options{NodeAddresses: []netip.Addr{node1}})
	a := service("a", nil, "10.1.1.1:80", "10.1.1.2:80")
	b := service("b", func(s *discovery.Service) { s.Ports[0].NodePort = 30081 }, "10.1.1.3:80")
	tr.Apply(&discovery.Update{Put: []*discovery.Service{a, b}})
	one, ok := ParseDrained("10.1.1.1:80")
	all, ok2 := ParseDrained("10.1.1.2")
	if !ok || !ok2 || one.String() != "10.1.1.1:80" || all.String() != "10.1.1.2" {
		t.Fatalf("%v %v, %v %v", one, ok, all, ok2)
	}
	endpoints := func(b Batch) (list []string) {
		for _, s := range b.Put {
			for _, p := range s.Pools {
				for _, e := range p.Endpoints {
					list = append(list, s.Name+" "+e.AddrPort.String()+" "+p.Tier)
				}
			}
			for _, e := range s.Listed {
				list = append(list, s.Name+" "+e.AddrPort.String()+" listed")
			}
		}
		return list
	}
	for _, c := range []struct {
		list []Drained
		want []string
	}{
		{[]Drained{one}, []string{"ns/a 10.1.1.2:80 all", "ns/a 10.1.1.1:80 listed"}},
		{[]Drained{one}, nil},
		{[]Drained{one, all}, []string{"ns/a 10.1.1.1:80 terminating", "ns/a 10.1.1.2:80 terminating"}},
		{nil, []string{"ns/a 10.1.1.1:80 all", "ns/a 10.1.1.2:80 all"}},
	} {
		if got := endpoints(tr.SetDrained(c.list)); !slices.Equal(got, c.want) {
			t.Errorf("drained %v: %q, want %q", c.list, got, c.want)
		}
	}
	listed := tr.Listed(NewDrainedSet([]Drained{one, {Addr: node2}}))
	if !a.Ports[0].Endpoints[0].Ready || len(listed) != 1 || listed.Has(netip.AddrPortFrom(node2, 80)) {
		t.Errorf("endpoint %+v, lists %v", a.Ports[0].Endpoints[0], listed)
	}
	r := Readiness{Drained: NewDrainedSet([]Drained{one})}
	if svc := r.Of(a); svc == a || svc.Ports[0].Endpoints[0].State() != "terminating" || r.Of(b) != b {
		t.Errorf("as the node sees it: %+v", svc)
	}
	for _, s := range []string{"", "10.1.1.1:0", "10.1.1.1:x", "host:80"} {
		if d, ok := ParseDrained(s); ok {
			t.Errorf("%q is %v", s, d)
		}
	}
}
