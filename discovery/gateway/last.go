package gateway

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// asBefore ends the messages of conditions of objects that are refused and served all the same.
const asBefore = "; served as before"

// owned are generated Services as they are, by the Gateway.
type owned map[types.NamespacedName][]*corev1.Service

func readOwned(generated []*corev1.Service) owned {
	out, order := owned{}, slices.Clone(generated)
	slices.SortFunc(order, func(a, b *corev1.Service) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for _, svc := range order {
		if owner := metav1.GetControllerOf(svc); owner != nil && svc.DeletionTimestamp == nil {
			name := types.NamespacedName{Namespace: svc.Namespace, Name: owner.Name}
			out[name] = append(out[name], svc)
		}
	}
	return out
}

// last is the Service of a Gateway as it is, nil for none. Of several, the one of the name that a new one would
// have counts.
func (o owned) last(g *gatewayv1.Gateway) (last *corev1.Service) {
	for _, svc := range o[types.NamespacedName{Namespace: g.Namespace, Name: g.Name}] {
		if metav1.IsControlledBy(svc, g) && (last == nil || svc.Name == newName(g)) {
			last = svc
		}
	}
	return last
}

// ServiceNames returns the names of the Services of Gateways, of which some are generated. A Service keeps the
// name, and so the address, when the class of the Gateway changes.
func ServiceNames(generated []*corev1.Service) func(*gatewayv1.Gateway) string {
	of := readOwned(generated)
	return func(g *gatewayv1.Gateway) string { return serviceName(g, of.last(g)) }
}

func serviceName(g *gatewayv1.Gateway, last *corev1.Service) string {
	if last != nil {
		return last.Name
	}
	return newName(g)
}

// keepListeners has listeners that are refused served if they have been, except for those that ask for
// another protocol.
func (g *gateway) keepListeners() {
	if g.last == nil {
		return
	}
	taken := map[string]bool{}
	for _, l := range g.listeners {
		if l.served() {
			taken[l.portName()] = true
		}
	}
	for _, l := range g.listeners {
		if l.refusal != nil && l.refusal.reason == string(gatewayv1.ListenerReasonUnsupportedValue) && !taken[l.portName()] && hasPort(g.last, l) {
			l.kept, taken[l.portName()] = true, true
			l.refusal.text += asBefore
		}
	}
}

func hasPort(svc *corev1.Service, l *listener) bool {
	return slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == l.portName() })
}

// place reports whether a Gateway is among those that a namespace may have, and counts it.
func (t *translation) place(g *gateway) bool {
	if !g.placed && t.services[g.obj.Namespace] < maxNamespaceGateways {
		t.services[g.obj.Namespace]++
		g.placed = true
	}
	return g.placed
}

// maxPorts bounds the ports of a Service that have slices: a Gateway has as many listeners. Whoever writes Services
// could give that of a Gateway that is refused many more, or ports of any name.
const maxPorts = 64

// isOwn reports whether a port could be that of a listener.
func isOwn(p *corev1.ServicePort) bool {
	spec := gatewayv1.Listener{Protocol: gatewayv1.ProtocolType(p.Protocol), Port: p.Port}
	return routeKinds[spec.Protocol] != "" && p.Name == (&listener{spec: &spec}).portName()
}

// ports makes the slices of all ports of a Service. Endpoints follow the routes also while the Gateway is
// refused: those of before may be other Pods' by now. So a port without a listener has none.
func (t *translation) ports(g *gateway, svc *corev1.Service) {
	n := 0
	for _, p := range svc.Spec.Ports {
		if !isOwn(&p) {
			continue
		}
		if n++; n > maxPorts {
			break
		}
		i := slices.IndexFunc(g.listeners, func(l *listener) bool { return l.served() && l.portName() == p.Name })
		before := len(t.out.Slices)
		if i >= 0 && len(g.listeners[i].attached) > 0 {
			t.slices(g, g.listeners[i], svc)
		}
		if len(t.out.Slices) == before { // the port has no endpoints by intention
			t.out.Slices = append(t.out.Slices, newSlice(p.Name, p.Protocol, svc, discoveryv1.AddressTypeIPv4, "none", p.Port))
		}
	}
}

// finalize gives a class the finalizer while Gateways have the class, so that it is not deleted before.
func finalize(c *gatewayv1.GatewayClass, used bool) {
	const name = gatewayv1.GatewayClassFinalizerGatewaysExist
	switch {
	case !used:
		c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == name })
	case c.DeletionTimestamp == nil && !slices.Contains(c.Finalizers, name): // later the API allows none
		c.Finalizers = append(c.Finalizers, name)
	}
}
