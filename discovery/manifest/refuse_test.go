package manifest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// One good document of each kind, and what must be said of its mutations.
const (
	goodService = `apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1]
  externalTrafficPolicy: Cluster
  internalTrafficPolicy: Cluster
  sessionAffinity: None
  externalIPs: [192.0.2.9]
  loadBalancerSourceRanges: [10.0.0.0/8]
  topologyKeys: [kubernetes.io/hostname, "*"]
  ports:
  - {name: http, port: 80, nodePort: 30080, protocol: TCP}
  - {name: dns, port: 53, nodePort: 30053, protocol: UDP}
status:
  loadBalancer:
    ingress: [{ip: 192.0.2.1}]
`
	goodSlice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: shop
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports:
- {name: http, port: 8080, protocol: TCP}
- {name: dns, port: 5353, protocol: UDP}
endpoints:
- addresses: [10.1.1.1]
  conditions: {ready: true}
- addresses: [10.1.1.2]
`
	goodEndpoints = `apiVersion: v1
kind: Endpoints
metadata: {name: web, namespace: shop}
subsets:
- addresses: [{ip: 10.1.1.1}]
  notReadyAddresses: [{ip: 10.1.1.2}]
  ports: [{name: a, port: 80}, {name: b, port: 81}]
`
)

func TestGoodDocumentsAreTaken(t *testing.T) {
	for _, text := range []string{goodService, goodSlice, goodEndpoints} {
		d := newDir(t)
		d.write("a.yaml", text)
		d.expectErrors()
	}
}

func TestBadObjectsAreRefusedWithFieldAndReason(t *testing.T) {
	for _, c := range []struct{ good, old, new, want string }{
		{goodService, "port: 80,", "port: 0,", "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"},
		{goodService, "port: 80,", "port: 65536,", "spec.ports[0].port: Invalid value: 65536"},
		{goodService, "port: 80,", "port: 99999999999,", "spec.ports[0].port: must be a whole number, not number 99999999999"},
		{goodService, "port: 53,", `port: "53",`, "spec.ports[1].port: must be a whole number, not string"},
		{goodService, "nodePort: 30053", "nodePort: -1", "spec.ports[1].nodePort: Invalid value: -1"},
		{goodService, "name: dns", "name: http", `spec.ports[1].name: Duplicate value: "http"`},
		{goodService, "name: dns, ", "", "spec.ports[1].name: Required value"},
		{goodService, "port: 53, nodePort: 30053, protocol: UDP", "port: 80", "spec.ports[1]: Duplicate value"},
		{goodService, "nodePort: 30053, protocol: UDP", "nodePort: 30080", "spec.ports[1].nodePort: Duplicate value: 30080"},
		{goodService, "protocol: UDP", "protocol: udp", `spec.ports[1].protocol: Unsupported value: "udp"`},
		{goodService, "clusterIP: 10.96.0.1", "clusterIP: 10.96.0", "spec.clusterIP: Invalid value"},
		{goodService, "[192.0.2.9]", "[192.0.2.9, foo]", `spec.externalIPs[1]: Invalid value: "foo"`},
		{goodService, "[192.0.2.9]", "[127.0.0.1]", "may not be in the loopback range"},
		{goodService, "10.0.0.0/8", "10.0.0.0/33", "spec.loadBalancerSourceRanges[0]: Invalid value"},
		{goodService, "{ip: 192.0.2.1}", "{ip: 192.0.2.300}", "status.loadBalancer.ingress[0].ip: Invalid value"},
		{goodService, "externalTrafficPolicy: Cluster", "externalTrafficPolicy: local", "spec.externalTrafficPolicy: Unsupported value"},
		{goodService, "internalTrafficPolicy: Cluster", "internalTrafficPolicy: Node", "spec.internalTrafficPolicy: Unsupported value"},
		{goodService, "sessionAffinity: None", "sessionAffinity: Cookie", "spec.sessionAffinity: Unsupported value"},
		{goodService, "type: LoadBalancer", "type: Balancer", "spec.type: Unsupported value"},
		{goodService, `"*"]`, `"*", a]`, `spec.topologyKeys[1]: Invalid value: "*"`},
		{goodService, `"*"]`, `kubernetes.io/hostname]`, `spec.topologyKeys[1]: Duplicate value: "kubernetes.io/hostname"`},
		{goodService, `"*"]`, `"a b"]`, `spec.topologyKeys[1]: Invalid value: "a b"`},
		{goodService, `"*"]`, `7]`, "spec.topologyKeys[1]: must be a string, not number"},
		{goodService, "externalTrafficPolicy: Cluster", "externalTrafficPolicy: Local", "spec.topologyKeys: Forbidden: may not be specified when `externalTrafficPolicy=Local`"},
		{goodService, "name: web", "name: Web_1", "metadata.name: Invalid value"},
		{goodService, "  name: web\n", "", "metadata.name: Required value"},
		{goodService, "  name: web\n", "  name: 7\n", "metadata.name: must be a string, not number"},
		{goodService, "apiVersion: v1", "apiVersion: v2", `apiVersion: Unsupported value: "v2": Service is read as v1`},
		{goodService, "apiVersion: v1\n", "", `apiVersion: Unsupported value: ""`},
		{goodService, "spec:\n", "spec:\n  type: NodePort\n", `key "type" already set in map`},
		{goodService, "kind: Service\n", "kinds: Service\n", "kind: Required value"},
		{goodService, "spec:", "spec: []\nspec2:", "spec: must be a map, not array"},

		{goodSlice, "addressType: IPv4", "", "addressType: Required value"},
		{goodSlice, "addressType: IPv4", "addressType: IPv5", "addressType: Unsupported value"},
		{goodSlice, "10.1.1.2", "2001:db8::1", `endpoints[1].addresses[0]: Invalid value: "2001:db8::1": must be an IPv4 address`},
		{goodSlice, "10.1.1.2", "10.1.1", "endpoints[1].addresses[0]: Invalid value"},
		{goodSlice, "10.1.1.2", "127.0.0.1", "may not be in the loopback range"},
		{goodSlice, "10.1.1.2", "169.254.1.1", "may not be in the link-local range"},
		{goodSlice, "10.1.1.2", "224.0.0.1", "multicast range"},
		{goodSlice, "10.1.1.2", "0.0.0.0", "may not be unspecified"},
		{goodSlice, "[10.1.1.2]", "[]", "endpoints[1].addresses: Required value"},
		{goodSlice, "[10.1.1.2]", "10.1.1.2", "endpoints[1].addresses: must be a list, not string"},
		{goodSlice, "{ready: true}", "{ready: yes please}", "endpoints[0].conditions.ready: must be true or false, not string"},
		{goodSlice, "port: 8080", "port: 70000", "ports[0].port: Invalid value: 70000"},
		{goodSlice, "name: dns", "name: http", `ports[1].name: Duplicate value: "http"`},
		{goodSlice, "protocol: UDP", "protocol: QUIC", "ports[1].protocol: Unsupported value"},
		{goodSlice, "discovery.k8s.io/v1", "discovery.k8s.io/v2", "apiVersion: Unsupported value"},

		{goodEndpoints, "10.1.1.2", "ff02::1", "subsets[0].notReadyAddresses[0].ip: Invalid value"},
		{goodEndpoints, "10.1.1.1", "web", "subsets[0].addresses[0].ip: Invalid value"},
		{goodEndpoints, "port: 81", "port: 0", "subsets[0].ports[1].port: Invalid value: 0"},
		{goodEndpoints, "name: b, ", "", "subsets[0].ports[1].name: Required value"},
	} {
		t.Run(c.want, func(t *testing.T) {
			if !strings.Contains(c.good, c.old) {
				t.Fatalf("the good document does not have %q", c.old)
			}
			d := newDir(t)
			d.write("a.yaml", service("before", 80)+"---\n"+strings.Replace(c.good, c.old, c.new, 1)+service("after", 81))
			d.expectErrors(c.want)
			d.expect("default/after 81", "default/before 80")
		})
	}
}

func TestItemsOfAListAreNamed(t *testing.T) {
	d := newDir(t)
	d.write("a.json", `{"kind":"List","apiVersion":"v1","items":[
		{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"ports":[{"port":80}]}},
		{"apiVersion":"v1","kind":"Service","metadata":{"name":"api"},"spec":{"ports":[{"port":"80"}]}},
		{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"ports":[{"port":82}]}},
		{"apiVersion":"v1","kind":"List","items":[]},
		7]}`)
	d.expectErrors(
		"a.json: document 1 (line 1): Service default/api: items[1].spec.ports[0].port: must be a whole number, not string",
		`items[2].metadata.name: Duplicate value: "web": already described by items[0]`,
		"items[3]: a List within a List",
		"items[4]: must be a map, not number")
	d.expect("default/web 80")
}

func TestGarbageIsRefusedAtOnce(t *testing.T) {
	const n = 10 << 20
	random := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(random)
	letters := strings.Repeat("garbage ", n/8)
	var bomb strings.Builder
	bomb.WriteString("kind: Service\na: &a [x, x, x, x, x, x, x, x, x]\n")
	for c := 'b'; c < 'm'; c++ {
		fmt.Fprintf(&bomb, "%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	for name, c := range map[string]struct{ text, want string }{
		"random bytes":      {string(random), "a.yaml: not "},
		"letters":           {letters, "not a Kubernetes object: it has no field kind"},
		"many documents":    {strings.Repeat("---\nx\n", n/6), "more than 100 malformed documents; the rest of the file is not read"},
		"deep nesting":      {"kind: " + strings.Repeat("[", n), "not YAML: "},
		"deep JSON nesting": {`{"kind":` + strings.Repeat("[", n), "not YAML: "},
		"long list":         {"kind: x\n" + strings.Repeat("- x\n", n/4), "not YAML: "},
		"billion laughs":    {bomb.String(), "line 3: YAML alias *a: aliases are not accepted"},
		"merge key":         {"kind: Service\na: &a {b: c}\nd:\n  <<: *a\n", "line 4: YAML alias *a"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDir(t)
			d.write("a.yaml", c.text)
			d.write("b.yaml", service("web", 80))
			errs := d.load()
			if len(errs) == 0 || !strings.Contains(errs[len(errs)-1], c.want) {
				t.Fatalf("errors %.500q, want %q", errs, c.want)
			}
			for _, e := range errs {
				if len(e) > 600 {
					t.Errorf("an error of %d bytes", len(e))
				}
			}
			d.expect("default/web 80")
		})
	}
}

func TestTooLargeIsRefused(t *testing.T) {
	if _, err := split(make([]byte, MaxFileBytes+1)); err == nil || !strings.Contains(err.Error(), "exceed the limit of 128.0 MiB for one file") {
		t.Errorf("file: %v", err)
	}
	text := []byte("kind: Service\n" + strings.Repeat("# comment\n", MaxDocumentBytes/10))
	if _, err := toJSON(document{raw: text}); err == nil || !strings.Contains(err.Error(), "for one YAML document; split it or write it as JSON") {
		t.Errorf("document: %v", err)
	}
}

func TestStarsAreNoAliases(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  annotations: {a: \"R&D *star\", b: 'x * y & z'}\n  # *comment &anchor\nspec: {ports: [{port: 80}]}\n")
	d.expectErrors()
	d.expect("default/web 80")
}
