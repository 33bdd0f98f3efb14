package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/gateway"
	"github.com/weirlb/weir/discovery/similar"
)

// The store has no objects of the Gateway API, but the Services and slices that discovery/gateway makes of
// them and of the Services and slices that routes name. All these are kept decoded, and translated after each
// load. Files without Gateways cost no memory for that.

// gatewayVersion is the API version that gatewayKinds are read as.
const gatewayVersion = gatewayv1.GroupName + "/v1"

var gatewayKinds = map[string]bool{"GatewayClass": true, "Gateway": true, "TCPRoute": true, "UDPRoute": true, "ReferenceGrant": true}

// keep begins to keep objects decoded once files have objects of the Gateway API. It is true if the files are
// to be read again, since objects that are served have not been kept.
func (s *Source) keep(files []*file) bool {
	if s.keeping || !slices.ContainsFunc(files, (*file).hasGateways) {
		return false
	}
	s.keeping = true
	for _, f := range s.files {
		f.clean = false
	}
	return len(s.served) > 0
}

func (f *file) hasGateways() bool {
	for _, objects := range f.objects {
		if slices.ContainsFunc(objects, func(o object) bool { return gatewayKinds[o.key.Kind] }) {
			return true
		}
	}
	return false
}

// gateways makes the store hold the Services and slices of Gateways, and reports the statuses.
// Preconditions: both mutexes of the source are held.
func (r *round) gateways() {
	s := r.s
	if !s.keeping {
		return
	}
	in, found := s.gatewayObjects()
	legacy := map[Key]bool{}
	slicesOf := in.Slices
	in.Slices = func(namespace, name string) []*discoveryv1.EndpointSlice {
		list := slicesOf(namespace, name)
		if key := (Key{"Endpoints", namespace, name}); len(list) == 0 && r.claims[key].file != nil {
			legacy[key] = true
		}
		return list
	}
	out := gateway.Translate(in)
	for key := range legacy {
		r.addStatus(key, "", "not used by routes: a backend of a route needs EndpointSlices")
	}
	next := map[Key]any{}
	for _, svc := range out.Services {
		key := Key{"Service", svc.Namespace, svc.Name}
		if next[key] = svc; s.generated[key] == any(svc) {
			continue // that of a Gateway that is refused
		}
		is := in.Service(svc.Namespace, svc.Name)
		svc.CreationTimestamp, svc.Status = is.CreationTimestamp, is.Status
	}
	for _, slice := range out.Slices {
		next[Key{"EndpointSlice", slice.Namespace, slice.Name}] = slice
	}
	for key := range next {
		if _, taken := s.served[key]; taken {
			delete(next, key) // a slice: that of the manifests counts
		}
	}
	for key := range s.generated {
		if _, still := next[key]; !still {
			if _, taken := s.served[key]; !taken {
				s.withdraw(key)
			}
		}
	}
	for key, value := range next {
		if equality.Semantic.DeepEqual(s.generated[key], value) {
			continue
		}
		switch v := value.(type) {
		case *corev1.Service:
			s.store.SetService(v)
		case *discoveryv1.EndpointSlice:
			s.store.SetSlice(v)
		}
	}
	s.generated = next
	r.addStatuses(in, out)
	if !found {
		s.keeping = false
		for key, v := range s.served {
			v.value = nil
			s.served[key] = v
		}
	}
}

