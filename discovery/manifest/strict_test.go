package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// warnings are those of the last load, without the directory; notes follow.
func (d *dir) warnings() (out []string) {
	r := d.src.Report()
	for i := range r.Warnings {
		out = append(out, strings.TrimPrefix(r.Warnings[i].Error(), d.path+"/"))
	}
	for _, n := range r.Notes {
		out = append(out, strings.TrimPrefix(n.String(), d.path+"/"))
	}
	return out
}

// expectWarnings loads, and expects no errors.
func (d *dir) expectWarnings(want ...string) {
	d.t.Helper()
	d.expectErrors()
	got := d.warnings()
	if len(got) != len(want) {
		d.t.Fatalf("warnings:\n got %q\nwant %q", got, want)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			d.t.Errorf("warning %d:\n got %q\nwant %q", i, got[i], want[i])
		}
	}
}

func nodePortService(name string, port, nodePort int) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {type: NodePort, ports: [{port: %d, nodePort: %d}]}\n", name, port, nodePort)
}

// A document that would open, move or take away a Service is refused: the Service stays.
func TestDangerousDocumentsLeaveTheServiceAsServed(t *testing.T) {
	const good = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n" +
		"spec:\n  type: LoadBalancer\n  clusterIP: 10.96.0.1\n  loadBalancerSourceRanges: [10.0.0.0/8]\n  ports: [{port: 80, nodePort: 30080}]\n" +
		"status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}\n"
	for _, c := range []struct{ old, new, want string }{
		{"  type: LoadBalancer\n", "", "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"},
		{"LoadBalancer\n", "ClusterIP\n", "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"},
		{"LoadBalancer\n", "NodePort\n", "spec.loadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'"},
		{"[{port: 80, nodePort: 30080}]", "null", "spec.ports: Required value"},
		{"[{port: 80, nodePort: 30080}]", "[]", "spec.ports: Required value"},
		{"10.0.0.0/8", "10.1.2.3/8", "spec.loadBalancerSourceRanges[0]: Invalid value"},
		{"10.0.0.0/8", "010.0.0.0/8", "spec.loadBalancerSourceRanges[0]: Invalid value"},
		{"192.0.2.1", "192.0.2.01", "status.loadBalancer.ingress[0].ip: Invalid value: \"192.0.2.01\": must not have leading 0s"},
		{"192.0.2.1", "192.0.2.1, ipMode: proxy", "status.loadBalancer.ingress[0].ipMode: Unsupported value: \"proxy\""},
		{"10.96.0.1", "None", "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for LoadBalancer services"},
		{"LoadBalancer\n", "ExternalName\n", "spec.externalName: Required value"},
		{"loadBalancerSourceRanges", "loadBalancerSourceRange", "spec.loadBalancerSourceRange: unknown field (did you mean loadBalancerSourceRanges?)"},
		{"namespace: shop", "namespce: shop", "metadata.namespce: unknown field (did you mean namespace?)"},
	} {
		t.Run(c.new, func(t *testing.T) {
			d := newDir(t)
			d.write("a.yaml", good)
			d.expectErrors()
			before := d.src.Services()[0]
			d.write("a.yaml", strings.Replace(good, c.old, c.new, 1))
			got := d.load()
			if !slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, c.want) }) {
				t.Errorf("errors %q, want %q", got, c.want)
			}
			if after := d.src.Services(); len(after) != 1 || after[0] != before {
				t.Errorf("served is %+v, was %+v", after, before)
			}
		})
	}
}

// Load balancer addresses of a Service of another type are not served: an API server clears them.
func TestAddressesOfAnotherTypeAreDropped(t *testing.T) {
	for _, kind := range []string{"type: ClusterIP, ", "type: NodePort, ", ""} {
		d := newDir(t)
		d.write("a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {"+kind+"ports: [{port: 80}]}\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}\n")
		d.expectWarnings("Service default/web: status.loadBalancer.ingress: ignored, since spec.type is ")
		if got := d.src.Services()[0].LoadBalancerIPs; len(got) > 0 {
			t.Errorf("%sserves %v", kind, got)
		}
	}
}

