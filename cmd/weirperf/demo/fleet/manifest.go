package fleet

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/router"
)

const (
	httpPort = 8080 // also of the endpoints: nothing translates ports in mode ipip
	echoPort = 7777
	nodes    = 4
)

// mode is a forwarding mode, with a Service of its own.
type mode struct {
	name string
	host uint8 // of the load balancer IPs
	// keeps is true of a mode in which a connection outlives a node: no connection may be lost.
	keeps bool
}

var modes = []mode{{"ipip", 10, true}, {"nat", 11, false}}

// servers are the hosts of the endpoints.
var servers = []uint8{netlab.FleetServer, netlab.FleetServer + 1, netlab.FleetServer + 2}

func (m *mode) addresses() []netip.Addr {
	return []netip.Addr{netlab.Host4(netlab.LBNet, m.host), netlab.Host6(netlab.LBNet, m.host)}
}

// targets are the addresses with a port.
func (m *mode) targets(port uint16) (out []netip.AddrPort) {
	for _, a := range m.addresses() {
		out = append(out, netip.AddrPortFrom(a, port))
	}
	return out
}

// manifest has the Service and the slices of a mode.
func (m *mode) manifest() []byte {
	v := m.addresses()
	text := fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata: {namespace: shop, name: %[1]s, annotations: {weir.dev/forwarding-mode: %[1]s}}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  ports: [{name: http, port: %[2]d}, {name: echo, port: %[3]d}]
status: {loadBalancer: {ingress: [{ip: %[4]s}, {ip: "%[5]s"}]}}
`, m.name, httpPort, echoPort, v[0], v[1])
	for _, f := range []struct {
		family string
		of     func(network, host uint8) netip.Addr
	}{{"IPv4", netlab.Host4}, {"IPv6", netlab.Host6}} {
		var endpoints []string
		for _, host := range servers {
			endpoints = append(endpoints, fmt.Sprintf(`{addresses: ["%s"], conditions: {ready: true}}`, f.of(netlab.FleetNet, host)))
		}
		text = fmt.Appendf(text, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: %s-%s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [{name: http, port: %[4]d}, {name: echo, port: %[5]d}]
endpoints: [%[6]s]
`, m.name, strings.ToLower(f.family), f.family, httpPort, echoPort, strings.Join(endpoints, ", "))
	}
	return text
}

// writeFiles writes manifests and configuration of a node into dir. Nodes have the same
// Services, as from an API server.
func writeFiles(dir string, number int, o *options) error {
	manifests := filepath.Join(dir, "manifests")
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		return err
	}
	for i := range modes {
		if err := os.WriteFile(filepath.Join(manifests, modes[i].name+".yaml"), modes[i].manifest(), 0o644); err != nil {
			return err
		}
	}
	session := fmt.Sprintf("asn: %d, holdSeconds: %d", router.ASN, o.hold)
	if o.bfd > 0 {
		session += fmt.Sprintf(", bfd: {intervalMilliseconds: %d, multiplier: 3}", o.bfd)
	}
	return os.WriteFile(filepath.Join(dir, "config.yaml"), fmt.Appendf(nil, `apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: node%[1]d
discovery: {manifests: {path: %[2]s/manifests}}
interfaces: [{name: eth0}]
conntrack: {path: %[2]s/conntrack, maxFlows: 131072, takeoverSeconds: 0}
admin: {socket: %[2]s/weir.sock}
stateDir: %[2]s/state
drain: {notReadySeconds: 0, timeoutSeconds: 0}
announce:
  speaker: bgp
  asn: %[3]d
  peers:
  - {address: %[5]s, %[4]s}
  - {address: "%[6]s", %[4]s}
  prefixes: [%[7]s/24, "%[8]s/64"]
  drainSeconds: 2
  resetAfterSeconds: 1
`, number, dir, router.NodeASN, session, netlab.Host4(netlab.FleetNet, netlab.FleetRouter), netlab.Host6(netlab.FleetNet, netlab.FleetRouter),
		netlab.Host4(netlab.LBNet, 0), netlab.Host6(netlab.LBNet, 0)), 0o644)
}
