package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// manyGateways is n Gateways of a namespace with listeners that a single route serves, of a Service with endpoints. The last
// is the oldest. Calls counts how often the slices are asked for.
func manyGateways(n, listeners, endpoints int, calls *int) *Objects {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "v1"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	port := int32(80)
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "v1-1"}, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}}}
	for i := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}})
	}
	route := &gatewayv1.TCPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r"}}
	route.Spec.Rules = []gatewayv1.TCPRouteRule{{BackendRefs: []gatewayv1.BackendRef{{BackendObjectReference: gatewayv1.BackendObjectReference{Name: "v1", Port: &port}}}}}
	in := &Objects{
		Classes:   []*gatewayv1.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: "weir"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: ControllerName}}},
		TCPRoutes: []*gatewayv1.TCPRoute{route},
		Service: func(namespace, name string) *corev1.Service {
			if namespace == "a" && name == "v1" {
				return svc
			}
			return nil
		},
		Slices: func(string, string) []*discoveryv1.EndpointSlice {
			*calls++
			return []*discoveryv1.EndpointSlice{slice}
		},
	}
	for i := range n {
		name := fmt.Sprintf("g%d", i)
		g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Unix(int64(1e6-i), 0)),
		}}
		g.Spec.GatewayClassName = "weir"
		for p := range listeners {
			g.Spec.Listeners = append(g.Spec.Listeners, gatewayv1.Listener{Name: gatewayv1.SectionName(fmt.Sprint("l", p)), Protocol: gatewayv1.TCPProtocolType, Port: gatewayv1.PortNumber(80 + p)})
		}
		in.Gateways = append(in.Gateways, g)
		route.Spec.ParentRefs = append(route.Spec.ParentRefs, gatewayv1.ParentReference{Name: gatewayv1.ObjectName(name)})
	}
	return in
}

// A namespace may not fill the API server with the objects that the controller writes.
func TestGatewaysOfANamespaceAreLimited(t *testing.T) {
	var calls int
	in := manyGateways(1002, 1, 0, &calls)
	out := Translate(in)
	if len(out.Services) != maxNamespaceGateways || out.Services[0].Name != "g1001-weir" {
		t.Errorf("%d Services, the first %s", len(out.Services), out.Services[0].Name)
	}
	if c := meta.FindStatusCondition(out.Gateways[1001].Status.Conditions, "Programmed"); out.Gateways[1001].Name != "g0" || c.Reason != "NoResources" {
		t.Errorf("the youngest: %+v", c)
	}

	in = manyGateways(7, 1, 15000, &calls)
	var endpoints int
	for _, s := range Translate(in).Slices {
		endpoints += len(s.Endpoints)
	}
	if endpoints != 6*15000 {
		t.Errorf("%d endpoints", endpoints)
	}
}

// refuse has the Gateways refused, with Services as they are.
func refuse(in *Objects) {
	in.Generated = Translate(in).Services
	kind := gatewayv1.HostnameAddressType
	for _, g := range in.Gateways {
		g.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Type: &kind, Value: "a.example"}}
	}
}

// Gateways that are refused and served as before count like others, however many Services somebody gives them.
func TestRefusedGatewaysAreLimited(t *testing.T) {
	var calls int
	in := manyGateways(1002, 1, 1, &calls)
	refuse(in)
	for _, i := range []int{0, 1} { // the youngest have forged ones
		svc := in.Generated[0].DeepCopy()
		svc.Name, svc.OwnerReferences[0].Name, svc.OwnerReferences[0].UID = fmt.Sprint("forged", i), in.Gateways[i].Name, in.Gateways[i].UID
		in.Generated = append(in.Generated, svc)
	}
	later := manyGateways(1, 1, 1, &calls).Gateways[0]
	later.Name, later.UID = "later", "later"
	in.Gateways = append(in.Gateways, later)
	out := Translate(in)
	if len(out.Slices) != maxNamespaceGateways || len(out.Services) != maxNamespaceGateways+2 {
		t.Errorf("%d slices of %d Services", len(out.Slices), len(out.Services))
	}
	for _, g := range out.Gateways {
		if c := meta.FindStatusCondition(g.Status.Conditions, "Programmed"); g.Name == "g0" && !strings.HasSuffix(c.Message, "the Service stays, without endpoints") {
			t.Errorf("the youngest: %+v", c)
		}
	}

	in = manyGateways(1, 1, 1, &calls)
	refuse(in)
	svc := in.Generated[0].DeepCopy()
	for p := range int32(1000) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Protocol: corev1.ProtocolTCP, Port: 1000 + p})
	}
	in.Generated[0] = svc
	if out := Translate(in); len(out.Slices) != 1 || len(out.Slices[0].Endpoints) != 1 {
		t.Errorf("%d slices with ports of other names", len(out.Slices))
	}
	for p := range int32(1000) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("tcp-", 1000+p), Protocol: corev1.ProtocolTCP, Port: 1000 + p})
	}
	if out := Translate(in); len(out.Slices) != maxPorts {
		t.Errorf("%d slices with many ports", len(out.Slices))
	}
}

// A route on many listeners is looked at once.
func TestTheEndpointsOfARouteAreFoundOnce(t *testing.T) {
	var calls int
	if out := Translate(manyGateways(2, 64, 10, &calls)); len(out.Slices) != 128 {
		t.Errorf("%d slices", len(out.Slices))
	}
	if calls > 2 {
		t.Errorf("the slices of the Service are listed %d times", calls)
	}
}
