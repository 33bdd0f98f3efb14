package kubernetes

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2"
)

// cases are those that Weir serves packets of, by the part of the name after its container. Each list runs in a
// process of its own, beside the others.
var cases = [][]string{{
	"LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should work for type=LoadBalancer",
	"LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should only target nodes with endpoints",
	"LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should target all nodes with endpoints",
	"LoadBalancers [Feature:LoadBalancer] should only allow access from service loadbalancer source ranges",
	"LoadBalancers [Feature:LoadBalancer] should be able to change the type and ports of a TCP service",
}, {
	"LoadBalancers [Feature:LoadBalancer] should be able to create LoadBalancer Service without NodePort and change it",
	"LoadBalancers [Feature:LoadBalancer] should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on different nodes",
	"LoadBalancers [Feature:LoadBalancer] should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on the same nodes",
	"LoadBalancers [Feature:LoadBalancer] should be able to change the type and ports of a UDP service",
}, {
	"Conntrack should be able to preserve UDP traffic when server pod cycles for a NodePort service",
	"Conntrack should be able to cleanup conntrack entries when UDP service target port changes for a NodePort service",
	"Networking Granular Checks: Services should function for pod-Service: http",
	"Networking Granular Checks: Services should function for pod-Service: udp",
}, {
	"Services should be able to create a functioning NodePort service",
	"Services should be able to update service type to NodePort listening on same port number but different protocols",
	"Services should be able to change the type from ExternalName to NodePort",
	"Services should have session affinity work for NodePort service",
	"Services should be able to switch session affinity for NodePort service",
	"Services should support externalTrafficPolicy=Local for type=NodePort",
	"Services should fail health check node port if there are only terminating endpoints",
	"Services should fallback to terminating endpoints when there are no ready endpoints with externallTrafficPolicy=Cluster",
	"Services should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local",
	"Services should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes",
	"Services should be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is true",
	"Services should not be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is false",
}, {
	"LoadBalancers [Feature:LoadBalancer] should not have connectivity disruption during rolling update with externalTrafficPolicy=Local",
}, {
	"LoadBalancers [Feature:LoadBalancer] should not have connectivity disruption during rolling update with externalTrafficPolicy=Cluster",
}, {
	"Services should have session affinity timeout work for NodePort service",
}}

// byAddress are cases that need a router that spreads clients and not connections. Nodes do not share what they remember
// of a client, and with policy Local they have different endpoints.
var byAddress = []string{
	"LoadBalancers [Feature:LoadBalancer] should have session affinity work for LoadBalancer service with Local traffic policy",
	"LoadBalancers [Feature:LoadBalancer] should have session affinity work for LoadBalancer service with Cluster traffic policy",
	"LoadBalancers [Feature:LoadBalancer] should be able to switch session affinity for LoadBalancer service with Cluster traffic policy",
}

// controls are cases that have to fail without Weir.
var controls = []string{
	"LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should work for type=LoadBalancer",
	"Services should be able to create a functioning NodePort service",
}

// containers are those whose cases are all in one of the lists.
var containers = []string{"LoadBalancers ", "Conntrack ", "Services ", "Networking Granular Checks: Services ", "LocalhostNodePorts ", "KubeProxy "}

// skip is a reason to leave cases out, with parts of their names.
type skip struct {
	reason string
	parts  []string
}

var skipped = []skip{
	{"kube-proxy's: Pods reach ClusterIPs, and node ports and addresses of their own node, without Weir", []string{
		"ExternalTrafficPolicy: Local [Feature:LoadBalancer] should work from pods",
		"ClusterIP service", "with type clusterIP", "initial unready endpoints get ready", "invalid conntrack state bug",
		"endpoint from pods", "endpoints from pods", "adding or deleting ports", "service cluster IP", "hairpin", "up and down services",
		"after the service has been recreated", "via ExternalIP", "endpoints for unready pods", "service-proxy-name", "headless",
		"should be rejected", "internalTrafficPolicy=", "different protocols [Conformance]", "for internal traffic on Type LoadBalancer",
		"restartable init containers", "named targetPorts", "multiple endpoint-Services", "update endpoints", "client IP based session affinity",
		"large requests", "using hostNetwork", "endpoint-Service", "LocalhostNodePorts", "KubeProxy ",
	}},
	{"by chance Weir's: only if the scheduler puts the client on another node than the one that it asks", []string{
		"node-Service", "update nodePort", "support basic nodePort",
	}},
	{"of names or of the API alone", []string{
		"from ExternalName to ClusterIP", "to ExternalName", "NodePort collisions", "NodePort out-of-range", "release NodePorts",
		"listing all namespaces", "status lifecycle", "collection of services",
	}},
	{"a component must be a Pod that the case restarts", []string{"restarting kube-proxy", "restarting apiserver"}},
	{"the service controller of a cloud sets the finalizer", []string{"cleanup finalizer"}},
	{"a router would have to spread clients while affinity is on, and connections while it is off", []string{
		"switch session affinity for LoadBalancer service with Local traffic policy",
	}},
	{"SCTP is not in every kernel", []string{"sctp", "SCTP"}},
}

// reason is why a case is left out, or empty.
func reason(name string) string {
	for _, s := range skipped {
		for _, part := range s.parts {
			if strings.Contains(name, part) {
				return s.reason
			}
		}
	}
	return ""
}

func allCases() []string {
	return slices.Concat(slices.Concat(cases...), byAddress)
}

// The lists are complete, and name each case once: a release of Kubernetes brings new cases and other names.
func TestEveryCaseIsDecided(t *testing.T) {
	all := map[string]int{}
	for _, name := range allCases() {
		all[name] = 0
	}
	for _, s := range ginkgo.PreviewSpecs("SIG Network").SpecReports {
		name, network := strings.CutPrefix(s.FullText(), "[sig-network] ")
		of := ""
		for _, c := range containers {
			if strings.HasPrefix(name, c) {
				of = c
			}
		}
		if !network || of == "" {
			continue
		}
		runs := false
		for c := range all {
			if name == c || strings.HasPrefix(name, c+" [") {
				runs = true
				all[c]++
			}
		}
		if why := reason(name); runs == (why != "") {
			t.Errorf("%s: run %t, left out %q", name, runs, why)
		}
	}
	for name, n := range all {
		if n != 1 {
			t.Errorf("%s is the name of %d cases", name, n)
		}
	}
}

// requireBinaries returns the directory of Kubernetes' programs, and weir.
func requireBinaries(t *testing.T) (bin, weir string) {
	t.Helper()
	bin, weir = os.Getenv("WEIR_KUBERNETES_BIN"), os.Getenv("WEIR_BINARY")
	if bin == "" || weir == "" {
		t.Skip("skipped: WEIR_KUBERNETES_BIN or WEIR_BINARY is not set: run make conformance")
	}
	return bin, weir
}
