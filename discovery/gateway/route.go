package gateway

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// route is a TCPRoute or a UDPRoute.
type route struct {
	kind     string
	protocol corev1.Protocol
	meta     *metav1.ObjectMeta
	parents  []gatewayv1.ParentReference
	refs     []gatewayv1.BackendRef
	status   *gatewayv1.RouteStatus

	targets []target
	fault   *reason // the first of a reference

	// Of the first listener that the route is served on, for all.
	counted   bool
	endpoints int
	sources   []source
	weights   map[string]int64
}

// target is a Service port with a weight: a backend of a route.
type target struct {
	service types.NamespacedName
	port    corev1.ServicePort
	weight  int64
}

// attach attaches a route to the listeners of all parents that allow it, and gives the route the status.
func (t *translation) attach(r *route) {
	t.resolve(r)
	old := r.status.Parents
	r.status.Parents = slices.DeleteFunc(slices.Clone(old), func(p gatewayv1.RouteParentStatus) bool { return p.ControllerName == ControllerName })
	for _, ref := range r.parents {
		g := t.gatewayOf(r, &ref)
		if g == nil {
			continue
		}
		p := gatewayv1.RouteParentStatus{ParentRef: ref, ControllerName: ControllerName}
		for i := range old {
			if old[i].ControllerName == ControllerName && sameParent(&old[i].ParentRef, &ref, r.meta.Namespace) {
				p.Conditions = slices.Clone(old[i].Conditions)
			}
		}
		set(&p.Conditions, r.meta.Generation, string(gatewayv1.RouteConditionAccepted), string(gatewayv1.RouteReasonAccepted), t.attachTo(g, r, &ref))
		set(&p.Conditions, r.meta.Generation, string(gatewayv1.RouteConditionResolvedRefs), string(gatewayv1.RouteReasonResolvedRefs), r.fault)
		r.status.Parents = append(r.status.Parents, p)
	}
	if r.status.Parents == nil {
		r.status.Parents = []gatewayv1.RouteParentStatus{} // required in the API
	}
}

// gatewayOf is the Gateway of this controller that a reference names, nil for none.
func (t *translation) gatewayOf(r *route, ref *gatewayv1.ParentReference) *gateway {
	if ref.Group != nil && *ref.Group != gatewayv1.GroupName || ref.Kind != nil && *ref.Kind != "Gateway" {
		return nil
	}
	return t.gateways[types.NamespacedName{Namespace: namespaceOf(ref.Namespace, r.meta.Namespace), Name: string(ref.Name)}]
}

func namespaceOf(ns *gatewayv1.Namespace, own string) string {
	if ns == nil || *ns == "" {
		return own
	}
	return string(*ns)
}

// sameParent reports whether two references of a route name the same.
func sameParent(a, b *gatewayv1.ParentReference, own string) bool {
	return a.Name == b.Name && namespaceOf(a.Namespace, own) == namespaceOf(b.Namespace, own) &&
		value(a.SectionName) == value(b.SectionName) && value(a.Port) == value(b.Port)
}

// value is *p, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// attachTo attaches a route to the listeners that the reference means; the reason is why it cannot.
func (t *translation) attachTo(g *gateway, r *route, ref *gatewayv1.ParentReference) *reason {
	matched, attached := false, false
	for _, l := range g.listeners {
		if ref.SectionName != nil && *ref.SectionName != l.spec.Name || ref.Port != nil && *ref.Port != l.spec.Port {
			continue
		}
		matched = true
		if !t.allows(l, g.obj.Namespace, r) {
			continue
		}
		attached = true
		if !slices.Contains(l.attached, r) {
			l.attached = append(l.attached, r)
		}
	}
	switch {
	case !matched:
		return &reason{string(gatewayv1.RouteReasonNoMatchingParent), "the Gateway has no listener of this name and port"}
	case !attached:
		return &reason{string(gatewayv1.RouteReasonNotAllowedByListeners), fmt.Sprintf("no listener allows a %s of namespace %s", r.kind, r.meta.Namespace)}
	}
	return nil
}

