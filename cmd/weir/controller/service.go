package controller

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/addresspool"
)

// prefixes are those of annotations, the first that is there counts. MetalLB used the last
// before version 0.15.
var prefixes = []string{"weir.dev/", "metallb.io/", "metallb.universe.tf/"}

func annotation(svc *corev1.Service, name string) string {
	for _, prefix := range prefixes {
		if v, ok := svc.Annotations[prefix+name]; ok {
			return v
		}
	}
	return ""
}

// policyOf is the externalTrafficPolicy of a Service.
func policyOf(svc *corev1.Service) string {
	return cmp.Or(string(svc.Spec.ExternalTrafficPolicy), string(corev1.ServiceExternalTrafficPolicyCluster))
}

// key is the Service's name as in the queue.
func key(svc *corev1.Service) string { return svc.Namespace + "/" + svc.Name }

// ours reports whether the Service gets addresses of this controller.
func (c *controller) ours(svc *corev1.Service) bool {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	if svc.Spec.LoadBalancerClass == nil {
		return c.o.DefaultClass
	}
	return *svc.Spec.LoadBalancerClass == c.o.Class
}

// ingress is the addresses in the Service's status. other is true if there is a host name, which this
// controller never writes.
func ingress(svc *corev1.Service) (addrs []netip.Addr, other bool) {
	for _, i := range svc.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(i.IP)
		if err != nil {
			other = true
			continue
		}
		addrs = append(addrs, a.Unmap())
	}
	return addrs, other
}

// describe is the Service as the allocator needs it. The error is about the request.
func (c *controller) describe(svc *corev1.Service) (*addresspool.Service, error) {
	s := &addresspool.Service{
		Name: key(svc), Namespace: svc.Namespace, Created: svc.CreationTimestamp.Unix(), Labels: svc.Labels,
		SharingKey: annotation(svc, "allow-shared-ip"), PoolName: annotation(svc, "address-pool"),
	}
	if ns := named[corev1.Namespace](c.namespaces, svc.Namespace); ns != nil {
		s.NamespaceLabels = ns.Labels
	}
	s.Status, s.Foreign = ingress(svc)
	if c := meta.FindStatusCondition(svc.Status.Conditions, termsCondition); c != nil {
		s.Recorded = c.Message
	}
	s.Foreign = s.Foreign || !c.ours(svc)
	for _, f := range svc.Spec.IPFamilies {
		s.IPv4 = s.IPv4 || f == corev1.IPv4Protocol
		s.IPv6 = s.IPv6 || f == corev1.IPv6Protocol
	}
	if p := svc.Spec.IPFamilyPolicy; p != nil && *p == corev1.IPFamilyPolicyPreferDualStack && s.IPv4 && s.IPv6 {
		s.Prefers, s.First4 = true, svc.Spec.IPFamilies[0] == corev1.IPv4Protocol
	}
	for _, p := range svc.Spec.Ports {
		s.Ports = append(s.Ports, addresspool.Port{Protocol: string(cmp.Or(p.Protocol, corev1.ProtocolTCP)), Port: uint16(p.Port)})
	}
	if r := discovery.PortRangeOf(svc); r.Last != 0 { // of a Service with a single port
		s.Ports[0].Port, s.Ports[0].Last = r.First, r.Last
	}
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		// A selector selects in its namespace alone. Without one the Service shares with nobody.
		s.Endpoints = s.Name
		if len(svc.Spec.Selector) > 0 {
			s.Endpoints = s.Namespace + ":"
		}
		for _, k := range slices.Sorted(maps.Keys(svc.Spec.Selector)) {
			s.Endpoints += k + "=" + svc.Spec.Selector[k] + ","
		}
	}
	text, field := annotation(svc, "loadBalancerIPs"), "annotation loadBalancerIPs"
	if text == "" {
		text, field = svc.Spec.LoadBalancerIP, "spec.loadBalancerIP"
	}
	if strings.TrimSpace(text) == "" {
		return s, nil
	}
	var err error
	if s.Addresses, err = addresspool.ParseAddresses(text); err != nil {
		return s, fmt.Errorf("%s: %w", field, err)
	}
	return s, nil
}
