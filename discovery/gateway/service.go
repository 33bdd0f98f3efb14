package gateway

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirlb/weir/discovery"
)

// annotationAddresses of a Service asks for addresses.
const annotationAddresses = "weir.dev/loadBalancerIPs"

// annotationRests is of the Lease of weir controller, and never of a Service.
const annotationRests = "weir.dev/resting-addresses"

// labelGateway names the Gateway of a generated object (GEP-1762).
const labelGateway = "gateway.networking.k8s.io/gateway-name"

// ownDomain is that of Weir's annotations.
const ownDomain = "weir.dev"

// newName is the name of a Service that is not there yet: that of the Gateway with that of the class
// (GEP-1762), or, where a Service cannot have this name, a part with a hash. So it is for classes with a hyphen:
// Gateway a of class b-c and Gateway a-b of class c would have the same name.
func newName(g *gatewayv1.Gateway) string {
	class := string(g.Spec.GatewayClassName)
	name := g.Name + "-" + class
	if !strings.Contains(class, "-") && len(validation.IsDNS1035Label(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(g.Name + "/" + class))
	name = strings.Trim(strings.ReplaceAll("gw-"+name, ".", "-"), "-")
	return fmt.Sprintf("%s-%x", strings.TrimRight(name[:min(len(name), 50)], "-"), sum[:5])
}

// staticAddresses are those that a Gateway asks for.
func staticAddresses(g *gatewayv1.Gateway) (out []string, fault *reason) {
	for _, a := range g.Spec.Addresses {
		if a.Type != nil && *a.Type != gatewayv1.IPAddressType {
			return nil, &reason{string(gatewayv1.GatewayReasonUnsupportedAddress), fmt.Sprintf("spec.addresses: type %s: IPAddress is supported", *a.Type)}
		}
		if a.Value == "" {
			continue // any
		}
		if _, err := netip.ParseAddr(a.Value); err != nil {
			return nil, &reason{string(gatewayv1.GatewayReasonUnsupportedAddress), fmt.Sprintf("spec.addresses: %.80q is no address", a.Value)}
		}
		out = append(out, a.Value)
	}
	return out, nil
}

// serve gives a Gateway the Service, the slices and the status.
func (t *translation) serve(g *gateway) {
	var fault *reason // of the Service
	var svc *corev1.Service
	g.obj.Status.Addresses = nil
	if g.refusal == nil {
		svc, fault = t.service(g)
	}
	switch {
	case svc != nil:
		fault = g.addresses(svc, t.in.Service(svc.Namespace, svc.Name))
	case g.last != nil:
		svc = g.last
		_ = g.addresses(svc, svc) // the fault is that of the Gateway
	}
	if svc != nil {
		t.out.Services = append(t.out.Services, svc)
		if g.placed {
			t.ports(g, svc)
		}
	}
	t.status(g, fault)
	t.out.Gateways = append(t.out.Gateways, g.obj)
}

// service is the Service of a Gateway, nil if no listener can be served.
func (t *translation) service(g *gateway) (*corev1.Service, *reason) {
	obj, class, no, dual := g.obj, t.in.LoadBalancerClass, false, corev1.IPFamilyPolicyPreferDualStack
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: obj.Namespace, Name: serviceName(obj, g.last), Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(obj, schema.GroupVersionKind{Group: gatewayv1.GroupName, Version: gatewayv1.GroupVersion.Version, Kind: "Gateway"})},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, AllocateLoadBalancerNodePorts: &no, IPFamilyPolicy: &dual,
			// As the API server fills them in.
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster, InternalTrafficPolicy: &cluster, SessionAffinity: corev1.ServiceAffinityNone,
		},
	}
	for _, l := range g.listeners {
		if l.served() {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: l.portName(), Protocol: l.protocol(), Port: l.spec.Port, TargetPort: intstr.FromInt32(l.spec.Port)})
		}
	}
	if len(svc.Spec.Ports) == 0 {
		return nil, &reason{string(gatewayv1.GatewayReasonInvalid), "no listener can be served"}
	}
	describe(svc, obj)
	g.widen(svc)
	if list, _ := staticAddresses(obj); len(list) > 0 {
		svc.Annotations[annotationAddresses] = strings.Join(list, ",")
	}
	svc.Labels[LabelManagedBy] = ManagedBy
	if len(validation.IsValidLabelValue(obj.Name)) == 0 {
		svc.Labels[labelGateway] = obj.Name
	}
	name := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	if old := t.in.Service(svc.Namespace, svc.Name); old != nil && !metav1.IsControlledBy(old, obj) || t.named[name] {
		return nil, &reason{string(gatewayv1.GatewayReasonInvalid), fmt.Sprintf("Service %s exists and is not this Gateway's", svc.Name)}
	}
	if !t.place(g) {
		return nil, &reason{string(gatewayv1.GatewayReasonNoResources), fmt.Sprintf("a namespace has at most %d Gateways", maxNamespaceGateways)}
	}
	t.named[name] = true
	return svc, nil
}

// describe gives a Service the annotations and labels of a Gateway that whoever writes the Gateway could also set on a
// Service. The account of the controller may be allowed more. A range of ports has a rule of its own.
func describe(svc *corev1.Service, g *gatewayv1.Gateway) {
	for k, v := range g.Annotations {
		if isDescribed(k) {
			svc.Annotations[k] = v
		}
	}
	in := g.Spec.Infrastructure
	if in == nil {
		return
	}
	for k, v := range in.Annotations {
		if isDescribed(string(k)) || !isReserved(string(k)) {
			svc.Annotations[string(k)] = string(v)
		}
	}
	for k, v := range in.Labels {
		if strings.HasPrefix(string(k), "app.kubernetes.io/") || !isReserved(string(k)) {
			svc.Labels[string(k)] = string(v)
		}
	}
}

// isDescribed reports whether a Service has an annotation of Weir from its Gateway. An unknown key is such: nodes warn of
// it, as of any Service, or a misspelt restriction would be dropped in silence.
func isDescribed(key string) bool {
	return strings.HasPrefix(key, ownDomain+"/") && key != discovery.AnnotationPortRange && key != annotationRests
}

// isReserved reports whether a key is of Kubernetes or of Weir, or of a part of either.
func isReserved(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	for _, of := range []string{"kubernetes.io", "k8s.io", ownDomain} {
		if domain == of || strings.HasSuffix(domain, "."+of) {
			return true
		}
	}
	return false
}

// addresses gives a Gateway those of the Service as it is, nil for none. The reason is why there is no address.
func (g *gateway) addresses(svc, old *corev1.Service) *reason {
	why := string(gatewayv1.GatewayReasonAddressNotAssigned)
	if svc.Annotations[annotationAddresses] != "" {
		why = string(gatewayv1.GatewayReasonAddressNotUsable)
	}
	if old == nil {
		return &reason{why, "the Service is not there yet"}
	}
	kind := gatewayv1.IPAddressType
	for _, in := range old.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			g.obj.Status.Addresses = append(g.obj.Status.Addresses, gatewayv1.GatewayStatusAddress{Type: &kind, Value: in.IP})
		}
	}
	c := meta.FindStatusCondition(old.Status.Conditions, ConditionAllocated)
	switch {
	case len(g.obj.Status.Addresses) > 0:
		return nil
	case c != nil && c.Status == metav1.ConditionFalse:
		return &reason{why, c.Message}
	}
	return &reason{why, "no address is assigned yet"}
}
