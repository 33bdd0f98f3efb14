package lan

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirlb/weir/perf/netlab"
)

const (
	nodes    = 3
	echoPort = 7777 // also of the endpoints: nothing translates ports in mode l2dsr
)

// mode is a forwarding mode, with a Service of its own.
type mode struct {
	name  string
	first uint8 // host of the first load balancer IP
	// keeps is true of a mode in which a connection outlives a node: no connection may be lost.
	keeps bool
}

var modes = []mode{{"l2dsr", 100, true}, {"nat", 120, false}}

// addressesEach are the load balancer IPs of a mode in each family: enough for each node to own some.
const addressesEach = 12

// servers are the hosts of the endpoints.
var servers = []uint8{netlab.LANServer, netlab.LANServer + 1}

// families are the ways to make an address of the link.
var families = []func(network, host uint8) netip.Addr{netlab.Host4, netlab.Host6}

// addresses are those of a mode in a family.
func (m *mode) addresses(of func(network, host uint8) netip.Addr) (out []netip.Addr) {
	for i := range uint8(addressesEach) {
		out = append(out, of(netlab.LANNet, m.first+i))
	}
	return out
}

// addresses are all.
func addresses() (out []netip.Addr) {
	for i := range modes {
		for _, of := range families {
			out = append(out, modes[i].addresses(of)...)
		}
	}
	return out
}

// manifest has the Service and the slices of a mode.
func (m *mode) manifest() []byte {
	var ingress []string
	for _, a := range slices.Concat(m.addresses(netlab.Host4), m.addresses(netlab.Host6)) {
		ingress = append(ingress, fmt.Sprintf(`{ip: "%s"}`, a))
	}
	text := fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata: {namespace: shop, name: %[1]s, annotations: {weir.dev/forwarding-mode: %[1]s}}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  ports: [{name: tcp, port: %[2]d}, {name: udp, port: %[2]d, protocol: UDP}]
status: {loadBalancer: {ingress: [%[3]s]}}
`, m.name, echoPort, strings.Join(ingress, ", "))
	for i, family := range []string{"IPv4", "IPv6"} {
		var endpoints []string
		for _, host := range servers {
			endpoints = append(endpoints, fmt.Sprintf(`{addresses: ["%s"], conditions: {ready: true}}`, families[i](netlab.LANNet, host)))
		}
		text = fmt.Appendf(text, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: %s-%s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [{name: tcp, port: %[4]d}, {name: udp, port: %[4]d, protocol: UDP}]
endpoints: [%[5]s]
`, m.name, strings.ToLower(family), family, echoPort, strings.Join(endpoints, ", "))
	}
	return text
}

// writeKey writes the key that the nodes share.
func writeKey(file string) error {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(key)), 0o600)
}

// writeFiles writes manifests and configuration of a node into dir. Nodes have the same Services, as
// from an API server.
func writeFiles(dir, node, key string) error {
	manifests := filepath.Join(dir, "manifests")
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		return err
	}
	for i := range modes {
		if err := os.WriteFile(filepath.Join(manifests, modes[i].name+".yaml"), modes[i].manifest(), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "config.yaml"), fmt.Appendf(nil, `apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: %[1]s
discovery: {manifests: {path: %[2]s/manifests}}
interfaces: [{name: eth0}]
conntrack: {path: %[2]s/conntrack, maxFlows: 65536, takeoverSeconds: 0}
admin: {socket: %[2]s/weir.sock}
stateDir: %[2]s/state
drain: {notReadySeconds: 0, timeoutSeconds: 0}
announce:
  l2: {interfaces: [eth0], keyFile: %[3]s}
  drainSeconds: 1
  resetAfterSeconds: 1
`, node, dir, key), 0o644)
}
