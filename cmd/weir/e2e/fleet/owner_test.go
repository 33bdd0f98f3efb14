package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// An older Service of another namespace claims an announced address by spec.externalIPs, on the
// same port and on another, with Local policy and endpoints on other nodes: the address stays
// announced, and the port its owner's.
func TestWireExternalIPsOfOthersWithdrawNothing(t *testing.T) {
	b := newBedOf(t, 1, "{notReadySeconds: 0, timeoutSeconds: 0}\nexternalIPs: true", bgpSessions())
	b.until(0)
	file := filepath.Join(b.nodes[0].dir, "manifests", "other.yaml")
	must(t, os.WriteFile(file+".new", fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata: {namespace: other, name: local, creationTimestamp: "2001-01-01T00:00:00Z"}
spec:
  clusterIP: 10.96.0.11
  externalIPs: [%s, "%s"]
  externalTrafficPolicy: Local
  ipFamilies: [IPv4]
  ports: [{name: a, port: %d}, {name: b, port: 81}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: other, name: local-1, labels: {kubernetes.io/service-name: local}}
addressType: IPv4
ports: [{name: a, port: %d, protocol: TCP}, {name: b, port: 81, protocol: TCP}]
endpoints: [{addresses: [%s], nodeName: node7, conditions: {ready: true}}]
`, vip4, vip6, port, port, netlab.Host4(netlab.FleetNet, netlab.FleetServer)), 0o644))
	must(t, os.Rename(file+".new", file))
	var text string
	for deadline := time.Now().Add(patience.For(20 * time.Second)); !strings.Contains(text, "other/local"); time.Sleep(20 * time.Millisecond) {
		if text = b.weir("explain", "--address", vip4.String()); time.Now().After(deadline) {
			t.Fatalf("the Service is not served: %s", text)
		}
	}
	matches(t, text, `^Address 10\.99\.0\.10: announced to 2 of 2 routers`,
		`^served +yes +the address is that of Service test/web, and those of other namespaces do not count: other/local$`,
		`^TCP 10\.99\.0\.10:8080 +test/web +yes `)
	b.until(0)
	_ = b.connect(vip4)
}

// An older Service of another namespace, which shares the address, becomes Local, and has endpoints
// on other nodes alone. The address was not given to it for that: it stays announced for its other
// holders, and is withdrawn where the status says nothing of it. It is there when Weir starts: a
// Service that appears later is younger.
func TestWireASharedAddressStaysWhenAnotherBecomesLocal(t *testing.T) {
	b := newRouted(t, 1, bgpSessions())
	b.serve()
	dir := filepath.Join(b.Dir(), "weir1", "manifests")
	must(t, os.MkdirAll(dir, 0o755))
	write := func(conditions string) {
		file := filepath.Join(dir, "other.yaml")
		must(t, os.WriteFile(file+".new", fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata: {namespace: other, name: local, creationTimestamp: "2001-01-01T00:00:00Z"}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  clusterIP: 10.96.0.11
  clusterIPs: [10.96.0.11, "fd96::11"]
  externalTrafficPolicy: Local
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  ports: [{name: b, port: 81}]
status:
  conditions: [%s]
  loadBalancer: {ingress: [{ip: %s, ipMode: VIP}, {ip: "%s", ipMode: VIP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: other, name: local-1, labels: {kubernetes.io/service-name: local}}
addressType: IPv4
ports: [{name: b, port: 81, protocol: TCP}]
endpoints: [{addresses: [%s], nodeName: node7, conditions: {ready: true}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: other, name: local-2, labels: {kubernetes.io/service-name: local}}
addressType: IPv6
ports: [{name: b, port: 81, protocol: TCP}]
endpoints: [{addresses: ["%s"], nodeName: node7, conditions: {ready: true}}]
`, conditions, vip4, vip6, netlab.Host4(netlab.FleetNet, netlab.FleetServer), netlab.Host6(netlab.FleetNet, netlab.FleetServer)), 0o644))
		must(t, os.Rename(file+".new", file))
	}
	terms := func(policy string) string {
		return fmt.Sprintf(`{type: weir.dev/AddressTerms, status: "True", reason: %s, message: "", lastTransitionTime: "2001-01-01T00:00:00Z"}`, policy)
	}
	write(terms("Cluster"))
	b.start(0, noDrain)
	b.until(0)
	var text string
	for deadline := time.Now().Add(patience.For(20 * time.Second)); !strings.Contains(text, "other/local"); time.Sleep(20 * time.Millisecond) {
		if text = b.weir("explain", "--address", vip4.String()); time.Now().After(deadline) {
			t.Fatalf("the Service is not served: %s", text)
		}
	}
	matches(t, text, `^Address 10\.99\.0\.10: announced to 2 of 2 routers`,
		`^served +yes +the address is that of Service test/web, and those of other namespaces do not count: other/local$`)
	b.until(0)
	_ = b.connect(vip4)

	write(terms("Local"))
	b.until()
	write(terms("Cluster"))
	b.until(0)
	write("")
	b.until()
}
