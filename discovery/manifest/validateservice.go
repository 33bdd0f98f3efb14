package manifest

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"github.com/weirlb/weir/discovery"
)

const onlyLoadBalancer = "may only be used when `type` is 'LoadBalancer'"

// checkService checks a Service as written: an API server has set the defaults before.
func checkService(svc *corev1.Service) (v verdict) {
	v.meta(&svc.ObjectMeta)
	v.label(field.NewPath("metadata", "name"), svc.Name)
	spec := field.NewPath("spec")
	if v.oneOf(spec.Child("type"), string(svc.Spec.Type), "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"); len(v.errors) > 0 {
		return v // which fields it may have cannot be told
	}
	v.servicePorts(svc, spec.Child("ports"))
	v.clusterIPs(&svc.Spec, spec)
	v.families(&svc.Spec, spec)
	for i, ip := range svc.Spec.ExternalIPs {
		v.ordinaryAddress(spec.Child("externalIPs").Index(i), ip)
	}
	v.sourceRanges(svc, spec)
	v.policies(&svc.Spec, spec)
	v.affinity(&svc.Spec, spec)
	v.ofType(&svc.Spec, spec)
	v.ingress(svc)
	return v
}

// typeOf is the type of a Service, the default included.
func typeOf(s *corev1.ServiceSpec) corev1.ServiceType {
	if s.Type == "" {
		return corev1.ServiceTypeClusterIP
	}
	return s.Type
}

func headless(s *corev1.ServiceSpec) bool {
	return s.ClusterIP == corev1.ClusterIPNone || slices.Contains(s.ClusterIPs, corev1.ClusterIPNone)
}

// oneOf refuses a value that is neither empty nor allowed.
func (v *verdict) oneOf(path *field.Path, value string, allowed ...string) {
	if value != "" && !slices.Contains(allowed, value) {
		v.fail(field.NotSupported(path, value, allowed))
	}
}

func (v *verdict) servicePorts(svc *corev1.Service, path *field.Path) {
	ports := svc.Spec.Ports
	if len(ports) == 0 && !headless(&svc.Spec) && svc.Spec.Type != corev1.ServiceTypeExternalName {
		v.fail(field.Required(path, ""))
	}
	type bound struct {
		protocol corev1.Protocol
		port     int32
	}
	names, seen, nodePorts := map[string]bool{}, map[bound]bool{}, map[bound]bool{}
	for i := range ports {
		p, at := &ports[i], path.Index(i)
		v.servicePort(p, at, len(ports) > 1)
		if p.Name != "" && names[p.Name] {
			v.fail(field.Duplicate(at.Child("name"), p.Name))
		}
		names[p.Name] = true
		protocol := p.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		if k := (bound{protocol, p.Port}); seen[k] {
			v.fail(field.Duplicate(at, fmt.Sprintf("%s port %d", protocol, p.Port)))
		} else {
			seen[k] = true
		}
		if p.NodePort == 0 {
			continue
		}
		v.portNumber(at.Child("nodePort"), p.NodePort)
		if typeOf(&svc.Spec) == corev1.ServiceTypeClusterIP {
			v.fail(field.Forbidden(at.Child("nodePort"), "may not be used when `type` is 'ClusterIP'"))
		}
		if k := (bound{protocol, p.NodePort}); nodePorts[k] {
			v.fail(field.Duplicate(at.Child("nodePort"), p.NodePort))
		} else {
			nodePorts[k] = true
		}
	}
}

func (v *verdict) servicePort(p *corev1.ServicePort, at *field.Path, named bool) {
	if p.Name != "" {
		v.label(at.Child("name"), p.Name)
	} else if named {
		v.fail(field.Required(at.Child("name"), ""))
	}
	v.portNumber(at.Child("port"), p.Port)
	v.protocol(at.Child("protocol"), p.Protocol)
	v.appProtocol(at.Child("appProtocol"), p.AppProtocol)
	target := at.Child("targetPort")
	switch t := p.TargetPort; {
	case t.Type == intstr.String && t.StrVal != "":
		v.warn(messages(target, t.StrVal, validation.IsValidPortName(t.StrVal))...)
	case t.Type == intstr.Int && t.IntVal != 0:
		v.warn(messages(target, t.IntVal, validation.IsValidPortNum(t.IntValue()))...)
	}
}