// gatewayObjects are the objects as served. found is true if any is of the Gateway API.
func (s *Source) gatewayObjects() (in *gateway.Objects, found bool) {
	slicesOf := map[Key][]*discoveryv1.EndpointSlice{}
	in = &gateway.Objects{
		LoadBalancerClass: s.cfg.Store.LoadBalancerClass,
		// The label that the API server gives each namespace. Others are not known, and select none.
		NamespaceLabels: func(name string) map[string]string { return map[string]string{corev1.LabelMetadataName: name} },
		Slices: func(namespace, name string) []*discoveryv1.EndpointSlice {
			return slicesOf[Key{"EndpointSlice", namespace, name}]
		},
	}
	for key, held := range s.served {
		found = found || gatewayKinds[key.Kind]
		switch v := held.value.(type) {
		case *discoveryv1.EndpointSlice:
			of := Key{"EndpointSlice", v.Namespace, v.Labels[discoveryv1.LabelServiceName]}
			slicesOf[of] = append(slicesOf[of], v)
		case *gatewayv1.GatewayClass:
			in.Classes = append(in.Classes, v)
		case *gatewayv1.Gateway:
			in.Gateways = append(in.Gateways, v)
		case *gatewayv1.TCPRoute:
			in.TCPRoutes = append(in.TCPRoutes, v)
		case *gatewayv1.UDPRoute:
			in.UDPRoutes = append(in.UDPRoutes, v)
		case *gatewayv1.ReferenceGrant:
			in.Grants = append(in.Grants, v)
		}
	}
	for _, o := range s.generated {
		if svc, ok := o.(*corev1.Service); ok {
			in.Generated = append(in.Generated, svc)
		}
	}
	slices.SortFunc(in.Gateways, func(a, b *gatewayv1.Gateway) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	own := assigned(in)
	in.Service = func(namespace, name string) *corev1.Service {
		key := Key{"Service", namespace, name}
		svc, ok := s.served[key].value.(*corev1.Service)
		if !ok {
			return own[key]
		}
		described := *svc
		described.OwnerReferences = nil // it is no Gateway's: the manifests have it
		return &described
	}
	return in, found
}

// assigned are the Services of Gateways, by name, as they would be with the addresses that these ask for. Of
// Gateways whose Services have the same name the oldest has it.
func assigned(in *gateway.Objects) map[Key]*corev1.Service {
	ours := map[gatewayv1.ObjectName]bool{}
	for _, c := range in.Classes {
		ours[gatewayv1.ObjectName(c.Name)] = c.Spec.ControllerName == gateway.ControllerName
	}
	out, name := map[Key]*corev1.Service{}, gateway.ServiceNames(in.Generated)
	for _, g := range in.Gateways {
		key := Key{"Service", g.Namespace, name(g)}
		if out[key] != nil || !ours[g.Spec.GatewayClassName] {
			continue
		}
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: g.Namespace, Name: key.Name, CreationTimestamp: g.CreationTimestamp,
			Labels:          map[string]string{gateway.LabelManagedBy: gateway.ManagedBy},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(g, gatewayv1.SchemeGroupVersion.WithKind("Gateway"))},
		}}
		for _, a := range g.Spec.Addresses {
			if a.Value != "" {
				svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.Value})
			}
		}
		if len(svc.Status.LoadBalancer.Ingress) == 0 {
			svc.Status.Conditions = []metav1.Condition{{
				Type: gateway.ConditionAllocated, Status: metav1.ConditionFalse,
				Message: "spec.addresses has no address, and there are no pools without a cluster",
			}}
		}
		out[key] = svc
	}
	return out
}

// addStatuses warns of conditions that an API server would show, and of names that lead nowhere.
func (r *round) addStatuses(in *gateway.Objects, out *gateway.Result) {
	for _, g := range in.Gateways {
		if class := (Key{Kind: "GatewayClass", Name: string(g.Spec.GatewayClassName)}); r.claims[class].file == nil {
			r.addStatus(Key{"Gateway", g.Namespace, g.Name}, "spec.gatewayClassName", r.missing(class))
		}
	}
	for _, c := range in.Classes {
		if c.Spec.ControllerName != gateway.ControllerName {
			r.addForeignClass(c)
		}
	}
	for _, c := range out.Classes {
		r.addConditions(Key{Kind: "GatewayClass", Name: c.Name}, "", c.Status.Conditions)
	}
	for _, g := range out.Gateways {
		key := Key{"Gateway", g.Namespace, g.Name}
		r.addConditions(key, "", g.Status.Conditions)
		for _, l := range g.Status.Listeners {
			r.addConditions(key, fmt.Sprintf("listener %s: ", l.Name), l.Conditions)
		}
	}
	for _, o := range out.TCPRoutes {
		r.addRoute(Key{"TCPRoute", o.Namespace, o.Name}, o.Spec.ParentRefs, o.Status.Parents)
	}
	for _, o := range out.UDPRoutes {
		r.addRoute(Key{"UDPRoute", o.Namespace, o.Name}, o.Spec.ParentRefs, o.Status.Parents)
	}
}

