package gateway

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/discovery"
)

// widen gives the Service of a Gateway the range of ports that the annotation of the Gateway asks for. The range leads
// to ports of the backends that no route names, and no ReferenceGrant allows: backends of other namespaces have
// the port of the listener alone.
func (g *gateway) widen(svc *corev1.Service) {
	text := g.obj.Annotations[discovery.AnnotationPortRange]
	r, complaint := discovery.ReadPortRange(text, svc.Spec.Ports)
	for _, l := range g.listeners {
		if complaint != "" || r == (discovery.PortRange{}) || !l.served() || len(l.attached) == 0 {
			continue
		}
		for _, b := range l.attached[0].targets {
			if b.weight > 0 && b.service.Namespace != svc.Namespace {
				complaint = fmt.Sprintf("backend %s is of another namespace than the Gateway", b.service)
			}
		}
	}
	switch {
	case complaint != "":
		fault := &reason{"InvalidPortRange", fmt.Sprintf("annotation %s: %s; the port of the listener is served alone", discovery.AnnotationPortRange, complaint)}
		for _, l := range g.listeners {
			l.lacking = fault
		}
	case r != (discovery.PortRange{}):
		svc.Annotations[discovery.AnnotationPortRange] = text
	}
}
