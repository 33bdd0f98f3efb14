package manifest

import (
	"fmt"
	"strings"
	"testing"
)

const (
	edge = `
{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: weir}, spec: {controllerName: weir.dev/gateway-controller}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  gatewayClassName: weir
  addresses: [{value: 192.0.2.1}, {value: "2001:db8::1"}]
  listeners: [{name: web, protocol: TCP, port: 80}, {name: dns, protocol: UDP, port: 53}]
`
	webRoute = `
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: web}
spec:
  parentRefs: [{name: edge, sectionName: web}]
  rules: [{backendRefs: [{name: v1, port: 80, weight: 3}, {name: v2, port: 80}]}]
`
)

// withEndpoint is a Service without an address, with an endpoint.
func withEndpoint(name, address string) string {
	return fmt.Sprintf(`
{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {clusterIP: None, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}, addressType: IPv4, ports: [{port: 8080}], endpoints: [{addresses: [%s]}]}
`, name, address)
}

// gatewayPorts are the ports of generated Services, with weights of endpoints.
func (d *dir) gatewayPorts() string {
	var out []string
	for _, svc := range d.src.Services() {
		if svc.Name.Name != "edge-weir" {
			continue
		}
		out = append(out, fmt.Sprint(svc.LoadBalancerIPs))
		for _, p := range svc.Ports {
			line := fmt.Sprintf("%s/%d", p.Protocol, p.Port)
			for _, e := range p.Endpoints {
				line += fmt.Sprintf(" %s*%d", e.AddrPort, e.Weight)
			}
			out = append(out, line)
		}
	}
	return strings.Join(out, "; ")
}

// expectGateway loads, and expects ports of the generated Service, and warnings.
func (d *dir) expectGateway(want string, warnings ...string) {
	d.t.Helper()
	d.expectWarnings(warnings...)
	if got := d.gatewayPorts(); got != want {
		d.t.Fatalf("served:\n got %q\nwant %q", got, want)
	}
}

const edgeServed = "[192.0.2.1 2001:db8::1]; TCP/80 10.1.1.1:8080*3 10.1.1.2:8080*1; UDP/53"

// Objects of the Gateway API are served like those of a cluster, in whatever order files come and go.
func TestGateways(t *testing.T) {
	d := newDir(t)
	d.write("v1.yaml", withEndpoint("v1", "10.1.1.1"))
	d.write("v2.yaml", withEndpoint("v2", "10.1.1.2"))
	d.expectGateway("")

	// The backends are served already, and their files unchanged.
	d.write("edge.yaml", edge)
	d.write("route.yaml", webRoute)
	d.expectGateway(edgeServed)
	d.expectGateway(edgeServed)

	t.Log("a slice changes")
	d.write("v2.yaml", withEndpoint("v2", "10.1.1.3"))
	d.expectGateway("[192.0.2.1 2001:db8::1]; TCP/80 10.1.1.1:8080*3 10.1.1.3:8080*1; UDP/53")
	d.write("v2.yaml", withEndpoint("v2", "10.1.1.2"))
	d.expectGateway(edgeServed)

	t.Log("the route is broken, and stays")
	d.write("route.yaml", strings.Replace(webRoute, "weight: 3", "weight: -3", 1))
	d.expectErrors("spec.rules[0].backendRefs[0].weight")
	d.write("route.yaml", strings.Replace(webRoute, "sectionName", "sectioName", 1))
	d.expectErrors("spec.parentRefs[0].sectioName: unknown field (did you mean sectionName?)")
	d.write("route.yaml", strings.Replace(webRoute, "TCPRoute", "TCPRout", 1))
	d.expectErrors("TCPRoute default/web: kind")
	d.write("route.yaml", strings.Replace(webRoute, "weight: 3", "weight: 5", 1))
	d.expectGateway("[192.0.2.1 2001:db8::1]; TCP/80 10.1.1.1:8080*5 10.1.1.2:8080*1; UDP/53")

	t.Log("a route that comes later takes no listener")
	d.write("another.yaml", strings.NewReplacer("{name: web}", "{name: a}", "weight: 3", "weight: 9").Replace(webRoute))
	d.expectGateway("[192.0.2.1 2001:db8::1]; TCP/80 10.1.1.1:8080*5 10.1.1.2:8080*1; UDP/53")
	d.remove("another.yaml")

	t.Log("the Gateway is refused, and endpoints are followed as before")
	d.write("edge.yaml", strings.Replace(edge, "{value: 192.0.2.1}", "{type: Hostname, value: a.example}", 1))
	d.write("v2.yaml", withEndpoint("v2", "10.1.1.4"))
	d.expectGateway("[192.0.2.1 2001:db8::1]; TCP/80 10.1.1.1:8080*5 10.1.1.4:8080*1; UDP/53", "not Accepted (UnsupportedAddress)")
	d.write("edge.yaml", strings.Join(strings.Split(edge, "---")[1:], "---"))
	d.write("v2.yaml", withEndpoint("v2", "10.1.1.2"))
	d.expectGateway("[192.0.2.1 2001:db8::1]; TCP/80 10.1.1.1:8080*5 10.1.1.2:8080*1; UDP/53", "GatewayClass weir does not exist", "not Accepted (Invalid)")
	t.Log("the class has another name: the Service keeps its own")
	d.write("edge.yaml", strings.NewReplacer("metadata: {name: weir}", "metadata: {name: next}", "gatewayClassName: weir", "gatewayClassName: next").Replace(edge))
	d.expectGateway("[192.0.2.1 2001:db8::1]; TCP/80 10.1.1.1:8080*5 10.1.1.2:8080*1; UDP/53")
	d.write("edge.yaml", edge)

	t.Log("a backend goes")
	d.write("v1.yaml", "{kind: List, apiVersion: v1, items: []}")
	d.expectGateway("[192.0.2.1 2001:db8::1]; TCP/80 10.1.1.2:8080*0; UDP/53",
		"route.yaml: document 1 (line 2): TCPRoute default/web: Gateway edge: not ResolvedRefs (BackendNotFound)")

	t.Log("the Gateway goes")
	d.remove("edge.yaml")
	d.expectGateway("", "Gateway default/edge does not exist")
	d.remove("route.yaml")
	d.expectGateway("")
	if d.src.keeping || len(d.src.generated) > 0 {
		t.Error("objects are kept without a Gateway")
	}
	d.write("v1.yaml", withEndpoint("v1", "10.1.1.1"))
	d.write("edge.yaml", edge+"---"+webRoute)
	d.expectGateway(edgeServed)
}

