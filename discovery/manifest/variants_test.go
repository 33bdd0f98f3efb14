package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// variant is an object that differs from a valid object in one or two fields.
type variant struct {
	name   string
	object map[string]any
	// status is true if status differs: an API server takes that apart from the rest.
	status bool
}

// bases are valid objects, as JSON.
var bases = map[string]string{
	"none":         service0(`"selector":{"app":"web"},"ports":[{"name":"http","port":80,"protocol":"TCP"},{"name":"dns","port":53,"protocol":"UDP"}]`),
	"clusterip":    service0(`"type":"ClusterIP","ports":[{"port":80}]`),
	"nodeport":     service0(`"type":"NodePort","ports":[{"name":"http","port":80,"nodePort":30080},{"name":"dns","port":53,"protocol":"UDP","nodePort":30053}]`),
	"loadbalancer": service0(`"type":"LoadBalancer","ports":[{"name":"http","port":80,"nodePort":30080}]`),
	"local":        service0(`"type":"LoadBalancer","externalTrafficPolicy":"Local","healthCheckNodePort":30090,"ports":[{"name":"http","port":80,"nodePort":30080}]`),
	"external":     service0(`"type":"ClusterIP","externalIPs":["192.0.2.9"],"ports":[{"port":80}]`),
	"externalname": service0(`"type":"ExternalName","externalName":"example.com"`),
	"headless":     service0(`"clusterIP":"None","ports":[{"port":80}]`),
	"slice":        slice0("IPv4", "10.1.1.1"),
	"slice6":       slice0("IPv6", "2001:db8::1"),
	"slicefqdn":    slice0("FQDN", "web.example.com"),
	"endpoints": `{"apiVersion":"v1","kind":"Endpoints","metadata":{"namespace":"default","name":"variant"},
		"subsets":[{"addresses":[{"ip":"10.1.1.1"}],"ports":[{"name":"http","port":80,"protocol":"TCP"}]}]}`,
	"node": `{"apiVersion":"v1","kind":"Node","metadata":{"name":"variant","labels":{"topology.kubernetes.io/zone":"a"}},
		"spec":{"podCIDR":"10.2.0.0/24","podCIDRs":["10.2.0.0/24"]},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}`,
}

func service0(spec string) string {
	return `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"default","name":"variant","labels":{"app":"web"},"annotations":{"a":"b"}},"spec":{` + spec + `}}`
}

