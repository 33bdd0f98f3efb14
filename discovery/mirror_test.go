package discovery

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The rules of the mirroring controller (KEP-752, "EndpointSliceMirroring")
// and of the canonical form of subsets.
func TestEndpointsAreMirrored(t *testing.T) {
	plain := func() *corev1.Service { return selectorless(aService("web", "http:80", "https:443")) }
	marked := func(ep *corev1.Endpoints, labels, annotations map[string]string) *corev1.Endpoints {
		ep.Labels, ep.Annotations = labels, annotations
		return ep
	}
	one := func() *corev1.Endpoints { return someEndpoints("web", "10.0.0.1 http:8080") }
	for _, test := range []struct {
		name    string
		objects []any
		want    string
	}{
		{"without a selector", []any{plain(), one()}, "http: 10.0.0.1:8080; https:"},
		{"not with a selector", []any{aService("web", "http:80"), one()}, "http:"},
		{"not without a Service", []any{one()}, "none"},
		{"not with the label skip-mirror", []any{plain(), marked(one(), map[string]string{"endpointslice.kubernetes.io/skip-mirror": "true"}, nil)}, "http:; https:"},
		{"but with another value of it", []any{plain(), marked(one(), map[string]string{"endpointslice.kubernetes.io/skip-mirror": "false"}, nil)}, "http: 10.0.0.1:8080; https:"},
		{"not a leader election lock", []any{plain(), marked(one(), nil, map[string]string{"control-plane.alpha.kubernetes.io/leader": ""})}, "http:; https:"},
		{"not while there is a slice", []any{plain(), one(), aSlice("web-1", "web", "http:9090", "10.0.0.2")}, "http: 10.0.0.2:9090; https:"},
		{"not even an empty one", []any{plain(), one(), aSlice("web-1", "web", "", "")}, "http:; https:"},
		{"both families", []any{plain(), someEndpoints("web", "10.0.0.1 fd00::1 http:8080")}, "http: 10.0.0.1:8080 [fd00::1]:8080; https:"},
		{"several subsets with different ports", []any{plain(), someEndpoints("web", "10.0.0.1 http:8080 https:8443", "10.0.0.2 http:9080")},
			"http: 10.0.0.1:8080 10.0.0.2:9080; https: 10.0.0.1:8443"},
		{"not ready", []any{plain(), someEndpoints("web", "10.0.0.1 !10.0.0.2 http:8080")}, "http: 10.0.0.1:8080 10.0.0.2:8080-; https:"},
		{"both ready and not is not ready", []any{plain(), someEndpoints("web", "10.0.0.1 !10.0.0.1 http:8080")}, "http: 10.0.0.1:8080-; https:"},
		{"also from two subsets, on the port of both only", []any{plain(), someEndpoints("web", "10.0.0.1 http:8080 https:8443", "!10.0.0.1 http:8080")},
			"http: 10.0.0.1:8080-; https: 10.0.0.1:8443"},
		{"but of two Pods with one address one may be ready", []any{plain(), someEndpoints("web", "10.0.0.1#a !10.0.0.1#b http:8080")}, "http: 10.0.0.1:8080; https:"},
		{"nodes", []any{plain(), someEndpoints("web", "10.0.0.1@n2 http:8080")}, "http: 10.0.0.1:8080@n2; https:"},
		{"a port without a name", []any{selectorless(aService("web", ":80")), someEndpoints("web", "10.0.0.1 :8080")}, ": 10.0.0.1:8080"},
		{"protocols", []any{selectorless(aService("web", "dns:53/UDP")), someEndpoints("web", "10.0.0.1 dns:5353/UDP", "10.0.0.2 dns:5353")}, "dns: 10.0.0.1:5353"},
		{"no ports, no endpoints", []any{plain(), someEndpoints("web", "10.0.0.1")}, "http:; https:"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := load(test.objects...)
			if got := show(web(s)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			backwards := NewStore(Options{})
			for i := len(test.objects) - 1; i >= 0; i-- {
				feed(backwards, test.objects[i])
			}
			wantWeb(t, backwards, test.want)
		})
	}
}

func TestMirroringFollowsItsConditions(t *testing.T) {
	plain := func() *corev1.Service { return selectorless(aService("web", "http:80")) }
	s := load(plain(), someEndpoints("web", "10.0.0.1 http:8080"))
	if !web(s).Mirrored || s.Stats().Mirrored != 1 {
		t.Errorf("not marked as mirrored: %+v", s.Stats())
	}
	steps := []struct {
		name string
		do   func()
		want string
	}{
		{"a slice comes", func() { feed(s, aSlice("web-1", "web", "http:9090", "10.0.0.2")) }, "http: 10.0.0.2:9090"},
		{"and goes", func() { s.DeleteSlice("default", "web-1") }, "http: 10.0.0.1:8080"},
		{"the Service gets a selector", func() { feed(s, aService("web", "http:80")) }, "http:"},
		{"and loses it", func() { feed(s, plain()) }, "http: 10.0.0.1:8080"},
		{"the Endpoints change", func() { feed(s, someEndpoints("web", "10.0.0.3 http:8080")) }, "http: 10.0.0.3:8080"},
		{"the Service goes", func() { s.DeleteService("default", "web") }, "none"},
		{"and comes back", func() { feed(s, plain()) }, "http: 10.0.0.3:8080"},
		{"the Endpoints go", func() { s.DeleteEndpoints("default", "web") }, "http:"},
	}
	for _, step := range steps {
		step.do()
		t.Log(step.name)
		wantWeb(t, s, step.want)
	}
	s.DeleteService("default", "web")
	if s.Flush(); s.Stats() != (Stats{}) || len(s.services)+len(s.slices)+len(s.nodes.byName)+len(s.nodes.byAddr) != 0 {
		t.Errorf("something is left: %+v", s.Stats())
	}
}