// Statuses that are not good are warnings, each of the document.
func TestGatewayStatus(t *testing.T) {
	service := "\n---\n{apiVersion: v1, kind: Service, metadata: {name: edge-weir}, spec: {clusterIP: None, ports: [{port: 80}]}}"
	legacy := "\n---\n{apiVersion: v1, kind: Service, metadata: {name: v1}, spec: {clusterIP: None, ports: [{port: 80}]}}" +
		"\n---\n{apiVersion: v1, kind: Endpoints, metadata: {name: v1}, subsets: [{addresses: [{ip: 10.1.1.1}], ports: [{port: 80}]}]}"
	for _, c := range []struct{ name, text, want string }{
		{"no address", strings.Replace(edge, "  addresses:", "  #", 1), "Gateway default/edge: not Programmed (AddressNotAssigned): spec.addresses has no address"},
		{"hostname", strings.Replace(edge, "{value: 192.0.2.1}", "{type: Hostname, value: a.example}", 1), "Gateway default/edge: not Accepted (UnsupportedAddress)"},
		{"listener", strings.Replace(edge, "protocol: TCP", "protocol: HTTP", 1), "Gateway default/edge: listener web: not Accepted (UnsupportedProtocol)"},
		{"name taken", edge + service, "not Programmed (Invalid): Service edge-weir exists"},
		{"no class", strings.Replace(edge, "gatewayClassName: weir", "gatewayClassName: wear", 1), "spec.gatewayClassName: GatewayClass wear does not exist"},
		{"no Gateway", webRoute, "TCPRoute default/web: spec.parentRefs[0]: Gateway default/edge does not exist"},
		{"no backend", edge + "---" + webRoute, "TCPRoute default/web: Gateway edge: not ResolvedRefs (BackendNotFound): Service default/v1 does not exist"},
		{"no grant", edge + "---" + strings.ReplaceAll(webRoute, "port: 80", "namespace: other, port: 80"), "not ResolvedRefs (RefNotPermitted)"},
		{"Endpoints", edge + "---" + webRoute + legacy, "Endpoints default/v1: not used by routes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDir(t)
			d.write("a.yaml", c.text)
			d.expectErrors()
			if got := strings.Join(d.warnings(), "\n"); !strings.Contains(got, c.want) {
				t.Errorf("warnings %s\nwant %s", got, c.want)
			}
		})
	}
}

// Objects that an API server refuses are refused.
func TestGatewayRefused(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"port: 80}, ", "port: 0}, ", "spec.listeners[0].port"},
		{"name: dns", "name: web", "spec.listeners[1].name: Duplicate value"},
		{"192.0.2.1", "127.0.0.1", "spec.addresses[0].value"},
		{"gatewayClassName: weir", "", "spec.gatewayClassName: Required value"},
		{"k8s.io/v1\nkind: Gateway\n", "k8s.io/v1alpha2\nkind: Gateway\n", "Gateway is read as gateway.networking.k8s.io/v1"},
		{"{name: web, protocol: TCP, port: 80}", "{name: web, protocol: TCP, port: 80, allowedRoute: {}}", "did you mean allowedRoutes?"},
	} {
		d := newDir(t)
		text := strings.Replace(edge, c.old, c.new, 1)
		if text == edge {
			t.Fatalf("%q is not there", c.old)
		}
		d.write("a.yaml", text)
		d.expectErrors(c.want)
	}
}
