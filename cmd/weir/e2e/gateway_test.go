package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// gatewayService is a Service that routes name, with the slices of an endpoint.
func gatewayService(name string, e endpoint) string {
	text := fmt.Sprintf("---\n{apiVersion: v1, kind: Service, metadata: {namespace: test, name: %s}, spec: {clusterIP: None, "+
		"ports: [{name: http, port: 80}, {name: echo, protocol: UDP, port: 53}]}}\n", name)
	for _, six := range []bool{false, true} {
		family := map[bool]string{false: "IPv4", true: "IPv6"}[six]
		text += fmt.Sprintf("---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: test, name: %s-%s, "+
			"labels: {kubernetes.io/service-name: %[1]s}}, addressType: %[3]s, endpoints: [{addresses: [\"%[4]s\"]}], "+
			"ports: [{name: http, port: %[5]d}, {name: echo, protocol: UDP, port: %[6]d}]}\n",
			name, strings.ToLower(family), family, e.addr(six), httpTarget, echoTarget)
	}
	return text
}

// gatewayRoute is a route of a kind to a listener of the Gateway.
func gatewayRoute(kind, listener, refs string) string {
	return fmt.Sprintf("---\n{apiVersion: gateway.networking.k8s.io/v1, kind: %s, metadata: {namespace: test, name: edge}, "+
		"spec: {parentRefs: [{name: edge, sectionName: %s}], rules: [{backendRefs: [%s]}]}}\n", kind, listener, refs)
}

// gatewayServes waits until the addresses of the Gateway have these endpoints at the port of listener web.
func (f *fixture) gatewayServes(t *testing.T, want ...endpoint) {
	t.Helper()
	must(t, f.poll(func(ctx context.Context) error {
		list, err := f.admin.Frontends(ctx)
		if err != nil {
			return err
		}
		for i, addr := range toAnnounced.lb {
			var expected, got []string
			for _, e := range want {
				expected = append(expected, netip.AddrPortFrom(e.addr(i == 1), httpTarget).String())
			}
			at := slices.IndexFunc(list.Frontends, func(fr api.Frontend) bool {
				return fr.Address == netip.AddrPortFrom(addr, 80).String() && fr.Protocol == "TCP"
			})
			if at < 0 {
				return fmt.Errorf("%s is not served", addr)
			}
			for _, e := range list.Frontends[at].Endpoints {
				got = append(got, e.Address)
			}
			slices.Sort(expected)
			slices.Sort(got)
			if diff := cmp.Diff(expected, got); diff != "" {
				return fmt.Errorf("endpoints of %s, -want +got:\n%s", addr, diff)
			}
		}
		return nil
	}))
}

