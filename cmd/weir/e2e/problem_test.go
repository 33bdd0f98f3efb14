package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/perf/netlab"
)

// notServed are Services of which each has another reason not to be served.
const notServed = `
---
{apiVersion: v1, kind: Service, metadata: {namespace: x, name: second}, spec: {type: LoadBalancer, ports: [{port: 80, nodePort: 31001}]}, status: {loadBalancer: {ingress: [{ip: %[1]s}]}}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: x, name: ssh}, spec: {type: LoadBalancer, ports: [{port: 22, nodePort: 31002}]}, status: {loadBalancer: {ingress: [{ip: %[2]s}]}}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: x, name: nonumber}, spec: {type: NodePort, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: x, name: orphan}, addressType: IPv4, ports: [{port: 80}], endpoints: [{addresses: [10.1.1.1]}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: x, name: second, labels: {kubernetes.io/service-name: second}}, addressType: IPv4, endpoints: []}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: x, name: ssh, labels: {kubernetes.io/service-name: ssh}}, addressType: IPv4, endpoints: []}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: x, name: nonumber, labels: {kubernetes.io/service-name: nonumber}}, addressType: IPv4, endpoints: []}
---
{apiVersion: v1, kind: Service, metadata: {namespace: x, name: bad}, spec: {type: NodePort, ports: [{port: 70000}]}}
`

// What is not served is in the status, in the metrics, in the log and in what
// weir explain says, for as long as it is so.
func TestWireNotServedIsSaid(t *testing.T) {
	first := service{name: "first", index: 21, endpoints: []endpoint{attached}, lb: []netip.Addr{netlab.Host4(netlab.ClientNet, 100)}}
	own := netlab.Host4(netlab.ClientNet, 1)
	f := ownFixture(t, options{services: []service{toAttached}, extra: "metricsBindAddress: 127.0.0.1:9464"})
	if err := os.WriteFile(f.path("manifests/more.yaml"), fmt.Appendf(render(t, []service{first}), notServed, first.lb[0], own), 0o644); err != nil {
		t.Fatal(err)
	}
	want := map[string]problem.Kind{
		"Service x/second":       problem.FrontendConflict,
		"Service test/first":     problem.FrontendContested,
		"Service x/ssh":          problem.ProtectedPort,
		"Service x/nonumber":     problem.NoNodePort,
		"EndpointSlice x/orphan": problem.OrphanSlice,
		"Service x/bad":          problem.Manifest,
	}
	f.awaitProblems(t, want)
	metrics := f.metrics(t)
	for _, kind := range want {
		if line := fmt.Sprintf("weir_problems{kind=%q,severity=%q} 1\n", kind, kind.Describe().Severity); !strings.Contains(metrics, line) {
			t.Errorf("metrics have no %s", line)
		}
	}
	explained, _ := f.command("explain", "--admin-socket", f.path("weir.sock"), "--service", "x/second").CombinedOutput()
	for _, text := range []string{"not served  held by Service test/first", "frontend-conflict"} {
		if !strings.Contains(string(explained), text) {
			t.Errorf("weir explain does not have %q:\n%s", text, explained)
		}
	}
	for _, text := range []string{"held by Service test/first", "is protected on the node's own addresses"} {
		if !strings.Contains(f.logTail(), text) {
			t.Errorf("the log does not have %q:\n%s", text, f.logTail())
		}
	}

	// The address is free: the second Service gets it, and nothing is said.
	replace(t, f.path("manifests/more.yaml"), fmt.Appendf(nil, notServed, first.lb[0], own))
	delete(want, "Service x/second")
	delete(want, "Service test/first")
	f.awaitProblems(t, want)
}

// metrics are those of weir run, which is to serve them on 127.0.0.1:9464.
func (f *fixture) metrics(t *testing.T) string {
	t.Helper()
	c := http.Client{Timeout: within, Transport: &http.Transport{DialContext: f.Edge.Edge.DialContext, DisableKeepAlives: true}}
	r, err := c.Get("http://127.0.0.1:9464/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// awaitProblems waits until the errors and warnings about objects of Kubernetes
// are these, by object.
func (f *fixture) awaitProblems(t *testing.T, want map[string]problem.Kind) {
	t.Helper()
	err := f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		return compareProblems(s, want)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func compareProblems(s *api.Status, want map[string]problem.Kind) error {
	var got, wanted []string
	for _, p := range s.Problems {
		if kind, _, _ := strings.Cut(p.Object, " "); kind == "Service" || kind == "EndpointSlice" {
			got = append(got, p.Object+" "+string(p.Kind))
		}
		if p.Since.IsZero() || p.Reason == "" {
			return fmt.Errorf("no time or no reason: %+v", p)
		}
	}
	for object, kind := range want {
		wanted = append(wanted, object+" "+string(kind))
	}
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		return fmt.Errorf("problems are %q, want %q", got, wanted)
	}
	return nil
}