func TestUnknownFieldsAreNamed(t *testing.T) {
	for _, c := range []struct{ good, old, new, want string }{
		{goodService, "nodePort: 30080", "nodeport: 30080", "Service shop/web: spec.ports[0].nodeport: unknown field (did you mean nodePort?)"},
		{goodService, "externalTrafficPolicy", "externalTraficPolicy", "spec.externalTraficPolicy: unknown field (did you mean externalTrafficPolicy?)"},
		{goodService, "sessionAffinity:", "affinity:", "spec.affinity: unknown field"},
		{goodService, "  ports:", "  typo: {a: [b]}\n  ports:", "spec.typo: unknown field"},
		{goodSlice, "labels:", "generation: 1\n  lables: {a: b}\n  labels:", "EndpointSlice shop/web-1: metadata.lables: unknown field (did you mean labels?)"},
		{goodSlice, "{ready: true}", "{redy: true}", "endpoints[0].conditions.redy: unknown field (did you mean ready?)"},
		{goodEndpoints, "notReadyAddresses", "notreadyAddresses", "Endpoints shop/web: subsets[0].notreadyAddresses: unknown field (did you mean notReadyAddresses?)"},
		{"apiVersion: v1\nkind: Node\nmetadata: {name: edge-1}\nspec: {}\n", "spec:", "stauts:", "Node edge-1: stauts: unknown field (did you mean status?)"},
	} {
		t.Run(c.want, func(t *testing.T) {
			d := newDir(t)
			d.write("a.yaml", strings.Replace(c.good, c.old, c.new, 1))
			d.expectWarnings(c.want)
			if n := d.src.Report().Objects; n != 1 {
				t.Errorf("%d objects are served", n)
			}
			d.write("a.yaml", "# another text\n"+strings.Replace(c.good, c.old, c.new, 1))
			d.expectWarnings(c.want)
			d.write("b.yaml", "")
			d.expectWarnings(c.want)
			d.write("a.yaml", c.good)
			d.expectWarnings()
		})
	}
}

// The same in many objects is said once.
func TestWarningsOfManyObjectsAreBounded(t *testing.T) {
	var text strings.Builder
	for i := range 300 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Node\nmetadata: {name: n%d}\nstatus: {newer: 1}\n", i)
	}
	d := newDir(t)
	d.write("a.yaml", text.String())
	d.expectWarnings("a.yaml: document 1 (line 2): Node n0: status.newer: unknown field (and 299 more of the file)")
	text.Reset()
	for i := range 300 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Node\nmetadata: {name: n%d}\nstatus: {newer%d: 1}\n", i, i)
	}
	d.write("a.yaml", text.String())
	d.expectErrors()
	if got := d.warnings(); len(got) != maxFileNotes+1 || !strings.HasSuffix(got[maxFileNotes], "more warnings are left out") {
		t.Errorf("%d warnings, the last is %q", len(got), got[len(got)-1])
	}
}

// An unknown field is named beside the fault that it causes.
func TestUnknownFieldOfARefusedObject(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", strings.Replace(service("web", 80), "spec:", "specs:", 1))
	d.expectErrors("Service default/web: specs: unknown field (did you mean spec?)", "Service default/web: spec.ports: Required value")
}

// A misspelt kind or API version withdraws nothing.
func TestMisspeltKindKeepsTheObject(t *testing.T) {
	web := service("web", 80) + slice("web-1", "web", "10.1.1.1")
	for _, c := range []struct{ old, new, want string }{
		{"kind: Service", "kind: Servic", `Service default/web: kind: "v1 Servic" is not used by Weir (did you mean v1 Service?) (it stays as last served)`},
		{"kind: Service", "kind: service", `kind: "v1 service" is not used by Weir (did you mean v1 Service?)`},
		{"v1\nkind: Service", "apps/v1\nkind: Service", `apiVersion: "apps/v1 Service" is not used by Weir (did you mean v1 Service?)`},
		{"discovery.k8s.io/v1", "v1", `EndpointSlice default/web-1: apiVersion: "v1 EndpointSlice" is not used by Weir`},
		{"discovery.k8s.io/v1", "discovery/v1", `apiVersion: "discovery/v1 EndpointSlice" is not used by Weir`},
		{"EndpointSlice", "EndpointSlices", `kind: "discovery.k8s.io/v1 EndpointSlices" is not used by Weir`},
	} {
		t.Run(c.new, func(t *testing.T) {
			d := newDir(t)
			d.write("a.yaml", web)
			d.expectErrors()
			d.write("a.yaml", strings.Replace(web, c.old, c.new, 1))
			for range 2 {
				d.expectErrors(c.want)
				d.expect("default/web 80 10.1.1.1:8080")
			}
			d.write("a.yaml", web)
			d.expectErrors()
		})
	}
	d := newDir(t)
	d.write("a.yaml", "apiVersion: v1\nkind: Servic\nmetadata: {name: web}\n")
	d.expectErrors(`Service default/web: kind: "v1 Servic" is not used by Weir (did you mean v1 Service?): skipped`)

	// A List of another name hides which objects there are.
	d.write("a.yaml", yamlList(80, 81))
	d.expectErrors()
	d.write("a.yaml", strings.Replace(yamlList(90, 91), "kind: List", "kind: Lits", 1))
	d.expectErrors(`kind: Unsupported value: "Lits": a list of items is read as List (what is served from this file stays)`)
	d.expect("default/s0 80", "default/s1 81")

	// A Service of Knative, beside that of the same name or alone, is none of Weir's business.
	knative := "---\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: web}\n"
	d = newDir(t)
	d.write("a.yaml", service("web", 80)+knative)
	d.expectWarnings("serving.knative.dev/v1 Service is not used by Weir, skipped")
}

