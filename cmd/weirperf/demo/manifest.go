package demo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"github.com/weirlb/weir/perf/netlab"
)

// Ports of the Service shop/web.
const (
	httpPort, httpNodePort, httpTarget = 80, 30080, 8080
	echoPort, echoNodePort, echoTarget = 7, 30007, 7777
)

const serviceName = "shop/web"

// lbHost is the host number of the Service's load balancer IPs.
const lbHost = 10

// manifests have the form of `kubectl get nodes,services,endpointslices -o yaml` in a
// cluster with these endpoints.
var manifests = template.Must(template.New("").Parse(`
{{- range .Nodes}}---
apiVersion: v1
kind: Node
metadata:
  name: {{.node}}
  labels:
    kubernetes.io/hostname: {{.node}}
    topology.kubernetes.io/zone: {{.zone}}
    topology.kubernetes.io/region: region-1
{{end}}---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec:
  type: LoadBalancer
  selector: {app: web}
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd96::10"]
  internalTrafficPolicy: Cluster
  externalTrafficPolicy: Cluster
  sessionAffinity: None
  ports:
  - {name: http, protocol: TCP, port: {{.HTTP.port}}, targetPort: {{.HTTP.target}}, nodePort: {{.HTTP.nodePort}}}
  - {name: echo, protocol: UDP, port: {{.Echo.port}}, targetPort: {{.Echo.target}}, nodePort: {{.Echo.nodePort}}}
status:
  loadBalancer:
    ingress:
    - {ip: "{{.LB4}}"}
    - {ip: "{{.LB6}}"}
{{range .Slices}}---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: shop
  name: web-{{.family}}
  labels: {kubernetes.io/service-name: web}
addressType: {{.type}}
ports:
- {name: http, protocol: TCP, port: {{$.HTTP.target}}}
- {name: echo, protocol: UDP, port: {{$.Echo.target}}}
endpoints:{{if not .endpoints}} []{{end}}
{{- range .endpoints}}
- addresses: ["{{.address}}"]
  nodeName: {{.node}}
  zone: {{.zone}}
  conditions: {ready: {{.ready}}, serving: true, terminating: {{.terminating}}}
  hints: {forZones: [{name: {{.zone}}}]}
{{- end}}
{{end}}`))

// writeManifests puts the endpoints' state into a file of dir, at once and in
// full: a reader sees the old file or the new file.
func writeManifests(dir string, state [3]condition) error {
	type object = map[string]any
	nodes, slices := []object{}, []object{}
	for _, family := range []struct{ name, kind string }{{"v4", "IPv4"}, {"v6", "IPv6"}} {
		endpoints := []object{}
		for i, b := range backends {
			if state[i] == absent {
				continue
			}
			address := netlab.Host4(b.network, b.host)
			if family.kind == "IPv6" {
				address = netlab.Host6(b.network, b.host)
			}
			endpoints = append(endpoints, object{"address": address, "node": b.node, "zone": b.zone,
				"ready": state[i] == ready, "terminating": state[i] == terminating})
		}
		slices = append(slices, object{"family": family.name, "type": family.kind, "endpoints": endpoints})
	}
	for _, b := range backends {
		nodes = append(nodes, object{"node": b.node, "zone": b.zone})
	}
	var text bytes.Buffer
	err := manifests.Execute(&text, object{
		"Nodes": nodes, "Slices": slices,
		"HTTP": object{"port": httpPort, "target": httpTarget, "nodePort": httpNodePort},
		"Echo": object{"port": echoPort, "target": echoTarget, "nodePort": echoNodePort},
		"LB4":  netlab.Host4(netlab.LBNet, lbHost), "LB6": netlab.Host6(netlab.LBNet, lbHost),
	})
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, ".web.yaml.new")
	if err := os.WriteFile(temp, text.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(dir, "web.yaml"))
}

// writeConfig writes the configuration of the edge node's Weir.
func writeConfig(file, manifestDir, socket, conntrack string) error {
	return os.WriteFile(file, fmt.Appendf(nil, `apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
discovery:
  manifests: {path: %s}
interfaces: [{name: eth0}, {name: eth1}]
nodePortAddresses: ["%s/24", "%s/64"]
conntrack: {path: %s, maxFlows: 131072}
admin: {socket: %s}
drain: {notReadySeconds: 0, timeoutSeconds: 0}
`, manifestDir, netlab.Host4(netlab.ClientNet, 0), netlab.Host6(netlab.ClientNet, 0), conntrack, socket), 0o644)
}
