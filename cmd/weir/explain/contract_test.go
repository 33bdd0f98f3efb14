package explain

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Two nodes and an endpoint on each; edge-1 explains.
const contractObjects = `
---
{apiVersion: v1, kind: Node, metadata: {name: edge-1, labels: {kubernetes.io/hostname: edge-1, topology.kubernetes.io/zone: a}}}
---
{apiVersion: v1, kind: Node, metadata: {name: edge-2, labels: {kubernetes.io/hostname: edge-2, topology.kubernetes.io/zone: b}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-4, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: p, port: 8080}]
endpoints:
- {addresses: [10.1.1.10], nodeName: edge-1}
- {addresses: [10.1.1.9], nodeName: edge-2}
`

const contractSlice6 = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-6, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: p, port: 8080}]
endpoints:
- {addresses: ["2001:db8::10"], nodeName: edge-1}
- {addresses: ["2001:db8::9"], nodeName: edge-2}
`

// explainJSON runs the command on text and returns the one Service of its
// answer, with the fields of the contract alone, and what it said on stderr.
func explainJSON(t *testing.T, text string) (service map[string]any, fault error) {
	t.Helper()
	cmd := Command()
	cmd.SetArgs([]string{"-f", "-", "--node", "edge-1", "-o", "json"})
	cmd.SetIn(strings.NewReader(text))
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	fault = cmd.Execute()
	var answer struct {
		Services []map[string]any `json:"services"`
	}
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	if len(answer.Services) != 1 {
		t.Fatalf("%d Services", len(answer.Services))
	}
	service = answer.Services[0]
	for _, extra := range []string{"headless", "externalName", "unsupported", "mirrored", "warnings"} {
		delete(service, extra)
	}
	for _, p := range service["ports"].([]any) {
		delete(p.(map[string]any), "detail")
		delete(p.(map[string]any), "byFamily")
	}
	return service, fault
}

// Which traffic policies a Service ever uses decides what is null.
func TestJSONSaysWhichPoliciesAreUsed(t *testing.T) {
	const both = `{"tier":"all","endpoints":["10.1.1.9:8080","10.1.1.10:8080"]}`
	const own = `{"tier":"all","endpoints":["10.1.1.10:8080"]}`
	port := func(nodePort, cluster, local string) string {
		return `[{"name":"p","protocol":"TCP","port":80,"nodePort":` + nodePort + `,"cluster":` + cluster + `,"local":` + local + `,"hasAnyEndpoints":true}]`
	}
	for _, c := range []struct{ name, spec, status, ports string }{
		{"cluster IP", `ports: [{name: p, port: 80}]`, ``, port("0", both, "null")},
		{"internal Local", `internalTrafficPolicy: Local, ports: [{name: p, port: 80}]`, ``, port("0", "null", own)},
		{"external Local of a Service that is not reachable from outside",
			`externalTrafficPolicy: Local, ports: [{name: p, port: 80}]`, ``, port("0", both, "null")},
		{"node port", `type: NodePort, ports: [{name: p, port: 80, nodePort: 30080}]`, ``, port("30080", both, "null")},
		{"node port, external Local", `type: NodePort, externalTrafficPolicy: Local, ports: [{name: p, port: 80, nodePort: 30080}]`, ``, port("30080", both, own)},
		{"node port, internal Local", `type: NodePort, internalTrafficPolicy: Local, ports: [{name: p, port: 80, nodePort: 30080}]`, ``, port("30080", both, own)},
		{"both Local", `type: NodePort, internalTrafficPolicy: Local, externalTrafficPolicy: Local, ports: [{name: p, port: 80, nodePort: 30080}]`, ``, port("30080", both, own)},
		{"external IPs, external Local", `externalTrafficPolicy: Local, externalIPs: [192.0.2.1], ports: [{name: p, port: 80}]`, ``, port("0", both, own)},
		{"load balancer that has no address yet", `type: LoadBalancer, externalTrafficPolicy: Local, ports: [{name: p, port: 80}]`, ``, port("0", both, "null")},
		{"loadBalancerIP is a wish and no address", `type: LoadBalancer, loadBalancerIP: 192.0.2.1, externalTrafficPolicy: Local, internalTrafficPolicy: Local, ports: [{name: p, port: 80}]`, ``, port("0", "null", own)},
		{"ingress without ipMode", `type: LoadBalancer, externalTrafficPolicy: Local, ports: [{name: p, port: 80}]`, `{ip: 192.0.2.1}`, port("0", both, own)},
		{"ingress of mode VIP", `type: LoadBalancer, internalTrafficPolicy: Local, ports: [{name: p, port: 80}]`, `{ip: 192.0.2.1, ipMode: VIP}`, port("0", both, own)},
		{"ingress of mode Proxy", `type: LoadBalancer, externalTrafficPolicy: Local, ports: [{name: p, port: 80}]`, `{ip: 192.0.2.1, ipMode: Proxy}`, port("0", both, "null")},
		{"ingress of mode Proxy, internal Local", `type: LoadBalancer, internalTrafficPolicy: Local, ports: [{name: p, port: 80}]`, `{ip: 192.0.2.1, ipMode: Proxy}`, port("0", "null", own)},
		{"ingress by host name", `type: LoadBalancer, internalTrafficPolicy: Local, ports: [{name: p, port: 80}]`, `{hostname: lb.example.com}`, port("0", "null", own)},
		{"source ranges have no say in the choice",
			`type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8], ports: [{name: p, port: 80}]`, `{ip: 192.0.2.1}`, port("0", both, "null")},
		{"topologyKeys", `topologyKeys: [topology.kubernetes.io/zone, "*"], ports: [{name: p, port: 80}]`, ``,
			port("0", `{"tier":"topology-key:topology.kubernetes.io/zone","endpoints":["10.1.1.10:8080"]}`, "null")},
		{"topologyKeys with the star alone", `topologyKeys: ["*"], ports: [{name: p, port: 80}]`, ``, port("0", both, "null")},
		{"topologyKeys without a match", `topologyKeys: [rack], ports: [{name: p, port: 80}]`, ``, port("0", `{"tier":"none","endpoints":[]}`, "null")},
		{"headless", `clusterIP: None, ports: [{name: p, port: 80}]`, ``, `[]`},
		{"ExternalName", `type: ExternalName, externalName: www.example.com, ports: [{name: p, port: 80}]`, ``, `[]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			ingress := ""
			if c.status != "" {
				ingress = "status: {loadBalancer: {ingress: [" + c.status + "]}}\n"
			}
			got, err := explainJSON(t, "apiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: web}\nspec: {"+c.spec+"}\n"+ingress+contractObjects)
			if err != nil && !strings.Contains(err.Error(), "no-node-port") {
				t.Error(err)
			}
			for _, added := range []string{"options", "frontends", "problems"} {
				delete(got, added) // added to what was agreed
			}
			var want map[string]any
			if err := json.Unmarshal([]byte(`{"namespace":"shop","name":"web","errors":[],"ports":`+c.ports+`}`), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Addresses are sorted as numbers, those of IPv4 before those of IPv6, and
// then by port; both families are listed.
func TestJSONSortsEndpoints(t *testing.T) {
	got, err := explainJSON(t, `apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {ipFamilies: [IPv6, IPv4], type: NodePort, externalTrafficPolicy: Local, ports: [{name: p, port: 80, nodePort: 30080}]}
`+contractObjects+contractSlice6+strings.NewReplacer("web-4", "web-5", "8080", "9090").Replace(contractObjects[strings.LastIndex(contractObjects, "---"):]))
	if err != nil {
		t.Error(err)
	}
	port := got["ports"].([]any)[0].(map[string]any)
	for policy, want := range map[string][]any{
		"cluster": {"10.1.1.9:8080", "10.1.1.9:9090", "10.1.1.10:8080", "10.1.1.10:9090", "[2001:db8::9]:8080", "[2001:db8::10]:8080"},
		"local":   {"10.1.1.10:8080", "10.1.1.10:9090", "[2001:db8::10]:8080"},
	} {
		if diff := cmp.Diff(want, port[policy].(map[string]any)["endpoints"]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", policy, diff)
		}
	}
}

// An empty choice says by hasAnyEndpoints whether new flows are dropped or
// refused.
func TestJSONTellsDropFromRefuse(t *testing.T) {
	service := "apiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: web}\n" +
		"spec: {type: NodePort, externalTrafficPolicy: Local, ports: [{name: p, port: 80, nodePort: 30080}]}\n"
	for name, c := range map[string]struct {
		slice string
		any   bool
	}{
		"ready elsewhere":             {"{addresses: [10.1.1.9], nodeName: edge-2}", true},
		"terminating elsewhere":       {"{addresses: [10.1.1.9], nodeName: edge-2, conditions: {ready: false, serving: true, terminating: true}}", true},
		"not ready":                   {"{addresses: [10.1.1.9], nodeName: edge-1, conditions: {ready: false}}", false},
		"terminating and not serving": {"{addresses: [10.1.1.9], nodeName: edge-1, conditions: {ready: false, serving: false, terminating: true}}", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := explainJSON(t, service+"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
				"metadata: {namespace: shop, name: web-4, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{name: p, port: 8080}]\nendpoints: ["+c.slice+"]\n")
			port := got["ports"].([]any)[0].(map[string]any)
			want := map[string]any{"tier": "none", "endpoints": []any{}}
			if diff := cmp.Diff(want, port["local"]); diff != "" || port["hasAnyEndpoints"] != c.any {
				t.Errorf("local %v, hasAnyEndpoints %v", port["local"], port["hasAnyEndpoints"])
			}
		})
	}
}