// clusterIPs checks clusterIP and clusterIPs.
func (v *verdict) clusterIPs(s *corev1.ServiceSpec, spec *field.Path) {
	list, path := s.ClusterIPs, spec.Child("clusterIPs")
	if ip := s.ClusterIP; ip != "" && ip != corev1.ClusterIPNone && !v.address(spec.Child("clusterIP"), ip) {
		return
	}
	switch {
	case s.ClusterIP != "" && len(list) > 0 && list[0] != s.ClusterIP:
		v.fail(field.Invalid(path, list, "first value must match `clusterIP`"))
	case s.ClusterIP == "" && len(list) > 0:
		v.warn(field.Invalid(path, list, "must be empty when `clusterIP` is not specified"))
	}
	for i, ip := range list {
		if ip != corev1.ClusterIPNone {
			v.address(path.Index(i), ip)
		} else if len(list) > 1 {
			v.fail(field.Invalid(path, list, "'None' must be the first and only value"))
		}
	}
	if dual, err := utilnet.IsDualStackIPStrings(list); len(list) > 2 {
		v.warn(field.Invalid(path, list, "may only hold up to 2 values"))
	} else if len(list) == 2 && err == nil && !dual {
		v.warn(field.Invalid(path, list, "may specify no more than one IP for each IP family"))
	}
}

