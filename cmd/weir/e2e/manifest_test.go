package e2e

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/perf/netlab"
)

// Ports of every Service of the tests: an HTTP server, an echo server for TCP
// and UDP, and a server for half-closed connections.
const (
	httpPort, httpTarget = 80, 8080
	echoPort, echoTarget = 7, 7777
	halfPort, halfTarget = 9, 9999
)

// service is a Service with its endpoints in the lab.
type service struct {
	name  string
	index uint8 // of its load balancer IPs and node ports
	// lb are its load balancer IPs; nil: 10.99.0.index and fd99::index
	lb    []netip.Addr
	local bool // externalTrafficPolicy: Local
	// endpoints by host, and where they are
	endpoints   []endpoint
	hung        []endpoint // endpoints too, which do not serve
	annotations map[string]string
}

// endpoint is one endpoint, with an address in each family.
type endpoint struct {
	network, host uint8
	node          string
}

// Endpoints of the lab.
var (
	attached = endpoint{netlab.FabricNet, 11, "zonea"} // on the network of an attached interface
	routed   = endpoint{netlab.ZoneBNet, 12, "zoneb"}  // behind a router on that network
	pod      = endpoint{netlab.PodNet, 2, "edge-1"}    // behind the edge node's bridge
	onNode   = endpoint{netlab.FabricNet, 1, "edge-1"} // a hostNetwork process on the edge node
	overlay  = endpoint{netlab.RemoteNet, 2, "zonea"}  // behind a VXLAN
)

func (e endpoint) addr(six bool) netip.Addr {
	if six {
		return netlab.Host6(e.network, e.host)
	}
	return netlab.Host4(e.network, e.host)
}

// nodePort is the node port of one of the Service's ports.
func (s service) nodePort(port uint16) uint16 { return 30000 + 100*uint16(s.index) + port }

// healthPort is its healthCheckNodePort, where its policy is Local.
func (s service) healthPort() uint16 { return s.nodePort(99) }

// lbIP is the Service's load balancer IP.
func (s service) lbIP(six bool) netip.Addr {
	for _, a := range s.lb {
		if a.Is6() == six {
			return a
		}
	}
	if six {
		return netlab.Host6(netlab.LBNet, s.index)
	}
	return netlab.Host4(netlab.LBNet, s.index)
}

// at is a port of the Service on its load balancer IP.
func (s service) at(port uint16, six bool) netip.AddrPort {
	return netip.AddrPortFrom(s.lbIP(six), port)
}

// atNode is a port of the Service on the edge node's address to clients.
func (s service) atNode(port uint16, six bool) netip.AddrPort {
	a := netlab.Host4(netlab.ClientNet, 1)
	if six {
		a = netlab.Host6(netlab.ClientNet, 1)
	}
	return netip.AddrPortFrom(a, s.nodePort(port))
}

// objects are the Service and its EndpointSlices.
func (s service) objects() []any {
	single, vip := corev1.IPFamilyPolicyRequireDualStack, corev1.LoadBalancerIPModeVIP
	svc := corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: s.name, Annotations: s.annotations},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeLoadBalancer,
			Selector:              map[string]string{"app": s.name},
			IPFamilyPolicy:        &single,
			IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			ClusterIP:             fmt.Sprintf("10.96.0.%d", s.index),
			ClusterIPs:            []string{fmt.Sprintf("10.96.0.%d", s.index), fmt.Sprintf("fd96::%d", s.index)},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		},
	}
	if s.local {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		svc.Spec.HealthCheckNodePort = int32(s.healthPort())
	}
	var ports []discoveryv1.EndpointPort
	for _, p := range []struct {
		name         string
		protocol     corev1.Protocol
		port, target int32
	}{
		{"http", corev1.ProtocolTCP, httpPort, httpTarget},
		{"echo", corev1.ProtocolTCP, echoPort, echoTarget},
		{"echo-udp", corev1.ProtocolUDP, echoPort, echoTarget},
		{"half", corev1.ProtocolTCP, halfPort, halfTarget},
	} {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: p.port,
			TargetPort: intstr.FromInt32(p.target), NodePort: int32(s.nodePort(uint16(p.port)))})
		ports = append(ports, discoveryv1.EndpointPort{Name: &p.name, Protocol: &p.protocol, Port: &p.target})
	}
	out := []any{&svc}
	for _, six := range []bool{false, true} {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: s.lbIP(six).String(), IPMode: &vip})
		out = append(out, s.slice(six, ports))
	}
	return out
}

func (s service) slice(six bool, ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	kind, suffix, yes, no := discoveryv1.AddressTypeIPv4, "v4", true, false
	if six {
		kind, suffix = discoveryv1.AddressTypeIPv6, "v6"
	}
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: s.name + "-" + suffix,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.name}},
		AddressType: kind, Ports: ports, Endpoints: []discoveryv1.Endpoint{},
	}
	for _, e := range s.endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{e.addr(six).String()},
			NodeName:   &e.node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		})
	}
	for _, e := range s.hung {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{e.addr(six).String()},
			NodeName:   &e.node,
			Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &no},
		})
	}
	return slice
}

// render is the manifest of all services, as kubectl would print it.
func render(t *testing.T, services []service) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, s := range services {
		for _, o := range s.objects() {
			b, err := yaml.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "---\n%s", b)
		}
	}
	return out.Bytes()
}

// replace puts a file in the place of another, at once.
func replace(t *testing.T, file string, content []byte) {
	t.Helper()
	temp := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".new")
	if err := os.WriteFile(temp, content, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temp, file); err != nil {
		t.Fatal(err)
	}
}

func family(six bool) string {
	if six {
		return "IPv6"
	}
	return "IPv4"
}