// What is wrong with a Service is in its errors and in the error that goes to
// standard error, with exit status 1; the Service is there even when nothing
// of it can be served.
func TestJSONErrorsAndExitStatus(t *testing.T) {
	for name, c := range map[string]struct {
		service, want string
		ports         int
	}{
		"document refused": {"metadata: {namespace: shop, name: web}\nspec: {ports: [{name: p, port: 0}]}", "spec.ports[0].port: Invalid value: 0", 0},
		"annotation": {"metadata: {namespace: shop, name: web, annotations: {weir.dev/min-ready-percent: \"200\"}}\nspec: {ports: [{name: p, port: 80}]}",
			"metadata.annotations[weir.dev/min-ready-percent]: Invalid value", 1},
		"topologyKeys annotation": {"metadata: {namespace: shop, name: web, annotations: {weir.dev/topology-keys: \"*,a\"}}\nspec: {ports: [{name: p, port: 80}]}",
			`spec.topologyKeys[0]: Invalid value: "*"`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := explainJSON(t, "apiVersion: v1\nkind: Service\n"+c.service+"\n"+contractObjects)
			var exit *exitError
			if !errors.As(err, &exit) || exit.status != exitFaults || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want exit status %d and %q", err, exitFaults, c.want)
			}
			errs := got["errors"].([]any)
			if len(errs) != 1 || !strings.Contains(errs[0].(string), c.want) || len(got["ports"].([]any)) != c.ports {
				t.Errorf("errors %q, ports %v", errs, got["ports"])
			}
		})
	}
}