// A misspelt kind or group of the Gateway API is an error, other routes and groups are not.
func TestMisspeltKindOfTheGatewayAPI(t *testing.T) {
	const group = "gateway.networking.k8s.io/v1"
	for _, c := range []struct{ apiVersion, kind, field, meant string }{
		{group, "TcpRoute", "kind", "TCPRoute"},
		{group, "tcproute", "kind", "TCPRoute"},
		{group, "TCPRoutes", "kind", "TCPRoute"},
		{group, "TCPRout", "kind", "TCPRoute"},
		{group, "UdpRoute", "kind", "UDPRoute"},
		{group, "Gatway", "kind", "Gateway"},
		{group, "GatewayClas", "kind", "GatewayClass"},
		{"v1", "TcpRoute", "kind", "TCPRoute"},
		{"v1", "TCPRoute", "apiVersion", "TCPRoute"},
		{"gateways.networking.k8s.io/v1", "Gateway", "apiVersion", "Gateway"},
		{"gateways.networking.k8s.io/v1", "TcpRoute", "kind", "TCPRoute"},
		{group, "HTTPRoute", "", ""},
		{group, "TLSRoute", "", ""},
		{group, "GRPCRoute", "", ""},
		{group, "ListenerSet", "", ""},
		{"networking.istio.io/v1", "Gateway", "", ""},
		{"traefik.io/v1alpha1", "TcpRoute", "", ""},
	} {
		t.Run(c.apiVersion+" "+c.kind, func(t *testing.T) {
			d := newDir(t)
			d.write("a.yaml", "apiVersion: "+c.apiVersion+"\nkind: "+c.kind+"\nmetadata: {name: web}\n")
			if c.meant == "" {
				d.expectWarnings(c.apiVersion + " " + c.kind + " is not used by Weir, skipped")
				return
			}
			d.expectErrors(fmt.Sprintf("%s: %q is not used by Weir (did you mean %s %s?): skipped",
				c.field, c.apiVersion+" "+c.kind, group, c.meant))
		})
	}
}

