package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weirlb/weir/cmd/weirperf/machine"
	"github.com/weirlb/weir/discovery"
)

func TestClusterHasTheSizesAskedFor(t *testing.T) {
	for _, c := range []struct{ services, endpoints int }{{10000, 250000}, {1000, 25000}, {100, 2000}, {1, 1}, {1, 5000}, {7, 7}} {
		k := newCluster(c.services, c.endpoints)
		if len(k.sizes) != c.services || k.total != c.endpoints {
			t.Errorf("%+v: %d Services, %d endpoints", c, len(k.sizes), k.total)
		}
		n := 0
		for i := range k.sizes {
			for j := range k.sliceCount(i) {
				if c.endpoints <= 25000 {
					n += len(k.sliceObject(i, j, 0).Endpoints)
				}
			}
		}
		if c.endpoints <= 25000 && n != c.endpoints {
			t.Errorf("%+v: slices hold %d endpoints", c, n)
		}
	}
	k := newCluster(10000, 250000)
	if k.sizes[0] != giantSize || k.sizes[1] != largeSize || k.sizes[largeCount+1] != middleSize {
		t.Errorf("sizes begin %v", k.sizes[:largeCount+2])
	}
}

// The figures must be those of what Weir really serves.
func TestPlaneServesWhatTheSlicesSay(t *testing.T) {
	c := newCluster(50, 2000)
	p := newPlane()
	if _, err := p.build(c); err != nil {
		t.Fatal(err)
	}
	if got := p.table.PresentEndpoints(); got != c.total {
		t.Errorf("%d endpoints, want %d", got, c.total)
	}
	before := p.table.Load().Number()
	s, err := p.changes(context.Background(), c, 300, c.anySlice())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.wall) != 300 || p.table.Load().Number() != before+300 {
		t.Errorf("%d changes, %d publications", len(s.wall), p.table.Load().Number()-before)
	}
	if got := p.table.PresentEndpoints(); got != c.total {
		t.Errorf("%d endpoints after the changes, want %d", got, c.total)
	}
}

func TestCommandPrintsTheContract(t *testing.T) {
	cmd := Command()
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"--services", "1000", "--endpoints", "6000", "--changes", "50", "--economy=false", "--json"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"services", "endpoints", "buildSeconds", "changeP50us", "changeP99us", "changeAllocBytes", "heapBytesPerEndpoint"} {
		if v, ok := got[key].(float64); !ok || v <= 0 {
			t.Errorf("%s is %v", key, got[key])
		}
	}
	for _, args := range [][]string{{"--services", "0"}, {"--endpoints", "5"}, {"--changes", "0"}} {
		cmd := Command()
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

func TestEconomyIsThatOfTheProposal(t *testing.T) {
	e, err := economy(1000, nodes)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range e.Encodings {
		// Ten slices: a change sends a tenth or so of what Endpoints sends.
		if r := k.EndpointsChange / k.SlicesChange; r < 5 || r > 15 {
			t.Errorf("%s: %.1f times less", k.Encoding, r)
		}
		if k.SliceWrites != 1000 {
			t.Errorf("%s: %d writes for 1000 endpoints replaced", k.Encoding, k.SliceWrites)
		}
	}
	res := Result{Economy: &e}
	var b strings.Builder
	if err := res.render(&b, machine.Describe()); err != nil || !strings.Contains(b.String(), "watched by 3000 nodes") {
		t.Errorf("%v: %s", err, b.String())
	}
}

// BenchmarkChange is one endpoint replaced, from the slice event to the
// published snapshot.
func BenchmarkChange(b *testing.B) {
	c := newCluster(1000, 25000)
	p := newPlane()
	if _, err := p.build(c); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{middleSize, largeSize, giantSize} {
		pick := c.ofSize(size)
		if pick == nil {
			continue
		}
		b.Run(fmt.Sprintf("endpoints=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				slice := p.next(c, pick(i))
				b.StartTimer()
				if _, err := p.change(slice); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPortRange compares a Service with a range of 10,000 UDP ports and 25 endpoints with 10,000 Services with a
// port and an endpoint each: by the heap that the publication leaves, and by the time of the publication beside them.
func BenchmarkPortRange(b *testing.B) {
	const ports, first, endpoints = 10_000, 10_000, 25
	p, empty := newPlane(), heap()
	udp := func(s *corev1.Service, slice *discoveryv1.EndpointSlice, port int32) {
		s.Spec.Ports[0].Protocol, s.Spec.Ports[0].NodePort, s.Spec.Ports[0].Port = corev1.ProtocolUDP, 0, port
		slice.Ports[0].Protocol, slice.Ports[0].Port = ptr(corev1.ProtocolUDP), ptr(port)
		p.store.SetService(s)
		p.store.SetSlice(slice)
	}
	singles := newCluster(ports, ports)
	for i := range ports {
		udp(serviceObject(i), singles.sliceObject(i, 0, 0), first)
	}
	if err := p.publish(); err != nil {
		b.Fatal(err)
	}
	before := heap()
	media := newCluster(ports+1, ports+endpoints)
	media.sizes[ports] = endpoints
	service, slice := serviceObject(ports), media.sliceObject(ports, 0, 0)
	service.Annotations = map[string]string{discovery.AnnotationPortRange: fmt.Sprintf("%d-%d", first, first+ports-1)}
	frontends := p.table.Load().Frontends()
	b.Run("publication", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			udp(service, slice, first)
			if err := p.publish(); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if n := p.table.Load().Frontends() - frontends; n != 1 {
				b.Fatalf("%d frontends for the range", n)
			}
			p.store.DeleteService(service.Namespace, service.Name)
			p.store.DeleteSlice(slice.Namespace, slice.Name)
			if err := p.publish(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	udp(service, slice, first)
	if err := p.publish(); err != nil {
		b.Fatal(err)
	}
	b.Run("memory", func(b *testing.B) {
		for b.Loop() {
		}
		after := heap()
		b.ReportMetric(float64(before-empty)/ports, "B/service")
		b.ReportMetric(float64(after)-float64(before), "B/range")
		b.ReportMetric(100*(float64(after)-float64(before))/float64(before-empty), "%of-10000-services")
		b.ReportMetric(0, "ns/op") // means nothing here
	})
	runtime.KeepAlive(p)
}