func TestEndpointsThatAreNotMirroredAreSaidToBe(t *testing.T) {
	s := load(aService("web", "http:80"), someEndpoints("web", "10.0.0.1 http:8080"))
	wantErrors(t, web(s).Warnings, "Endpoints default/web: not mirrored: the Service has a selector")
	feed(s, aSlice("web-1", "web", "http:8080", "10.0.0.1"))
	s.Flush()
	wantErrors(t, web(s).Warnings)
	lock := someEndpoints("web", "10.0.0.1 http:8080")
	lock.Annotations = map[string]string{annotationLeader: "x"}
	wantErrors(t, web(load(selectorless(aService("web", "http:80")), lock)).Warnings, "it is a lock")
	lock.Annotations, lock.Labels = nil, map[string]string{"endpointslice.kubernetes.io/skip-mirror": "true"}
	wantErrors(t, web(load(selectorless(aService("web", "http:80")), lock)).Warnings, "label endpointslice.kubernetes.io/skip-mirror is true")
}

func TestAThousandAddressesOfASubsetAreMirrored(t *testing.T) {
	subset, other := "", ""
	for i := range 1200 {
		mark := ""
		if i < 300 {
			mark = "!"
		}
		subset += fmt.Sprintf("%s10.0.%d.%d ", mark, i/250, i%250)
		other += fmt.Sprintf("10.1.%d.%d ", i/250, i%250)
	}
	s := load(selectorless(aService("web", "http:80")), someEndpoints("web", subset+"http:8080", other+"http:9090"))
	eps := web(s).Ports[0].Endpoints
	ready := 0
	for _, e := range eps {
		if e.Ready {
			ready++
		}
	}
	if len(eps) != 2000 || ready != 1900 {
		t.Errorf("%d endpoints, %d of them ready", len(eps), ready)
	}
	wantErrors(t, web(s).Warnings, "at most 1000 addresses of a subset are mirrored: 400 were skipped")
}

func TestSubsetsAreRepackedBeforeTheyAreCut(t *testing.T) {
	// Four subsets of 400 with the same ports are one of 1,600.
	var subsets []string
	for i := range 4 {
		text := "http:8080"
		for j := range 400 {
			text += fmt.Sprintf(" 10.%d.%d.%d", i, j/250, j%250)
		}
		subsets = append(subsets, text)
	}
	s := load(selectorless(aService("web", "http:80")), someEndpoints("web", subsets...))
	if n := len(web(s).Ports[0].Endpoints); n != 1000 {
		t.Errorf("%d endpoints", n)
	}
}

func TestTruncatedEndpointsAreServedWithAWarning(t *testing.T) {
	ep := someEndpoints("web", "10.0.0.1 http:8080")
	ep.Annotations = map[string]string{"endpoints.kubernetes.io/over-capacity": "truncated"}
	s := load(selectorless(aService("web", "http:80")), ep)
	wantWeb(t, s, "http: 10.0.0.1:8080")
	wantErrors(t, web(s).Errors)
	wantErrors(t, web(s).Warnings, "Endpoints default/web: over capacity, truncated: endpoints are missing from it")
	feed(s, aSlice("web-1", "web", "http:8080", "10.0.0.1\n10.0.0.2"))
	wantWeb(t, s, "http: 10.0.0.1:8080 10.0.0.2:8080")
	wantErrors(t, web(s).Warnings)
}

func TestBadPartsOfEndpointsAreRefusedOneByOne(t *testing.T) {
	s := load(selectorless(aService("web", "http:80")), someEndpoints("web", "127.0.0.1 10.0.0.1 x http:8080 bad:0 odd:1/ICMP"))
	wantWeb(t, s, "http: 10.0.0.1:8080")
	got := strings.Join(web(s).Errors, "\n")
	for _, want := range []string{
		`Endpoints default/web: subsets.ports["bad"].port: Invalid value: 0`,
		`subsets.ports["odd"].protocol: Unsupported value: "ICMP"`,
		`subsets.addresses: Invalid value: "127.0.0.1": may not be in the loopback range`,
		`subsets.addresses: Invalid value: "x": must be a valid IP address`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing of\n%s", want, got)
		}
	}
	if n := s.Stats().RefusedEndpoints; n != 2 {
		t.Errorf("%d refused", n)
	}
}