// A Gateway of the manifests is served: clients of both families get the shares of the routes, and a route
// that goes has connections refused.
func TestWireGatewayOfManifests(t *testing.T) {
	const refs = "{name: a, port: %d, weight: 3}, {name: b, port: %[1]d}"
	edge := fmt.Sprintf("---\n{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: weir}, "+
		"spec: {controllerName: weir.dev/gateway-controller}}\n"+
		"---\n{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {namespace: test, name: edge}, "+
		"spec: {gatewayClassName: weir, addresses: [{value: %s}, {value: \"%s\"}], "+
		"listeners: [{name: web, protocol: TCP, port: 80}, {name: dns, protocol: UDP, port: 53}]}}\n", toAnnounced.lb[0], toAnnounced.lb[1]) +
		gatewayService("a", attached) + gatewayService("b", routed)
	udp := gatewayRoute("UDPRoute", "dns", fmt.Sprintf(refs, 53))

	f := ownFixture(t, options{announced: toAnnounced.lb})
	replace(t, f.manifest(), []byte(edge+udp+gatewayRoute("TCPRoute", "web", fmt.Sprintf(refs, 80))))
	f.gatewayServes(t, attached, routed)
	bothFamilies(t, func(t *testing.T, six bool) {
		const n = 200 // the share of 3/4 has a standard deviation of 3 %
		r := f.gatewayLoad(t, six, n)
		if share := r.Servers()["attached"]; r.Err() != nil || share < n*60/100 || share > n*90/100 {
			t.Errorf("TCP: %v answered, want 3/4 from attached; %v; %s", r.Servers(), r.Err(), f.whatWasDropped())
		}
		answers := map[string]int{}
		for range n / 2 {
			name, err := workload.Ask(f.Client, netip.AddrPortFrom(gatewayAddress(six), 53), patience.For(2*time.Second))
			if err != nil {
				t.Fatalf("UDP: %v; %s", err, f.whatWasDropped())
			}
			answers[name]++
		}
		if answers["attached"] <= answers["routed"] || answers["routed"] == 0 {
			t.Errorf("UDP: %v answered, want 3/4 from attached", answers)
		}
	})

	replace(t, f.manifest(), []byte(edge+udp+gatewayRoute("TCPRoute", "web", "{name: b, port: 80}")))
	f.gatewayServes(t, routed)
	bothFamilies(t, func(t *testing.T, six bool) {
		if r := f.gatewayLoad(t, six, 20); r.Err() != nil || r.Servers()["routed"] != 20 {
			t.Errorf("%v answered, want routed alone; %v", r.Servers(), r.Err())
		}
	})

	replace(t, f.manifest(), []byte(edge+udp))
	f.gatewayServes(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		if r := f.gatewayLoad(t, six, 1); r.Failures()[workload.KindRefused] != 1 {
			t.Errorf("without a route: %v, want a refusal", r.Failures())
		}
	})
}

// The only listener of a Gateway may have a range of ports.
func TestWireGatewayPortRange(t *testing.T) {
	const another = httpTarget + 7
	f := ownFixture(t, options{announced: toAnnounced.lb})
	for _, six := range []bool{false, true} {
		listenRange(t, f, f.ZoneA, "tcp", netip.AddrPortFrom(attached.addr(six), another), "another")
	}
	web := strings.ReplaceAll(gatewayService("a", attached), "{name: http, port: 80}", fmt.Sprintf("{name: http, port: %d}", httpTarget))
	replace(t, f.manifest(), []byte(fmt.Sprintf("---\n{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: weir}, "+
		"spec: {controllerName: weir.dev/gateway-controller}}\n"+
		"---\n{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {namespace: test, name: edge, annotations: {weir.dev/port-range: %d-%d}}, "+
		"spec: {gatewayClassName: weir, addresses: [{value: %s}, {value: \"%s\"}], listeners: [{name: web, protocol: TCP, port: %[1]d}]}}\n",
		httpTarget, httpTarget+9, toAnnounced.lb[0], toAnnounced.lb[1])+
		gatewayRoute("TCPRoute", "web", fmt.Sprintf("{name: a, port: %d}", httpTarget))+web))
	must(t, f.poll(func(ctx context.Context) error {
		list, err := f.admin.Frontends(ctx)
		if n := len(list.Frontends); err == nil && (n != 2 || !strings.HasSuffix(list.Frontends[0].Address, fmt.Sprintf(":%d-%d", httpTarget, httpTarget+9))) {
			err = fmt.Errorf("frontends %v", list.Frontends)
		}
		return err
	}))
	bothFamilies(t, func(t *testing.T, six bool) {
		if got := f.askRange(t, "tcp", netip.AddrPortFrom(gatewayAddress(six), another)); got != "another" {
			t.Errorf("%q answers; %s", got, f.whatWasDropped())
		}
	})
}

func gatewayAddress(six bool) netip.Addr {
	if six {
		return toAnnounced.lb[1]
	}
	return toAnnounced.lb[0]
}

// gatewayLoad makes requests to listener web.
func (f *fixture) gatewayLoad(t *testing.T, six bool, requests int) *workload.Record {
	t.Helper()
	r, err := (&workload.Load{Namespace: f.Client, Targets: []netip.AddrPort{netip.AddrPortFrom(gatewayAddress(six), 80)},
		Requests: requests, Timeout: patience.For(5 * time.Second)}).Run(inTime(t, patience.For(time.Minute)))
	must(t, err)
	return r
}
