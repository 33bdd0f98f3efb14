// Package gateway translates objects of the Gateway API (sigs.k8s.io/gateway-api, v1.6) for layer 4
// into Services with EndpointSlices, which nodes serve, and into the statuses of these objects.
//
// Each Gateway of a class of this controller becomes a Service of type LoadBalancer in the namespace of the
// Gateway, so that addresses, limits of a namespace and announcements are those of Services. A listener
// is a port of the Service. The slices of a port have the endpoints of the backends of the oldest route
// that is attached to the listener, with weights by which each backend gets the share of the route.
//
// Translate is a pure function: who reads the objects, and writes the results, is up to the caller.
package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// ControllerName is spec.controllerName of the GatewayClasses of this controller.
const ControllerName = "weir.dev/gateway-controller"

// ManagedBy is the value of the label managed-by of generated Services and slices.
const ManagedBy = "gateway-controller.weir.dev"

// LabelManagedBy marks generated Services.
const LabelManagedBy = "app.kubernetes.io/managed-by"

// maxEndpoints bounds the endpoints of all listeners of a Gateway: a few small objects could ask for
// millions, since backends may be named by each of 64 listeners.
const maxEndpoints = 20000

// The Gateways of a namespace together have at most as many endpoints, and Services with endpoints. Those that
// have a Service have them first, then the oldest.
const (
	maxNamespaceEndpoints = 5 * maxEndpoints
	maxNamespaceGateways  = 1000
)

// Objects are the input. None is changed.
type Objects struct {
	Classes   []*gatewayv1.GatewayClass
	Gateways  []*gatewayv1.Gateway
	TCPRoutes []*gatewayv1.TCPRoute
	UDPRoutes []*gatewayv1.UDPRoute
	Grants    []*gatewayv1.ReferenceGrant
	// NamespaceLabels are those of a namespace, nil if it is not known.
	NamespaceLabels func(name string) map[string]string
	// Service is a Service as it is, nil for none: a backend, or the generated Service of a Gateway.
	Service func(namespace, name string) *corev1.Service
	// Slices are those of a Service.
	Slices func(namespace, name string) []*discoveryv1.EndpointSlice
	// Generated are the Services of Gateways as they are. A Gateway that is refused keeps the Service.
	Generated []*corev1.Service
	// LoadBalancerClass is that of the generated Services.
	LoadBalancerClass string
}

// Result is the state to be reached. Objects with a status are copies of those of the input, with the status
// that they should have, and classes with the finalizers; classes and Gateways that are not this controller's are
// left out. Services of Gateways that are refused are those of Generated, unchanged.
type Result struct {
	Classes   []*gatewayv1.GatewayClass
	Gateways  []*gatewayv1.Gateway
	TCPRoutes []*gatewayv1.TCPRoute
	UDPRoutes []*gatewayv1.UDPRoute
	Services  []*corev1.Service
	Slices    []*discoveryv1.EndpointSlice
}

// translation is a Translate at work.
type translation struct {
	in        *Objects
	out       *Result
	grants    map[string][]*gatewayv1.ReferenceGrant // by namespace
	gateways  map[types.NamespacedName]*gateway
	generated owned
	named     map[types.NamespacedName]bool // Services of the result
	services  map[string]int                // that have endpoints, by namespace
	endpoints map[string]int                // so
}

// gateway is a Gateway of a class of this controller.
type gateway struct {
	obj       *gatewayv1.Gateway // a copy
	refusal   *reason            // nil: accepted
	last      *corev1.Service    // as it is, nil for none
	placed    bool               // among those that a namespace may have
	listeners []*listener
	endpoints int
}

// reason is that of a condition.
type reason struct{ reason, text string }

// Translate has no errors: faults of objects are in their conditions.
func Translate(in *Objects) *Result {
	t := &translation{in: in, out: &Result{}, grants: map[string][]*gatewayv1.ReferenceGrant{}, gateways: map[types.NamespacedName]*gateway{}, generated: readOwned(in.Generated), named: map[types.NamespacedName]bool{}, services: map[string]int{}, endpoints: map[string]int{}}
	for _, g := range in.Grants {
		t.grants[g.Namespace] = append(t.grants[g.Namespace], g)
	}
	classes := t.classes()
	order := t.readGateways(classes)
	t.routes()
	for _, g := range order {
		if g.last != nil {
			t.place(g) // before those that are not served yet
		}
	}
	for _, g := range order {
		t.serve(g)
	}
	return t.out
}