func (r *round) addRoute(key Key, parents []gatewayv1.ParentReference, statuses []gatewayv1.RouteParentStatus) {
	for _, p := range statuses {
		r.addConditions(key, fmt.Sprintf("Gateway %s: ", p.ParentRef.Name), p.Conditions)
	}
	for i, ref := range parents {
		of := Key{"Gateway", key.Namespace, string(ref.Name)}
		if ref.Namespace != nil && *ref.Namespace != "" {
			of.Namespace = string(*ref.Namespace)
		}
		if (ref.Kind == nil || *ref.Kind == "Gateway") && r.claims[of].file == nil {
			r.addStatus(key, fmt.Sprintf("spec.parentRefs[%d]", i), r.missing(of))
		}
	}
}

// missing says of an object that is not served why: its document may be refused.
func (r *round) missing(key Key) string {
	if slices.ContainsFunc(r.report.Errors, func(e Error) bool { return e.Object == key }) {
		return fmt.Sprintf("%s is refused", key)
	}
	return fmt.Sprintf("%s does not exist", key)
}

// addConditions warns of conditions that are false: of a listener that is Pending, the Gateway says why.
func (r *round) addConditions(key Key, of string, conditions []metav1.Condition) {
	refused := apimeta.IsStatusConditionFalse(conditions, string(gatewayv1.GatewayConditionAccepted))
	for _, c := range conditions {
		programmed := c.Type == string(gatewayv1.GatewayConditionProgrammed)
		if c.Status != metav1.ConditionFalse || c.Type == string(gatewayv1.ListenerConditionConflicted) ||
			programmed && (refused || c.Reason == string(gatewayv1.ListenerReasonPending) || c.Reason == string(gatewayv1.ListenerReasonInvalid) && of != "") {
			continue
		}
		r.addStatus(key, "", fmt.Sprintf("%snot %s (%s): %s", of, c.Type, c.Reason, c.Message))
	}
}

// addForeignClass notes a class of another controller, and warns of one that is probably meant for Weir.
func (r *round) addForeignClass(class *gatewayv1.GatewayClass) {
	key := Key{Kind: "GatewayClass", Name: class.Name}
	controller := string(class.Spec.ControllerName)
	text := fmt.Sprintf("%q is another controller, Weir is %s", discovery.Shortened(controller, maxKind), gateway.ControllerName)
	domain, _, _ := strings.Cut(gateway.ControllerName, "/")
	if strings.HasPrefix(controller, domain+"/") || similar.Name(controller, []string{gateway.ControllerName}) != "" {
		r.addStatus(key, "spec.controllerName", text)
		return
	}
	c := r.claims[key]
	if c.file == nil || c.file.unfinished != nil {
		return
	}
	if r.remarks[c.file.path]++; r.remarks[c.file.path] > maxFileNotes {
		return
	}
	r.report.Notes = append(r.report.Notes, Note{File: c.file.path, Document: c.document, Text: fmt.Sprintf("%s: spec.controllerName: %s", key, text)})
}

// addStatus warns of an object that counts, and is not served as it asks.
func (r *round) addStatus(key Key, field, reason string) {
	c := r.claims[key]
	if c.file == nil || c.file.unfinished != nil { // the last report's are there
		return
	}
	if r.remarks[c.file.path]++; r.remarks[c.file.path] > maxFileNotes {
		return
	}
	r.report.Warnings = append(r.report.Warnings, Error{
		File: c.file.path, Document: c.document, Line: c.file.lineOf(c.document), Object: key, Field: field, Reason: reason, Unserved: true,
	})
}
