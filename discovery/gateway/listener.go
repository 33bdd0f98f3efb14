package gateway

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// listener is a listener of a Gateway, with the routes that are attached.
type listener struct {
	spec      *gatewayv1.Listener
	kinds     []gatewayv1.RouteGroupKind // that may attach
	refusal   *reason                    // nil: accepted
	wrongKind *reason                    // a kind of allowedRoutes is not supported
	conflict  *reason
	kept      bool     // refused, and served as before
	lacking   *reason  // why not all of it is served
	attached  []*route // the oldest first: it is served
}

// protocol is that of the port of the Service.
func (l *listener) protocol() corev1.Protocol { return corev1.Protocol(l.spec.Protocol) }

// portName is the name of the port of the Service: that of the listener may be longer than a port's.
func (l *listener) portName() string {
	if l.spec.Protocol == gatewayv1.UDPProtocolType {
		return fmt.Sprintf("udp-%d", l.spec.Port)
	}
	return fmt.Sprintf("tcp-%d", l.spec.Port)
}

// served reports whether the listener is a port of the Service.
func (l *listener) served() bool { return l.kept || l.refusal == nil && l.conflict == nil }

// routeKinds are the kinds of routes of protocols.
var routeKinds = map[gatewayv1.ProtocolType]gatewayv1.Kind{
	gatewayv1.TCPProtocolType: "TCPRoute",
	gatewayv1.UDPProtocolType: "UDPRoute",
}

// readListeners validates the listeners of a Gateway. An API server has checked ports and names.
func (g *gateway) readListeners() {
	type place struct {
		protocol gatewayv1.ProtocolType
		port     gatewayv1.PortNumber
	}
	taken := map[place]*listener{}
	for i := range g.obj.Spec.Listeners {
		l := &listener{spec: &g.obj.Spec.Listeners[i]}
		l.readKinds()
		switch {
		case routeKinds[l.spec.Protocol] == "":
			l.refusal = &reason{string(gatewayv1.ListenerReasonUnsupportedProtocol), fmt.Sprintf("protocol %s: TCP and UDP are supported", l.spec.Protocol)}
		case l.spec.TLS != nil || l.spec.Hostname != nil && *l.spec.Hostname != "":
			l.refusal = &reason{string(gatewayv1.ListenerReasonUnsupportedValue), "a listener of layer 4 has neither tls nor hostname"}
		case l.spec.Port < 1 || l.spec.Port > 65535:
			l.refusal = &reason{string(gatewayv1.ListenerReasonPortUnavailable), fmt.Sprintf("port %d: must be between 1 and 65535", l.spec.Port)}
		default:
			at := place{l.spec.Protocol, l.spec.Port}
			if other := taken[at]; other != nil {
				text := fmt.Sprintf("another listener of the Gateway has protocol %s and port %d", at.protocol, at.port)
				conflict := &reason{string(gatewayv1.ListenerReasonProtocolConflict), text}
				l.conflict, other.conflict = conflict, conflict
			}
			taken[at] = l
		}
		g.listeners = append(g.listeners, l)
	}
}

// readKinds finds the kinds of routes that may attach: those allowed that the protocol has.
func (l *listener) readKinds() {
	own := routeKinds[l.spec.Protocol]
	group := gatewayv1.Group(gatewayv1.GroupName)
	l.kinds = []gatewayv1.RouteGroupKind{}
	if l.spec.AllowedRoutes == nil || len(l.spec.AllowedRoutes.Kinds) == 0 {
		if own != "" {
			l.kinds = append(l.kinds, gatewayv1.RouteGroupKind{Group: &group, Kind: own})
		}
		return
	}
	for _, k := range l.spec.AllowedRoutes.Kinds {
		if k.Kind != own || k.Group != nil && *k.Group != group {
			l.wrongKind = &reason{string(gatewayv1.ListenerReasonInvalidRouteKinds), fmt.Sprintf("allowedRoutes.kinds: %s is not supported by a listener of protocol %s", k.Kind, l.spec.Protocol)}
		} else if len(l.kinds) == 0 {
			l.kinds = append(l.kinds, gatewayv1.RouteGroupKind{Group: &group, Kind: own})
		}
	}
}

// allows reports whether a route of the kind and namespace may attach to the listener of a Gateway in
// the namespace home. Whatever cannot be read allows nothing.
func (t *translation) allows(l *listener, home string, r *route) bool {
	if !slices.ContainsFunc(l.kinds, func(k gatewayv1.RouteGroupKind) bool { return string(k.Kind) == r.kind }) {
		return false
	}
	from, allowed := gatewayv1.NamespacesFromSame, l.spec.AllowedRoutes
	if allowed != nil && allowed.Namespaces != nil && allowed.Namespaces.From != nil {
		from = *allowed.Namespaces.From
	}
	switch from {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return r.meta.Namespace == home
	case gatewayv1.NamespacesFromSelector:
		selector := allowed.Namespaces.Selector
		if selector == nil {
			return false
		}
		of := t.in.NamespaceLabels(r.meta.Namespace)
		s, err := metav1.LabelSelectorAsSelector(selector)
		return err == nil && of != nil && s.Matches(labels.Set(of))
	}
	return false
}
