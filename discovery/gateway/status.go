package gateway

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// ConditionAllocated is the type of the condition of a Service that says whether it has an address.
const ConditionAllocated = "weir.dev/AddressAllocated"

// set sets a condition: true with the reason good, or false with the fault.
func set(to *[]metav1.Condition, generation int64, kind, good string, fault *reason) {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: good, ObservedGeneration: generation}
	if fault != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, fault.reason, fault.text
	}
	meta.SetStatusCondition(to, c)
}

// status writes the conditions of a Gateway and of the listeners. fault is why the Gateway has no Service
// or no address, nil if it has.
func (t *translation) status(g *gateway, fault *reason) {
	status, generation, accepted, good := &g.obj.Status, g.obj.Generation, g.refusal, string(gatewayv1.GatewayReasonAccepted)
	switch valid := g.valid(); {
	case accepted != nil:
	case valid == 0:
		accepted = &reason{string(gatewayv1.GatewayReasonListenersNotValid), "no listener can be served"}
	case valid < len(g.listeners):
		good = string(gatewayv1.GatewayReasonListenersNotValid)
	}
	set(&status.Conditions, generation, string(gatewayv1.GatewayConditionAccepted), good, accepted)
	if accepted != nil {
		fault = &reason{string(gatewayv1.GatewayReasonInvalid), accepted.text}
		switch {
		case g.last == nil:
		case g.placed && slices.ContainsFunc(g.listeners, (*listener).served):
			fault.text += asBefore
		default:
			fault.text += "; the Service stays, without endpoints"
		}
	}
	set(&status.Conditions, generation, string(gatewayv1.GatewayConditionProgrammed), string(gatewayv1.GatewayReasonProgrammed), fault)
	old := status.Listeners
	status.Listeners = []gatewayv1.ListenerStatus{}
	for _, l := range g.listeners {
		s := gatewayv1.ListenerStatus{Name: l.spec.Name, SupportedKinds: l.kinds, AttachedRoutes: int32(len(l.attached))}
		if i := slices.IndexFunc(old, func(o gatewayv1.ListenerStatus) bool { return o.Name == l.spec.Name }); i >= 0 {
			s.Conditions = slices.Clone(old[i].Conditions)
		}
		l.status(&s.Conditions, generation, g.refusal != nil, fault)
		status.Listeners = append(status.Listeners, s)
	}
}

// valid is the number of listeners that are accepted.
func (g *gateway) valid() (n int) {
	for _, l := range g.listeners {
		if l.refusal == nil && l.conflict == nil {
			n++
		}
	}
	return n
}

// status writes the conditions of a listener. fault is that of the Gateway, which may be refused.
func (l *listener) status(to *[]metav1.Condition, generation int64, refused bool, fault *reason) {
	accepted := l.refusal
	if accepted == nil && l.conflict != nil {
		accepted = l.conflict
	}
	set(to, generation, string(gatewayv1.ListenerConditionAccepted), string(gatewayv1.ListenerReasonAccepted), accepted)
	set(to, generation, string(gatewayv1.ListenerConditionResolvedRefs), string(gatewayv1.ListenerReasonResolvedRefs), l.wrongKind)
	conflicted := metav1.Condition{
		Type: string(gatewayv1.ListenerConditionConflicted), Status: metav1.ConditionFalse,
		Reason: string(gatewayv1.ListenerReasonNoConflicts), ObservedGeneration: generation,
	}
	if l.conflict != nil {
		conflicted.Status, conflicted.Reason, conflicted.Message = metav1.ConditionTrue, l.conflict.reason, l.conflict.text
	}
	meta.SetStatusCondition(to, conflicted)
	programmed := l.lacking
	switch {
	case accepted != nil:
		programmed = &reason{string(gatewayv1.ListenerReasonInvalid), accepted.text}
	case refused:
		programmed = &reason{string(gatewayv1.ListenerReasonInvalid), fault.text}
	case fault != nil:
		programmed = &reason{string(gatewayv1.ListenerReasonPending), fault.text}
	}
	set(to, generation, string(gatewayv1.ListenerConditionProgrammed), string(gatewayv1.ListenerReasonProgrammed), programmed)
}

// SetNotProgrammed says of a Gateway with a result why that is not written.
func SetNotProgrammed(g *gatewayv1.Gateway, text string) {
	fault := &reason{string(gatewayv1.GatewayReasonInvalid), text}
	g.Status.Addresses = nil
	set(&g.Status.Conditions, g.Generation, string(gatewayv1.GatewayConditionProgrammed), "", fault)
	for i := range g.Status.Listeners {
		if meta.IsStatusConditionFalse(g.Status.Listeners[i].Conditions, string(gatewayv1.ListenerConditionAccepted)) {
			continue
		}
		set(&g.Status.Listeners[i].Conditions, g.Generation, string(gatewayv1.ListenerConditionProgrammed), "",
			&reason{string(gatewayv1.ListenerReasonPending), text})
	}
}
