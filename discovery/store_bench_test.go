package discovery

import (
	"fmt"
	"runtime"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const benchPerSlice = 100

// benchSlice is a slice of a Service with endpoints spread over 1,000 nodes
// and three zones; round tells versions apart.
func benchSlice(service, slice, endpoints, round int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("s%d-%d", service, slice),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("s%d", service)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080))}},
	}
	for i := range endpoints {
		n := service*31 + slice*benchPerSlice + i
		ready := round%2 == 0 || i > 0
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", service%250, slice, i+1)},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr(ready)},
			NodeName:   ptr(fmt.Sprintf("node-%d", n%1000)),
			Zone:       ptr(fmt.Sprintf("zone-%d", n%3)),
			Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: fmt.Sprintf("zone-%d", n%3)}}},
		})
	}
	return s
}

// benchStore has services Services with 25 endpoints each, and one with
// 5,000.
func benchStore(services int) *Store {
	s := NewStore(Options{NodeName: "node-1"})
	for n := range 1000 {
		s.SetNode(aNode(fmt.Sprintf("node-%d", n), host+fmt.Sprintf("=node-%d", n), zone+fmt.Sprintf("=zone-%d", n%3)))
	}
	for i := range services {
		s.SetService(aService(fmt.Sprintf("s%d", i), "http:80"))
		if i > 0 {
			s.SetSlice(benchSlice(i, 0, 25, 0))
		}
	}
	for j := range 50 {
		s.SetSlice(benchSlice(0, j, benchPerSlice, 0))
	}
	s.Flush()
	return s
}

// BenchmarkOneSliceChange is the cost from a slice's event to its Update: it
// must not depend on the number of Services.
func BenchmarkOneSliceChange(b *testing.B) {
	for _, services := range []int{1000, 10000} {
		s := benchStore(services)
		for _, c := range []struct {
			name             string
			service, n, size int
		}{{"25", 1, 0, 25}, {"5000", 0, 7, benchPerSlice}} {
			versions := []*discoveryv1.EndpointSlice{benchSlice(c.service, c.n, c.size, 0), benchSlice(c.service, c.n, c.size, 1)}
			b.Run(fmt.Sprintf("services=%d/endpoints=%s", services, c.name), func(b *testing.B) {
				b.ReportAllocs()
				round := 0
				for b.Loop() {
					round++
					s.SetSlice(versions[round%2])
					if up := s.Flush(); up == nil && round > 1 {
						b.Fatal("no update")
					}
				}
			})
		}
	}
}

// BenchmarkLoad is the cost of everything at once, and the heap that is kept
// per endpoint.
func BenchmarkLoad(b *testing.B) {
	const services = 2000
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := benchStore(services)
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(s)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(25*(services-1)+5000), "heapB/endpoint")
}

// TestChangeCostDoesNotGrowWithTheNumberOfServices: the work for one slice is
// in proportion to its Service.
func TestChangeCostDoesNotGrowWithTheNumberOfServices(t *testing.T) {
	cost := func(services int) float64 {
		s := benchStore(services)
		versions := []*discoveryv1.EndpointSlice{benchSlice(1, 0, 25, 0), benchSlice(1, 0, 25, 1)}
		round := 0
		return testing.AllocsPerRun(20, func() {
			round++
			s.SetSlice(versions[round%2])
			if up := s.Flush(); len(up.Put) != 1 {
				t.Fatalf("%+v", up)
			}
		})
	}
	if few, many := cost(10), cost(500); many > few+2 {
		t.Errorf("%v allocations among 10 Services, %v among 500", few, many)
	}
}
