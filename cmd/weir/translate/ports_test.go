package translate

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/perf/growth"
)

// path is the way of objects to the tables.
type path struct {
	store     *discovery.Store
	translate *Translator
	tables    *table.Table
}

func newPath() *path {
	return &path{discovery.NewStore(discovery.Options{NodeName: "n1", Supported: Supported}), New(Options{}), table.New(table.Config{})}
}

func (p *path) publish(tb testing.TB) {
	b := p.translate.Apply(p.store.Flush())
	if c, err := p.tables.Apply(b.Put, b.Delete); err != nil || len(c.Errors) > 0 {
		tb.Fatal(err, c.Errors)
	}
}

// manyPorts is a Service of n ports, and a slice with an endpoint that changes with round.
func manyPorts(n, round int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "many"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "many-1", Labels: map[string]string{discoveryv1.LabelServiceName: "many"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{fmt.Sprintf("10.0.1.%d", round%250+1)}}},
	}
	for i := range n {
		name, port := fmt.Sprint("p", i), int32(i+1)
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Port: port})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
	}
	return svc, slice
}

// BenchmarkPorts is the cost from a slice's event to the tables, for a Service of many ports.
func BenchmarkPorts(b *testing.B) {
	for _, n := range []int{1000, 8000} {
		b.Run(fmt.Sprintf("ports=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			p := newPath()
			svc, slice := manyPorts(n, 0)
			p.store.SetService(svc)
			p.store.SetSlice(slice)
			p.publish(b)
			_, other := manyPorts(n, 1)
			for round := 0; b.Loop(); round++ {
				p.store.SetSlice([]*discoveryv1.EndpointSlice{other, slice}[round%2])
				p.publish(b)
			}
		})
	}
}

func TestWorkGrowsInProportionToPorts(t *testing.T) {
	r := growth.Ratio(500, 4000, func(n int) func() {
		p := newPath()
		svc, slice := manyPorts(n, 0)
		p.store.SetService(svc)
		p.store.SetSlice(slice)
		p.publish(t)
		_, other := manyPorts(n, 1)
		return func() {
			p.store.SetSlice(other)
			p.publish(t)
		}
	})
	if r > growth.Linear(500, 4000) {
		t.Errorf("a change of a slice of 4,000 ports takes %.0f times the CPU time of 500", r)
	}
}

// An author can write thousands of external IPs beside thousands of ports, also where the node
// serves none.
func TestExternalIPsThatAreOffCostNothing(t *testing.T) {
	r := growth.Ratio(500, 4000, func(n int) func() {
		svc, _ := manyPorts(n, 0)
		for i := range n {
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, fmt.Sprintf("198.18.%d.%d", i/250, i%250+1))
		}
		p := newPath()
		p.store.SetService(svc)
		up := p.store.Flush()
		return func() {
			p.translate.Apply(up)
			p.translate.Claims(up.Put[0])
		}
	})
	if r > growth.Linear(500, 4000) {
		t.Errorf("4,000 ports and addresses take %.0f times the CPU time of 500", r)
	}
}

func TestReach(t *testing.T) {
	svc := service("web", func(s *discovery.Service) {
		s.Ports = append(s.Ports, discovery.Port{Name: "other", Protocol: "TCP", Port: 81})
		s.LoadBalancerIPs, s.ExternalIPs, s.ClusterIPs = addrs("198.51.100.1"), addrs("198.51.100.2", "198.51.100.3"), addrs("10.96.0.1")
		s.LoadBalancerClass = "a"
	})
	of := func(f discovery.Families) func(*discovery.Service) {
		return func(s *discovery.Service) { s.Families = f }
	}
	for name, c := range map[string]struct {
		reach Reach
		set   func(*discovery.Service)
		want  int
	}{
		"node port and load balancer": {Reach{}, of(0), 1 + 2},
		"three addresses":             {Reach{NodeAddresses4: 2, NodeAddresses6: 1}, of(0), 3 + 2},
		"both families":               {Reach{NodeAddresses4: 2, NodeAddresses6: 1}, of(discovery.IPv4 | discovery.IPv6), 3 + 2},
		"IPv4 alone":                  {Reach{NodeAddresses4: 2, NodeAddresses6: 1}, of(discovery.IPv4), 2 + 2},
		"IPv6 alone":                  {Reach{NodeAddresses4: 2, NodeAddresses6: 1}, of(discovery.IPv6), 1 + 2},
		"IPv6 without an address":     {Reach{NodeAddresses4: 2}, of(discovery.IPv6), 1 + 2},
		"another class":               {Reach{LoadBalancerClass: "b"}, of(0), 1},
		"external IPs":                {Reach{ExternalIPs: true}, of(0), 1 + 2 + 4},
		"cluster IPs":                 {Reach{ClusterIPs: true}, of(0), 1 + 2 + 2},
	} {
		c.set(svc)
		if got := c.reach.Use(svc); got != (discovery.Use{Endpoints: true, Frontends: c.want}) {
			t.Errorf("%s: %+v, want %d frontends", name, got, c.want)
		}
	}
	internal := service("internal", func(s *discovery.Service) { s.Ports[0].NodePort, s.ClusterIPs = 0, addrs("10.96.0.1") })
	if got := (&Reach{}).Use(internal); got.Endpoints {
		t.Errorf("a Service without a frontend here: %+v", got)
	}
	internal.HealthCheckNodePort = 30000
	if got := (&Reach{}).Use(internal); !got.Endpoints {
		t.Errorf("a health check needs the endpoints: %+v", got)
	}
}
