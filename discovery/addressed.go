package discovery

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// addressed reports whether a Service of type LoadBalancer has an address outside. Entries of the
// status that are not served, and an address that nobody gives to a manifest, are noted.
func (p *parser) addressed() bool {
	s := &p.obj.Spec
	if len(p.out.LoadBalancerIPs)+len(p.out.ExternalIPs) > 0 {
		return true
	}
	var reason string
	field := "status.loadBalancer.ingress"
	switch asked := p.askedAddress(); {
	case len(p.out.Unserved) > 0:
		reason = fmt.Sprintf("%s: %s, and there is no other address", p.out.Unserved[0].Address, p.out.Unserved[0].Reason)
	case !p.complete:
		return false // an address may follow
	case asked != "":
		field, reason = asked, "nobody gives this address to a manifest: write status.loadBalancer.ingress"
	case s.AllocateLoadBalancerNodePorts != nil && !*s.AllocateLoadBalancerNodePorts:
		reason = "there are no addresses, and nobody gives one to a manifest"
	default:
		return false
	}
	if slices.ContainsFunc(s.Ports, func(q corev1.ServicePort) bool { return q.NodePort == 0 }) {
		p.out.Faults = append(p.out.Faults, Fault{FaultNoNodePort, field, reason + "; nor has each port a node port"})
		return true
	}
	if len(p.out.Unserved) == 0 {
		p.out.Warnings = append(p.out.Warnings, field+": "+reason)
	}
	return true
}

// askedAddress is the field that asks for a load balancer address, "" if none does.
func (p *parser) askedAddress() string {
	if p.obj.Spec.LoadBalancerIP != "" {
		return "spec.loadBalancerIP"
	}
	for _, name := range []string{prefix + "loadBalancerIPs", "metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"} {
		if p.obj.Annotations[name] != "" {
			return annotationPath(name)
		}
	}
	return ""
}