func slice0(family, address string) string {
	return fmt.Sprintf(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"namespace":"default","name":"variant","labels":{"kubernetes.io/service-name":"web"}},
		"addressType":%q,"ports":[{"name":"http","port":80,"protocol":"TCP"}],"endpoints":[{"addresses":[%q],"conditions":{"ready":true},"nodeName":"a","zone":"a"}]}`, family, address)
}

var (
	long        = strings.Repeat("x", 64)
	badNames    = values(`""`, `"HTTP"`, `"a_b"`, `"-a"`, `"a."`, quoted(long), `7`, `null`)
	badLabels   = values(`{"a b":"c"}`, `{"a":"b c"}`, `{"a":`+quoted(long)+`}`, `{"/a":"b"}`, `{"A/b":"c"}`, `{"a":"-"}`, `{"a":7}`, `{"a":null}`, `null`, `[]`)
	ports       = values(`0`, `-1`, `1`, `65535`, `65536`, `99999999999`, `"80"`, `80.5`, `null`)
	nodePorts   = values(`0`, `-1`, `29999`, `30000`, `32767`, `32768`, `65536`, `"30080"`, `null`)
	protocols   = values(`"TCP"`, `"UDP"`, `"SCTP"`, `"tcp"`, `"QUIC"`, `""`, `null`)
	appProtocol = values(`"http"`, `"kubernetes.io/h2c"`, `"a b"`, `""`, `"/"`, quoted(long))
	addresses   = values(`"10.1.1.9"`, `"010.1.1.9"`, `"10.1.1.09"`, `"::ffff:10.1.1.9"`, `"::ffff:a01:109"`, `"10.1.1"`, `"10.1.1.300"`, `"2001:db8::9"`, `"2001:DB8::9"`,
		`"2001:db8:0::9"`, `"fe80::1%eth0"`, `"fe80::1"`, `"127.0.0.1"`, `"::1"`, `"0.0.0.0"`, `"::"`, `"224.0.0.1"`, `"239.1.1.1"`, `"ff02::1"`, `"ff0e::1"`, `"169.254.1.1"`,
		`"255.255.255.255"`, `"web"`, `""`, `" 10.1.1.9"`, `"10.1.1.9/32"`, `7`)
	ranges = values(`[]`, `["10.0.0.0/8"]`, `["10.1.2.3/8"]`, `["10.0.0.0/08"]`, `["010.0.0.0/8"]`, `["::ffff:10.0.0.0/104"]`, `["10.0.0.0"]`, `["10.0.0.0/33"]`, `["2001:db8::/32"]`,
		`["2001:db8::1/32"]`, `[" 10.0.0.0/8 "]`, `["0.0.0.0/0"]`, `["::/0"]`, `[""]`, `["web"]`, `"10.0.0.0/8"`, `["10.0.0.0/8","10.0.0.0/8"]`)
	families = values(`["IPv4"]`, `["IPv4","IPv4"]`, `["IPv4","IPv4","IPv4"]`, `["IPv5"]`, `["ipv4"]`, `[""]`, `"IPv4"`, `[]`)
	services = []string{"none", "clusterip", "nodeport", "loadbalancer", "local", "external", "externalname", "headless"}
)

func values(v ...string) []string { return v }
func quoted(s string) string      { return strconv.Quote(s) }

// edits are the values that a field is given, in which bases. A field is a path, "+" appends.
var edits = []struct {
	bases  []string
	path   string
	values []string
}{
	{services, "spec.type", values(`"ClusterIP"`, `"NodePort"`, `"LoadBalancer"`, `"ExternalName"`, `"nodeport"`, `""`, `null`)},
	{services, "spec.ports", values(`null`, `[]`)},
	{services, "spec.externalTrafficPolicy", values(`"Cluster"`, `"Local"`, `"local"`, `""`, `null`)},
	{services, "spec.internalTrafficPolicy", values(`"Cluster"`, `"Local"`, `"local"`, `""`)},
	{services, "spec.healthCheckNodePort", values(`0`, `30091`, `-1`, `65536`)},
	{services, "spec.loadBalancerClass", values(`"weir.dev/edge"`, `"a b"`, `""`)},
	{services, "spec.allocateLoadBalancerNodePorts", values(`true`, `false`, `"false"`)},
	{services, "spec.loadBalancerSourceRanges", values(`["10.0.0.0/8"]`, `[]`)},
	{services, "metadata.annotations", values(`{"service.beta.kubernetes.io/load-balancer-source-ranges":"10.0.0.0/8"}`)},
	{services, "spec.sessionAffinity", values(`"ClientIP"`, `"None"`, `"Cookie"`, `""`)},
	{services, "spec.sessionAffinityConfig", values(`{}`, `{"clientIP":{}}`, `{"clientIP":{"timeoutSeconds":10}}`)},
	{services, "spec.clusterIP", values(`"None"`, `""`, `"web"`)},
	{services, "spec.externalName", values(`"example.com"`, `""`)},
	{services, "spec.trafficDistribution", values(`"PreferClose"`, `"PreferSameZone"`, `"PreferSameNode"`, `"PreferSameRack"`, `""`)},
	{services, "spec.ipFamilyPolicy", values(`"SingleStack"`, `"PreferDualStack"`, `"Dual"`)},
	{services, "spec.nodeport", values(`30080`)},
	{[]string{"clusterip", "nodeport", "loadbalancer"}, "spec.ipFamilies", families},
	{[]string{"loadbalancer"}, "spec.loadBalancerSourceRanges", ranges},
	{[]string{"loadbalancer"}, "metadata.annotations", values(`{"service.beta.kubernetes.io/load-balancer-source-ranges":"10.1.2.3/8"}`,
		`{"service.beta.kubernetes.io/load-balancer-source-ranges":"10.0.0.0/8, 192.0.2.0/24"}`, `{"service.beta.kubernetes.io/load-balancer-source-ranges":" "}`,
		`{"service.beta.kubernetes.io/load-balancer-source-ranges":"web"}`)},
	{[]string{"none", "nodeport"}, "spec.ports.0.name", badNames},
	{[]string{"none"}, "spec.ports.1.name", values(`"http"`)},
	{[]string{"clusterip"}, "spec.ports.0.name", badNames},
	{[]string{"nodeport"}, "spec.ports.0.port", ports},
	{[]string{"nodeport"}, "spec.ports.1", values(`{"name":"b","port":80}`, `{"name":"b","port":81,"nodePort":30080}`, `{"name":"b","port":80,"protocol":"UDP","nodePort":30080}`, `{}`, `null`)},
	{[]string{"none", "clusterip", "nodeport", "loadbalancer", "headless", "externalname"}, "spec.ports.0.nodePort", nodePorts},
	{[]string{"nodeport"}, "spec.ports.0.protocol", protocols},
	{[]string{"none"}, "spec.ports.0.targetPort", values(`8080`, `"http"`, `"8080"`, `"HTTP"`, `"a--b"`, quoted(strings.Repeat("x", 16)), quoted(strings.Repeat("x", 28)), `0`, `70000`, `""`, `"-"`)},
	{[]string{"none"}, "spec.ports.0.appProtocol", appProtocol},
	{[]string{"none"}, "spec.selector", badLabels},
	{[]string{"none", "slice", "node"}, "metadata.labels", badLabels},
	{[]string{"none", "slice", "node"}, "metadata.annotations", values(`{"a b":"c"}`, `{"a":7}`, `{"A/b":"c"}`, `null`)},
	{[]string{"none", "slice", "endpoints", "node"}, "metadata.name", values(`"a.b"`, `"Web"`, `"a_b"`, `"1a"`, `"-"`, quoted(long), quoted(strings.Repeat("x", 254)), `""`)},
	{[]string{"none"}, "metadata.namespace", values(`"a.b"`, `"Shop"`)},
	{[]string{"external"}, "spec.externalIPs", wrapped(addresses, `[%s]`)},
	{[]string{"externalname"}, "spec.externalName", values(`"example.com."`, `"a_b"`, `"."`, `"192.0.2.1"`)},
	{[]string{"externalname"}, "spec.clusterIPs", values(`["None"]`)},
	{[]string{"externalname"}, "spec.ipFamilies", values(`["IPv4"]`)},
	{[]string{"headless"}, "spec.clusterIPs", values(`["None"]`, `["None","None"]`, `["10.0.0.9"]`)},
	{[]string{"clusterip"}, "spec.clusterIPs", values(`["10.0.0.300"]`, `["None"]`, `["web"]`, `[""]`)},
	{[]string{"local"}, "spec.healthCheckNodePort", values(`30080`, `30092`)},
	{[]string{"none"}, "spec.sessionAffinityConfig", values(`{"clientIP":{"timeoutSeconds":0}}`)},
	{[]string{"none"}, "spec.affinity", values(`{"sessionAffinity":"ClientIP"}`)},
	{[]string{"none"}, "metadata.namespce", values(`"shop"`)},
	{[]string{"none"}, "metadata.lables", values(`{"a":"b"}`)},
	{[]string{"none"}, "spec.ports.0.nodeport", values(`30080`)},
	{[]string{"loadbalancer"}, "spec.loadBalancerSourceRange", values(`["10.0.0.0/8"]`)},
	{[]string{"loadbalancer"}, "spec.externalTraficPolicy", values(`"Local"`)},

	{[]string{"loadbalancer", "local"}, "status.loadBalancer.ingress", append(wrapped(addresses, `[{"ip":%s}]`), wrapped(addresses[:4], `[{"ip":%s,"ipMode":"VIP"}]`)...)},
	{[]string{"loadbalancer"}, "status.loadBalancer.ingress", values(`[{"ip":"192.0.2.1","ipMode":"Proxy"}]`, `[{"ip":"192.0.2.1","ipMode":"proxy"}]`, `[{"ipMode":"VIP"}]`,
		`[{"hostname":"example.com"}]`, `[{"hostname":"a_b"}]`, `[{"hostname":"192.0.2.1"}]`, `[{}]`, `[]`)},
	{[]string{"none", "clusterip", "nodeport", "external", "headless"}, "status.loadBalancer.ingress", values(`[{"ip":"192.0.2.1","ipMode":"VIP"}]`)},

	{[]string{"slice", "slice6"}, "addressType", values(`"IPv4"`, `"IPv6"`, `"FQDN"`, `"IP"`, `""`, `null`)},
	{[]string{"slice", "slice6"}, "endpoints.0.addresses", append(wrapped(addresses, `[%s]`), `[]`, `null`, `["10.1.1.1","10.1.1.2"]`)},
	{[]string{"slicefqdn"}, "endpoints.0.addresses", values(`["web"]`, `["a_b.example.com"]`, `["10.1.1.1"]`)},
	{[]string{"slice"}, "endpoints.0.nodeName", values(`"a.b"`, `"A"`, `"a_b"`, `""`, `null`)},
	{[]string{"slice"}, "endpoints.0.hostname", values(`"a"`, `"a.b"`, `"A"`, `""`, quoted(long))},
	{[]string{"slice"}, "endpoints.0.zone", values(`"a b"`, `""`, quoted(long))},
	{[]string{"slice"}, "endpoints.0.conditions", values(`{"ready":null}`, `{"ready":"true"}`, `{"redy":true}`, `null`, `{}`)},
	{[]string{"slice"}, "endpoints.0.hints", values(`{"forZones":[{"name":"a"},{"name":"a"}]}`, `{"forZones":[{"name":"a b"}]}`, `{"forZones":[{"name":""}]}`, many(`{"forZones":[`, `{"name":"%d"}`, 8),
		many(`{"forZones":[`, `{"name":"%d"}`, 9), `{"forNodes":[{"name":"a"},{"name":"a"}]}`, `{"forNodes":[{"name":"A"}]}`, `{"forNodes":[{"name":""}]}`, many(`{"forNodes":[`, `{"name":"n%d"}`, 9))},
	{[]string{"slice"}, "endpoints.0.deprecatedTopology", values(`{"a":"b"}`, `{"a b":"c"}`, `{"topology.kubernetes.io/zone":"a"}`)},
	{[]string{"slice"}, "endpoints", values(`null`, `[]`, many(`[`, `{"addresses":["10.1.1.1"],"hostname":"h%d"}`, 1001))},
	{[]string{"slice"}, "ports", values(`null`, `[]`, `[{"name":"a","port":1},{"name":"a","port":2}]`, `[{"port":1},{"port":2}]`, many(`[`, `{"name":"p%d","port":80}`, 20001))},
	{[]string{"slice"}, "ports.0.name", badNames},
	{[]string{"slice"}, "ports.0.port", ports},
	{[]string{"slice"}, "ports.0.protocol", protocols},
	{[]string{"slice"}, "ports.0.appProtocol", appProtocol},
	{[]string{"slice"}, "endpoints.0.adresses", values(`["10.1.1.1"]`)},

	{[]string{"endpoints"}, "subsets.0.addresses.0.ip", addresses},
	{[]string{"endpoints"}, "subsets.0.addresses.0.hostname", values(`"a"`, `"A"`)},
	{[]string{"endpoints"}, "subsets.0.addresses.0.nodeName", values(`"a"`, `"A"`)},
	{[]string{"endpoints"}, "subsets.0.addresses", values(`[]`, `null`)},
	{[]string{"endpoints"}, "subsets.0.ports.0.name", badNames},
	{[]string{"endpoints"}, "subsets.0.ports.0.port", ports},
	{[]string{"endpoints"}, "subsets.0.ports.0.protocol", protocols},
	{[]string{"endpoints"}, "subsets.0.ports", values(`[{"port":1},{"port":2}]`, `[{"name":"a","port":1},{"name":"a","port":2}]`, `[]`)},

	{[]string{"node"}, "spec.podCIDRs", values(`["10.2.0.0/24"]`, `["10.2.0.1/24"]`, `["web"]`, `["10.2.0.0/24","10.3.0.0/24"]`)},
	{[]string{"node"}, "spec.podCIDR", values(`"web"`)},
	{[]string{"node"}, "status.addresses", values(`[{"type":"InternalIP","address":"10.1.1.300"}]`, `[{"type":"Internal","address":"10.1.1.1"}]`, `[{"type":"InternalIP"}]`)},
	{[]string{"node"}, "spec.unschedulabl", values(`true`)},
}

func wrapped(values []string, format string) (out []string) {
	for _, v := range values {
		out = append(out, fmt.Sprintf(format, v))
	}
	return out
}

// many is head, n elements and the brackets that close.
func many(head, element string, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, element, i)
	}
	tail := "]"
	if strings.HasPrefix(head, "{") {
		tail = "]}"
	}
	return head + b.String() + tail
}

// variants are all variants, by name.
func variants(t *testing.T) map[string]variant {
	t.Helper()
	out := map[string]variant{}
	add := func(name, base, path, value string) {
		v := variant{name: name, status: strings.HasPrefix(path, "status.loadBalancer")}
		if err := json.Unmarshal([]byte(bases[base]), &v.object); err != nil {
			t.Fatalf("%s: %v", base, err)
		}
		if path != "" {
			var to any
			if err := json.Unmarshal([]byte(value), &to); err != nil {
				t.Fatalf("%s: %v", value, err)
			}
			put(v.object, strings.Split(path, "."), to)
		}
		out[name] = v
	}
	for base := range bases {
		add(base, base, "", "")
	}
	for _, e := range edits {
		for _, base := range e.bases {
			for _, value := range e.values {
				shown := value
				if len(shown) > 100 {
					shown = fmt.Sprintf("%s...(%d)", shown[:40], len(shown))
				}
				add(base+" "+e.path+"="+shown, base, e.path, value)
			}
		}
	}
	return out
}

// put sets a field; null removes it.
func put(at map[string]any, path []string, value any) {
	name := path[0]
	switch {
	case len(path) == 1 && value == nil:
		delete(at, name)
	case len(path) == 1:
		at[name] = value
	default:
		if n, err := strconv.Atoi(path[1]); err == nil {
			list, _ := at[name].([]any)
			if n >= len(list) {
				list = append(list, map[string]any{})
				n = len(list) - 1
			}
			at[name] = list
			if len(path) == 2 {
				list[n] = value
				return
			}
			put(list[n].(map[string]any), path[2:], value)
			return
		}
		child, ok := at[name].(map[string]any)
		if !ok {
			child = map[string]any{}
			at[name] = child
		}
		put(child, path[1:], value)
	}
}

func names(m map[string]variant) []string { return slices.Sorted(maps.Keys(m)) }
