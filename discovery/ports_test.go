package discovery

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/perf/growth"
)

// manyPorts is a Service of n ports, and a slice of n ports, of which the first are of the
// Service.
func manyPorts(n, ofService int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	svc := aService("many")
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	slice := benchSlice(0, 0, 2, 0)
	slice.Labels[discoveryv1.LabelServiceName], slice.Ports = svc.Name, nil
	for i := range n {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(i + 1), NodePort: int32(i + 1)})
		name := fmt.Sprintf("p%d", i)
		if i >= ofService {
			name = fmt.Sprintf("other%d", i)
		}
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: ptr(name), Port: ptr(int32(i + 1))})
	}
	return svc, slice
}

// portCases are Services whose ports all have endpoints, or none.
var portCases = map[string]func(n int) int{
	"all of the Service":  func(n int) int { return n },
	"none of the Service": func(int) int { return 0 },
}

func mergeManyPorts(n, ofService int) func() {
	svc, slice := manyPorts(n, ofService)
	return func() {
		s := NewStore(Options{})
		s.SetService(svc)
		s.SetSlice(slice)
		s.Flush()
	}
}

func BenchmarkPorts(b *testing.B) {
	for name, of := range portCases {
		for _, n := range []int{1000, 8000} {
			b.Run(fmt.Sprintf("%s/ports=%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					mergeManyPorts(n, of(n))()
				}
			})
		}
	}
}

func TestWorkGrowsInProportionToPorts(t *testing.T) {
	for name, of := range portCases {
		if r := growth.Ratio(1000, 8000, func(n int) func() { return mergeManyPorts(n, of(n)) }); r > growth.Linear(1000, 8000) {
			t.Errorf("%s: 8,000 ports take %.0f times the CPU time of 1,000", name, r)
		}
	}
}

func TestWorkGrowsInProportionToAddresses(t *testing.T) {
	r := growth.Ratio(2000, 16000, func(n int) func() {
		svc := aService("many", "http:80")
		for i := range n {
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, fmt.Sprintf("10.%d.%d.1", i/250, i%250))
		}
		return func() { NewStore(Options{}).SetService(svc) }
	})
	if r > growth.Linear(2000, 16000) {
		t.Errorf("16,000 addresses take %.0f times the CPU time of 2,000", r)
	}
}

func TestWorkGrowsInProportionToSubsets(t *testing.T) {
	r := growth.Ratio(1000, 8000, func(n int) func() {
		ep := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "many"}}
		for i := range n {
			ep.Subsets = append(ep.Subsets, corev1.EndpointSubset{
				Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1"}, {IP: fmt.Sprintf("10.%d.%d.1", 1+i/250, i%250)}},
				Ports:     []corev1.EndpointPort{{Name: fmt.Sprintf("p%d", i), Port: int32(i + 1)}},
			})
		}
		return func() { repack(ep.Subsets) }
	})
	if r > growth.Linear(1000, 8000) {
		t.Errorf("8,000 subsets take %.0f times the CPU time of 1,000", r)
	}
}

// A fault of each of thousands of ports would be a list that nobody reads.
func TestFaultsOfManyPortsAreBounded(t *testing.T) {
	svc, slice := manyPorts(100, 10)
	s := NewStore(Options{})
	s.SetService(svc)
	s.SetSlice(slice)
	s.Flush()
	faults := s.Service(ServiceName{"default", "many"}).Faults
	if n := len(faults); n != maxFaults+1 || faults[n-1].Reason != "and 82 more ports" {
		t.Errorf("%d faults, the last %q", n, faults[n-1].Reason)
	}
	if want := `; they have "other10" (TCP), "other11" (TCP), `; !strings.Contains(faults[0].Reason, want) {
		t.Errorf("%q, want %q", faults[0].Reason, want)
	}
}