// families checks ipFamilies and ipFamilyPolicy.
func (v *verdict) families(s *corev1.ServiceSpec, spec *field.Path) {
	path, seen := spec.Child("ipFamilies"), map[corev1.IPFamily]bool{}
	for i, f := range s.IPFamilies {
		v.oneOf(path.Index(i), string(f), "IPv4", "IPv6")
		if f == "" {
			v.fail(field.NotSupported(path.Index(i), f, []string{"IPv4", "IPv6"}))
		}
		if seen[f] {
			v.warn(field.Duplicate(path.Index(i), f))
		}
		seen[f] = true
		if headless(s) || i >= len(s.ClusterIPs) {
			continue
		}
		if a, ok := discovery.ParseAddr(s.ClusterIPs[i]); ok && a.Is6() != (f == corev1.IPv6Protocol) {
			v.fail(field.Invalid(spec.Child("clusterIPs").Index(i), s.ClusterIPs[i], fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%d]`", f, i)))
		}
	}
	if p := s.IPFamilyPolicy; p != nil && !slices.Contains([]string{"PreferDualStack", "RequireDualStack", "SingleStack"}, string(*p)) {
		v.warn(field.NotSupported(spec.Child("ipFamilyPolicy"), *p, []string{"PreferDualStack", "RequireDualStack", "SingleStack"}))
	}
}

// sourceRanges checks the limits of clients. With another type they would limit nothing.
func (v *verdict) sourceRanges(svc *corev1.Service, spec *field.Path) {
	path, ranges := spec.Child("loadBalancerSourceRanges"), svc.Spec.LoadBalancerSourceRanges
	at := path.Index
	if len(ranges) == 0 {
		text, ok := svc.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
		if !ok {
			return
		}
		path = field.NewPath("metadata", "annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
		at = func(int) *field.Path { return path }
		if strings.TrimSpace(text) != "" {
			ranges = strings.Split(text, ",")
		}
	}
	if typeOf(&svc.Spec) != corev1.ServiceTypeLoadBalancer {
		v.fail(field.Forbidden(path, onlyLoadBalancer))
	}
	for i, text := range ranges {
		v.fail(validation.IsValidCIDRForLegacyField(at(i), strings.TrimSpace(text), true, nil)...)
	}
}

func (v *verdict) policies(s *corev1.ServiceSpec, spec *field.Path) {
	v.oneOf(spec.Child("externalTrafficPolicy"), string(s.ExternalTrafficPolicy), "Cluster", "Local")
	if p := s.InternalTrafficPolicy; p != nil {
		v.oneOf(spec.Child("internalTrafficPolicy"), string(*p), "Cluster", "Local")
		if *p == "" {
			v.warn(field.NotSupported(spec.Child("internalTrafficPolicy"), *p, []string{"Cluster", "Local"}))
		}
	}
	if d := s.TrafficDistribution; d != nil && !slices.Contains([]string{"PreferClose", "PreferSameNode", "PreferSameZone"}, *d) {
		v.warn(field.NotSupported(spec.Child("trafficDistribution"), *d, []string{"PreferClose", "PreferSameNode", "PreferSameZone"}))
	}
	outside := typeOf(s) == corev1.ServiceTypeLoadBalancer || typeOf(s) == corev1.ServiceTypeNodePort ||
		typeOf(s) == corev1.ServiceTypeClusterIP && len(s.ExternalIPs) > 0
	if s.ExternalTrafficPolicy != "" && !outside {
		v.warn(field.Invalid(spec.Child("externalTrafficPolicy"), s.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
	}
	if p := s.HealthCheckNodePort; p != 0 {
		at := spec.Child("healthCheckNodePort")
		if s.Type != corev1.ServiceTypeLoadBalancer || s.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			v.warn(field.Invalid(at, p, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
		}
		v.portNumber(at, p)
		if slices.ContainsFunc(s.Ports, func(q corev1.ServicePort) bool {
			return q.NodePort == p && (q.Protocol == "" || q.Protocol == corev1.ProtocolTCP)
		}) {
			v.fail(field.Duplicate(at, p))
		}
	}
}

func (v *verdict) affinity(s *corev1.ServiceSpec, spec *field.Path) {
	v.oneOf(spec.Child("sessionAffinity"), string(s.SessionAffinity), "ClientIP", "None")
	path, c := spec.Child("sessionAffinityConfig"), s.SessionAffinityConfig
	if s.SessionAffinity == corev1.ServiceAffinityClientIP && c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if t := *c.ClientIP.TimeoutSeconds; t < 1 || t > 86400 {
			v.fail(field.Invalid(path.Child("clientIP", "timeoutSeconds"), t, validation.InclusiveRangeError(1, 86400)))
		}
	}
}

// ofType checks the fields that only some types have.
func (v *verdict) ofType(s *corev1.ServiceSpec, spec *field.Path) {
	v.warn(metav1validation.ValidateLabels(s.Selector, spec.Child("selector"))...)
	if typeOf(s) != corev1.ServiceTypeLoadBalancer {
		if s.LoadBalancerClass != nil {
			v.warn(field.Forbidden(spec.Child("loadBalancerClass"), onlyLoadBalancer))
		}
		if s.AllocateLoadBalancerNodePorts != nil {
			v.warn(field.Forbidden(spec.Child("allocateLoadBalancerNodePorts"), onlyLoadBalancer))
		}
	} else if c := s.LoadBalancerClass; c != nil {
		v.warn(messages(spec.Child("loadBalancerClass"), *c, validation.IsQualifiedName(*c))...)
	}
	switch s.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		if headless(s) {
			v.fail(field.Invalid(spec.Child("clusterIPs").Index(0), corev1.ClusterIPNone, fmt.Sprintf("may not be set to 'None' for %s services", s.Type)))
		}
	case corev1.ServiceTypeExternalName:
		name := strings.TrimSuffix(s.ExternalName, ".")
		if name == "" {
			v.fail(field.Required(spec.Child("externalName"), ""))
		} else {
			v.warn(messages(spec.Child("externalName"), name, validation.IsDNS1123Subdomain(name))...)
		}
		if len(s.ClusterIPs) > 0 || s.ClusterIP != "" {
			v.warn(field.Forbidden(spec.Child("clusterIPs"), "may not be set for ExternalName services"))
		}
		if len(s.IPFamilies) > 0 {
			v.warn(field.Forbidden(spec.Child("ipFamilies"), "may not be set for ExternalName services"))
		}
		if s.IPFamilyPolicy != nil {
			v.warn(field.Forbidden(spec.Child("ipFamilyPolicy"), "may not be set for ExternalName services"))
		}
	}
}

// ingress checks the load balancer addresses. Those of a Service of another type are dropped: an
// API server clears them.
func (v *verdict) ingress(svc *corev1.Service) {
	path, list := field.NewPath("status", "loadBalancer", "ingress"), svc.Status.LoadBalancer.Ingress
	if len(list) > 0 && typeOf(&svc.Spec) != corev1.ServiceTypeLoadBalancer {
		v.ignored = append(v.ignored, fault{path.String(), fmt.Sprintf("ignored, since spec.type is %s: an API server clears it", typeOf(&svc.Spec))})
		svc.Status.LoadBalancer.Ingress = nil
		return
	}
	for i := range list {
		in, at := &list[i], path.Index(i)
		if in.IP != "" {
			v.address(at.Child("ip"), in.IP)
		}
		if m := in.IPMode; m != nil {
			v.oneOf(at.Child("ipMode"), string(*m), "Proxy", "VIP")
			if in.IP == "" {
				v.warn(field.Forbidden(at.Child("ipMode"), "may not be specified when `ip` is not set"))
			}
		}
		if in.Hostname == "" {
			continue
		}
		v.warn(messages(at.Child("hostname"), in.Hostname, validation.IsDNS1123Subdomain(in.Hostname))...)
		if utilnet.ParseIPSloppy(in.Hostname) != nil {
			v.warn(field.Invalid(at.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address"))
		}
	}
}