// class is a GatewayClass.
type class struct {
	ours    bool
	refusal *reason // nil: accepted
}

// classes are all classes, by name.
func (t *translation) classes() map[gatewayv1.ObjectName]class {
	out, used := map[gatewayv1.ObjectName]class{}, map[gatewayv1.ObjectName]bool{}
	for _, g := range t.in.Gateways {
		used[g.Spec.GatewayClassName] = true
	}
	for _, c := range t.in.Classes {
		name := gatewayv1.ObjectName(c.Name)
		if c.Spec.ControllerName != ControllerName {
			out[name] = class{}
			continue
		}
		var refusal *reason
		if c.Spec.ParametersRef != nil {
			refusal = &reason{string(gatewayv1.GatewayClassReasonInvalidParameters), "spec.parametersRef: no parameters are supported"}
		}
		out[name] = class{true, refusal}
		c = c.DeepCopy()
		finalize(c, used[name])
		set(&c.Status.Conditions, c.Generation, string(gatewayv1.GatewayClassConditionStatusAccepted), string(gatewayv1.GatewayClassReasonAccepted), refusal)
		t.out.Classes = append(t.out.Classes, c)
	}
	return out
}

// readGateways notes the Gateways of this controller's classes, and those that it serves while there is no such
// class, the oldest first.
func (t *translation) readGateways(classes map[gatewayv1.ObjectName]class) (order []*gateway) {
	for _, obj := range t.in.Gateways {
		of, known := classes[obj.Spec.GatewayClassName]
		g := &gateway{obj: obj.DeepCopy(), refusal: of.refusal, last: t.generated.last(obj)}
		switch {
		case obj.DeletionTimestamp != nil || known && !of.ours || !known && g.last == nil:
			continue
		case !known:
			g.refusal = &reason{string(gatewayv1.GatewayReasonInvalid), fmt.Sprintf("GatewayClass %s does not exist", obj.Spec.GatewayClassName)}
		}
		if in := obj.Spec.Infrastructure; in != nil && in.ParametersRef != nil && g.refusal == nil {
			g.refusal = &reason{string(gatewayv1.GatewayReasonInvalidParameters), "spec.infrastructure.parametersRef: no parameters are supported"}
		}
		if _, fault := staticAddresses(obj); fault != nil && g.refusal == nil {
			g.refusal = fault
		}
		g.readListeners()
		g.keepListeners()
		t.gateways[types.NamespacedName{Namespace: obj.Namespace, Name: obj.Name}] = g
		order = append(order, g)
	}
	slices.SortStableFunc(order, func(a, b *gateway) int { return older(&a.obj.ObjectMeta, &b.obj.ObjectMeta) })
	return order
}

// older orders objects by age, then by namespace and name, as the Gateway API resolves conflicts.
func older(a, b *metav1.ObjectMeta) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// routes attaches all routes, the oldest first.
func (t *translation) routes() {
	var all []*route
	for _, r := range t.in.TCPRoutes {
		if r.DeletionTimestamp != nil {
			continue
		}
		c := r.DeepCopy()
		t.out.TCPRoutes = append(t.out.TCPRoutes, c)
		to := &route{kind: "TCPRoute", protocol: corev1.ProtocolTCP, meta: &c.ObjectMeta, parents: c.Spec.ParentRefs, status: &c.Status.RouteStatus}
		for i := range c.Spec.Rules {
			to.refs = append(to.refs, c.Spec.Rules[i].BackendRefs...)
		}
		all = append(all, to)
	}
	for _, r := range t.in.UDPRoutes {
		if r.DeletionTimestamp != nil {
			continue
		}
		c := r.DeepCopy()
		t.out.UDPRoutes = append(t.out.UDPRoutes, c)
		to := &route{kind: "UDPRoute", protocol: corev1.ProtocolUDP, meta: &c.ObjectMeta, parents: c.Spec.ParentRefs, status: &c.Status.RouteStatus}
		for i := range c.Spec.Rules {
			to.refs = append(to.refs, c.Spec.Rules[i].BackendRefs...)
		}
		all = append(all, to)
	}
	slices.SortStableFunc(all, func(a, b *route) int { return older(a.meta, b.meta) })
	for _, r := range all {
		t.attach(r)
	}
}