// A node port is never taken from the Service that serves on it.
func TestNodePortOfAnotherServiceIsRefused(t *testing.T) {
	d := newDir(t)
	d.write("web.yaml", nodePortService("web", 80, 30080))
	d.write("api.yaml", nodePortService("api", 81, 30081))
	d.expectErrors()
	d.write("dup.yaml", strings.Replace(nodePortService("dup", 82, 30080), "{name: dup}", "{name: dup, creationTimestamp: \"2020-01-01T00:00:00Z\"}", 1))
	for range 2 {
		d.expectErrors("dup.yaml: document 1 (line 2): Service default/dup: spec.ports[0].nodePort: Invalid value: 30080: " +
			"provided port is already allocated: TCP 30080 is of Service default/web")
		if got := d.warnings(); len(got) != 1 || got[0] != "web.yaml: document 1 (line 2): Service default/web: Service default/dup asks for node port TCP 30080, too: it is refused, and this Service keeps the port" {
			t.Errorf("warnings %q", got)
		}
		d.expect("default/api 81", "default/web 80")
	}
	// An edit that takes the port of another leaves the Service as it was, and the other, too.
	d.write("api.yaml", nodePortService("api", 91, 30080))
	if got := d.load(); len(got) != 2 {
		t.Errorf("errors %q", got)
	}
	d.expect("default/api 81", "default/web 80")
	d.remove("dup.yaml")
	// The port is given up: the next has it.
	d.write("web.yaml", nodePortService("web", 80, 30090))
	d.expectErrors()
	d.expect("default/api 91", "default/web 80")
	// Two Services that change places.
	d.write("web.yaml", nodePortService("web", 80, 30080))
	d.write("api.yaml", nodePortService("api", 91, 30090))
	d.expectErrors()
	// A refused Service holds the ports of its last version, which another may want.
	d.write("api.yaml", nodePortService("api", 91, 30080))
	d.write("new.yaml", nodePortService("new", 92, 30090))
	if got := d.load(); len(got) != 2 {
		t.Errorf("errors %q", got)
	}
	d.expect("default/api 91", "default/web 80")

	// Of two new Services the older has the port, then the one with endpoints.
	d = newDir(t)
	d.write("a.yaml", nodePortService("a", 80, 30080)+nodePortService("b", 81, 30080)+slice("b-1", "b", "10.1.1.1"))
	d.expectErrors("Service default/a: spec.ports[0].nodePort")
	d.expect("default/b 81 10.1.1.1:8080")
	d = newDir(t)
	d.write("a.yaml", nodePortService("a", 80, 30080)+strings.Replace(nodePortService("b", 81, 30080), "{name: b}", "{name: b, creationTimestamp: \"2020-01-01T00:00:00Z\"}", 1))
	d.expectErrors("Service default/a: spec.ports[0].nodePort")
	// A node port for TCP and one for UDP do not meet.
	d = newDir(t)
	d.write("a.yaml", nodePortService("a", 80, 30080)+strings.Replace(nodePortService("b", 81, 30080), "port: 81", "protocol: UDP, port: 81", 1))
	d.expectErrors()
}

func TestHealthCheckNodePortOfAnotherIsRefused(t *testing.T) {
	const check = "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: %d, ports: [{port: 80}]}\n"
	d := newDir(t)
	d.write("a.yaml", nodePortService("web", 80, 32200))
	d.write("b.yaml", fmt.Sprintf(check, "b", 32201))
	d.expectErrors()
	d.write("b.yaml", fmt.Sprintf(check, "b", 32200))
	d.expectErrors("Service default/b: spec.healthCheckNodePort: Invalid value: 32200: provided port is already allocated: TCP 32200 is of Service default/web (it stays as last served)")
	d.write("b.yaml", fmt.Sprintf(check, "b", 32201))
	d.write("c.yaml", fmt.Sprintf(check, "c", 32201))
	d.expectErrors("Service default/c: spec.healthCheckNodePort: Invalid value: 32201: provided port is already allocated: TCP 32201 is of Service default/b")
	d.write("c.yaml", strings.Replace(fmt.Sprintf(check, "c", 32203), "port: 80", "port: 80, nodePort: 32203", 1))
	d.expectErrors("Service default/c: spec.healthCheckNodePort: Duplicate value: 32203")
}

func TestNodePortOutsideOfTheRangeIsNoted(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", nodePortService("web", 80, 8080))
	d.expectWarnings("a.yaml: document 1: Service default/web: spec.ports[0].nodePort: 8080 is outside of 30000-32767")
}

// Of Services with the same address, the one that serves has precedence, whatever a copy says.
func TestNewServicesAreYounger(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", service("old", 80)+strings.Replace(service("older", 81), "{name: older}", "{name: older, creationTimestamp: \"2021-01-01T00:00:00Z\"}", 1))
	d.expectErrors()
	d.write("b.yaml", strings.Replace(service("copy", 82), "{name: copy}", "{name: copy, creationTimestamp: \"2020-01-01T00:00:00Z\"}", 1))
	d.expectErrors()
	d.write("a.yaml", service("old", 90)+strings.Replace(service("older", 91), "{name: older}", "{name: older, creationTimestamp: \"2021-01-01T00:00:00Z\"}", 1))
	d.expectErrors()
	created := map[string]int64{}
	for _, s := range d.src.Services() {
		created[s.Name.Name] = s.Created
	}
	if !(0 < created["older"] && created["older"] < created["old"] && created["old"] < created["copy"]) {
		t.Errorf("created %v", created)
	}
}