// resolve finds the backends of a route. References that are refused or lead nowhere get no share.
func (t *translation) resolve(r *route) {
	for i := range r.refs {
		b, fault := t.targetOf(r, &r.refs[i])
		if fault != nil {
			r.fault = cmp.Or(r.fault, fault)
			continue
		}
		// A Service that is named twice has both weights.
		if j := slices.IndexFunc(r.targets, func(o target) bool { return o.service == b.service && o.port.Port == b.port.Port }); j >= 0 {
			r.targets[j].weight += b.weight
		} else {
			r.targets = append(r.targets, b)
		}
	}
}

func (t *translation) targetOf(r *route, ref *gatewayv1.BackendRef) (target, *reason) {
	out := target{service: types.NamespacedName{Namespace: namespaceOf(ref.Namespace, r.meta.Namespace), Name: string(ref.Name)}, weight: 1}
	if ref.Weight != nil {
		out.weight = int64(max(0, *ref.Weight))
	}
	if ref.Group != nil && *ref.Group != "" || ref.Kind != nil && *ref.Kind != "Service" {
		return out, &reason{string(gatewayv1.RouteReasonInvalidKind), fmt.Sprintf("backend %s is no Service", ref.Name)}
	}
	if out.service.Namespace != r.meta.Namespace && !t.granted(r, out.service) {
		return out, &reason{string(gatewayv1.RouteReasonRefNotPermitted), fmt.Sprintf("no ReferenceGrant in namespace %s permits Service %s", out.service.Namespace, out.service.Name)}
	}
	svc := t.in.Service(out.service.Namespace, out.service.Name)
	if svc == nil {
		return out, &reason{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf("Service %s does not exist", out.service)}
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Labels[LabelManagedBy] == ManagedBy {
		return out, &reason{string(gatewayv1.RouteReasonInvalidKind), fmt.Sprintf("Service %s has no endpoints of its own", out.service)}
	}
	fault := &reason{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf("Service %s has no port %d", out.service, value(ref.Port))}
	for _, p := range svc.Spec.Ports {
		switch {
		case p.Port != value(ref.Port):
		case cmp.Or(p.Protocol, corev1.ProtocolTCP) == r.protocol:
			out.port = p
			return out, nil
		default:
			fault = &reason{string(gatewayv1.RouteReasonUnsupportedProtocol), fmt.Sprintf("port %d of Service %s has protocol %s", p.Port, out.service, cmp.Or(p.Protocol, corev1.ProtocolTCP))}
		}
	}
	return out, fault
}

// granted reports whether a ReferenceGrant lets the route refer to a Service of another namespace.
func (t *translation) granted(r *route, to types.NamespacedName) bool {
	for _, g := range t.grants[to.Namespace] {
		from := slices.ContainsFunc(g.Spec.From, func(f gatewayv1.ReferenceGrantFrom) bool {
			return f.Group == gatewayv1.GroupName && string(f.Kind) == r.kind && string(f.Namespace) == r.meta.Namespace
		})
		if from && slices.ContainsFunc(g.Spec.To, func(o gatewayv1.ReferenceGrantTo) bool {
			return o.Group == "" && o.Kind == "Service" && (o.Name == nil || *o.Name == "" || string(*o.Name) == to.Name)
		}) {
			return true
		}
	}
	return false
}

// slicePort is the port of a slice that a Service port has, 0 for none.
func slicePort(s *discoveryv1.EndpointSlice, p *corev1.ServicePort) int32 {
	for _, q := range s.Ports {
		if value(q.Name) == p.Name && cmp.Or(value(q.Protocol), corev1.ProtocolTCP) == cmp.Or(p.Protocol, corev1.ProtocolTCP) {
			return value(q.Port)
		}
	}
	return 0
}
