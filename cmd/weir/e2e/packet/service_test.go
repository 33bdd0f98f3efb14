package packet

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/perf/netlab"
)

// Ports of every Service: TCP, UDP and SCTP, with their ports on the endpoints
// where the mode translates ports.
const (
	tcpPort, tcpTarget   = 80, 8080
	udpPort, udpTarget   = 53, 5353
	sctpPort, sctpTarget = 132, 8132
)

// endpoint is an endpoint of the lab, with an address in each family.
type endpoint struct {
	network, host uint8
	node          string
}

func fabric(host uint8) endpoint { return endpoint{netlab.FabricNet, host, "other"} }

// podAt is an endpoint behind the edge node's kernel.
func podAt(host uint8) endpoint { return endpoint{netlab.PodNet, host, "edge-1"} }

var pod = podAt(2)

func (e endpoint) isPod() bool { return e.network == netlab.PodNet }

func (e endpoint) addr(six bool) netip.Addr {
	if six {
		return netlab.Host6(e.network, e.host)
	}
	return netlab.Host4(e.network, e.host)
}

// definition is a Service that cases use by name.
type definition struct {
	// endpoints; nil: one, that the mode can reach. To have none, see empty.
	endpoints []endpoint
	// pods are the endpoints in dnat; nil: the same.
	pods  []endpoint
	empty bool
	// edit changes the objects that the table makes: annotations, policies.
	edit       func(*corev1.Service)
	editSlices func(*discoveryv1.EndpointSlice)
}

// definitions by name.
var definitions = map[string]definition{
	"one":   {},
	"empty": {empty: true},
	"no-local": {endpoints: []endpoint{fabric(11)}, edit: func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}},
}

// service is a Service in one mode.
type service struct {
	definition
	name, mode string
	index      uint8
}

func (s *service) vip(six bool) netip.Addr {
	if six {
		return netlab.Host6(netlab.LBNet, s.index)
	}
	return netlab.Host4(netlab.LBNet, s.index)
}

// nodePort is the node port of one of the Service's ports.
func (s *service) nodePort(port uint16) uint16 { return 30000 + 10*uint16(s.index) + port%10 }

func (s *service) hosts() []endpoint {
	switch {
	case s.empty:
		return nil
	case s.mode == dnat && s.pods != nil:
		return s.pods
	case s.endpoints != nil:
		return s.endpoints
	case s.mode == dnat:
		return []endpoint{pod}
	}
	return []endpoint{fabric(11)}
}

// target is the endpoints' port: where nothing is translated, the same.
func (s *service) target(port uint16) uint16 {
	switch {
	case s.mode != nat && s.mode != dnat:
		return port
	case port == tcpPort:
		return tcpTarget
	case port == sctpPort:
		return sctpTarget
	}
	return udpTarget
}

// objects are the Service and its EndpointSlices.
func (s *service) objects() []any {
	both, vip := corev1.IPFamilyPolicyRequireDualStack, corev1.LoadBalancerIPModeVIP
	four, six := netip.AddrFrom4([4]byte{10, 96, 0, s.index}), netip.MustParseAddr(fmt.Sprintf("fd96::%d", s.index))
	svc := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: s.name, Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": s.name},
			IPFamilyPolicy: &both, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			ClusterIP: four.String(), ClusterIPs: []string{four.String(), six.String()},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		},
	}
	if s.mode != nat {
		svc.Annotations["weir.dev/forwarding-mode"] = s.mode
	}
	var ports []discoveryv1.EndpointPort
	for _, p := range []struct {
		name     string
		protocol corev1.Protocol
		port     uint16
	}{{"tcp", corev1.ProtocolTCP, tcpPort}, {"udp", corev1.ProtocolUDP, udpPort}, {"sctp", corev1.ProtocolSCTP, sctpPort}} {
		target := int32(s.target(p.port))
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: int32(p.port),
			TargetPort: intstr.FromInt32(target), NodePort: int32(s.nodePort(p.port))})
		ports = append(ports, discoveryv1.EndpointPort{Name: &p.name, Protocol: &p.protocol, Port: &target})
	}
	for _, v6 := range []bool{false, true} {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: s.vip(v6).String(), IPMode: &vip})
	}
	if s.edit != nil {
		s.edit(svc)
	}
	return []any{svc, s.slice(false, ports), s.slice(true, ports)}
}

func (s *service) slice(six bool, ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	kind, suffix, yes, no := discoveryv1.AddressTypeIPv4, "v4", true, false
	if six {
		kind, suffix = discoveryv1.AddressTypeIPv6, "v6"
	}
	out := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: s.name + "-" + suffix,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.name}},
		AddressType: kind, Ports: ports, Endpoints: []discoveryv1.Endpoint{},
	}
	for _, e := range s.hosts() {
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{e.addr(six).String()}, NodeName: &e.node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}})
	}
	if s.editSlices != nil {
		s.editSlices(out)
	}
	return out
}

// manifest is the Service as kubectl would print it.
func (s *service) manifest(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, o := range s.objects() {
		b, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "---\n%s", b)
	}
	return out.Bytes()
}
