package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"github.com/weirlb/weir/discovery"
)

// The checks here are those which an API server makes before it stores an
// object, as far as Weir reads the object: a manifest has not passed these.
// They are worded as the API server words them.

// Limits of the API (discovery.k8s.io/v1 types.go).
const (
	maxSliceEndpoints = 1000
	maxSliceAddresses = 100
)

// maxObjectFaults bounds the errors reported of an object.
const maxObjectFaults = 10

// validate turns the API's error list into faults with prefix before every
// path.
func validate(errs field.ErrorList, prefix string) []fault {
	var faults []fault
	for i, e := range errs {
		if i == maxObjectFaults {
			faults = append(faults, fault{prefix, fmt.Sprintf("and %d more", len(errs)-i)})
			break
		}
		faults = append(faults, fault{joinPath(prefix, e.Field), e.ErrorBody()})
	}
	return faults
}

func validateService(svc *corev1.Service) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateServicePorts(svc.Spec.Ports, spec.Child("ports"))
	errs = append(errs, validateServiceAddresses(svc, spec)...)
	errs = append(errs, validateServicePolicies(svc, spec)...)
	return errs
}

func validateServicePorts(ports []corev1.ServicePort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	type bound struct {
		protocol corev1.Protocol
		port     int32
	}
	names := map[string]bool{}
	seen := map[bound]bool{}
	nodePorts := map[bound]bool{}
	for i := range ports {
		p := &ports[i]
		at := path.Index(i)
		if p.Name == "" && len(ports) > 1 {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else if p.Name != "" && names[p.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		names[p.Name] = true
		errs = append(errs, validatePort(p.Port, at.Child("port"))...)
		errs = append(errs, validateProtocol(p.Protocol, at.Child("protocol"))...)
		protocol := p.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		if k := (bound{protocol, p.Port}); seen[k] {
			errs = append(errs, field.Duplicate(at, fmt.Sprintf("%s port %d", protocol, p.Port)))
		} else {
			seen[k] = true
		}
		if p.NodePort == 0 {
			continue
		}
		errs = append(errs, validatePort(p.NodePort, at.Child("nodePort"))...)
		if k := (bound{protocol, p.NodePort}); nodePorts[k] {
			errs = append(errs, field.Duplicate(at.Child("nodePort"), p.NodePort))
		} else {
			nodePorts[k] = true
		}
	}
	return errs
}

func validateServiceAddresses(svc *corev1.Service, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	address := func(value string, at *field.Path) {
		if _, ok := discovery.ParseAddr(value); !ok {
			errs = append(errs, field.Invalid(at, value, "must be a valid IP address"))
		}
	}
	if ip := svc.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
		address(ip, spec.Child("clusterIP"))
	}
	for i, ip := range svc.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone {
			address(ip, spec.Child("clusterIPs").Index(i))
		}
	}
	for i, f := range svc.Spec.IPFamilies {
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol {
			errs = append(errs, field.NotSupported(spec.Child("ipFamilies").Index(i), f,
				[]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}))
		}
	}
	for i, ip := range svc.Spec.ExternalIPs {
		at := spec.Child("externalIPs").Index(i)
		address(ip, at)
		errs = append(errs, validateNonSpecial(ip, at)...)
	}
	for i, in := range svc.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			address(in.IP, field.NewPath("status", "loadBalancer", "ingress").Index(i).Child("ip"))
		}
	}
	for i, cidr := range svc.Spec.LoadBalancerSourceRanges {
		if _, _, err := utilnet.ParseCIDRSloppy(strings.TrimSpace(cidr)); err != nil {
			errs = append(errs, field.Invalid(spec.Child("loadBalancerSourceRanges").Index(i), cidr,
				"must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"))
		}
	}
	return errs
}

func validateServicePolicies(svc *corev1.Service, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	oneOf := func(name, value string, allowed ...string) {
		if value == "" {
			return
		}
		for _, a := range allowed {
			if a == value {
				return
			}
		}
		errs = append(errs, field.NotSupported(spec.Child(name), value, allowed))
	}
	s := &svc.Spec
	oneOf("type", string(s.Type), "ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
	oneOf("externalTrafficPolicy", string(s.ExternalTrafficPolicy), "Cluster", "Local")
	if s.InternalTrafficPolicy != nil {
		oneOf("internalTrafficPolicy", string(*s.InternalTrafficPolicy), "Cluster", "Local")
	}
	oneOf("sessionAffinity", string(s.SessionAffinity), "ClientIP", "None")
	if c := s.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if t := *c.ClientIP.TimeoutSeconds; t < 1 || t > 86400 {
			errs = append(errs, field.Invalid(spec.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), t,
				validation.InclusiveRangeError(1, 86400)))
		}
	}
	if p := s.HealthCheckNodePort; p != 0 {
		errs = append(errs, validatePort(p, spec.Child("healthCheckNodePort"))...)
	}
	return errs
}

func validateSlice(slice *discoveryv1.EndpointSlice) field.ErrorList {
	var errs field.ErrorList
	switch slice.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	case "":
		return append(errs, field.Required(field.NewPath("addressType"), ""))
	default:
		return append(errs, field.NotSupported(field.NewPath("addressType"), slice.AddressType,
			[]discoveryv1.AddressType{"FQDN", "IPv4", "IPv6"}))
	}
	names := map[string]bool{}
	for i, p := range slice.Ports {
		at := field.NewPath("ports").Index(i)
		name := ""
		if p.Name != nil {
			name = *p.Name
		}
		if names[name] {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		names[name] = true
		if p.Port != nil {
			errs = append(errs, validatePort(*p.Port, at.Child("port"))...)
		}
		if p.Protocol != nil {
			errs = append(errs, validateProtocol(*p.Protocol, at.Child("protocol"))...)
		}
	}
	endpoints := field.NewPath("endpoints")
	if n := len(slice.Endpoints); n > maxSliceEndpoints {
		return append(errs, field.TooMany(endpoints, n, maxSliceEndpoints))
	}
	for i := range slice.Endpoints {
		errs = append(errs, validateAddresses(slice.Endpoints[i].Addresses, slice.AddressType, endpoints.Index(i).Child("addresses"))...)
	}
	return errs
}

func validateAddresses(addrs []string, family discoveryv1.AddressType, path *field.Path) field.ErrorList {
	if len(addrs) == 0 {
		return field.ErrorList{field.Required(path, "must contain at least 1 address")}
	}
	if len(addrs) > maxSliceAddresses {
		return field.ErrorList{field.TooMany(path, len(addrs), maxSliceAddresses)}
	}
	if family == discoveryv1.AddressTypeFQDN {
		return nil
	}
	var errs field.ErrorList
	for i, a := range addrs {
		at := path.Index(i)
		ip, ok := discovery.ParseAddr(a)
		switch {
		case !ok:
			errs = append(errs, field.Invalid(at, a, "must be a valid IP address"))
		case family == discoveryv1.AddressTypeIPv4 && !ip.Is4():
			errs = append(errs, field.Invalid(at, a, "must be an IPv4 address"))
		case family == discoveryv1.AddressTypeIPv6 && !ip.Is6():
			errs = append(errs, field.Invalid(at, a, "must be an IPv6 address"))
		default:
			errs = append(errs, validateNonSpecial(a, at)...)
		}
	}
	return errs
}

func validateEndpoints(ep *corev1.Endpoints) field.ErrorList {
	var errs field.ErrorList
	for i := range ep.Subsets {
		subset := &ep.Subsets[i]
		at := field.NewPath("subsets").Index(i)
		errs = append(errs, validateLegacy(subset.Addresses, at.Child("addresses"))...)
		errs = append(errs, validateLegacy(subset.NotReadyAddresses, at.Child("notReadyAddresses"))...)
		for j, p := range subset.Ports {
			path := at.Child("ports").Index(j)
			if p.Name == "" && len(subset.Ports) > 1 {
				errs = append(errs, field.Required(path.Child("name"), ""))
			}
			errs = append(errs, validatePort(p.Port, path.Child("port"))...)
			errs = append(errs, validateProtocol(p.Protocol, path.Child("protocol"))...)
		}
	}
	return errs
}

func validateLegacy(list []corev1.EndpointAddress, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		at, ip := path.Index(i).Child("ip"), list[i].IP
		if _, ok := discovery.ParseAddr(ip); !ok {
			errs = append(errs, field.Invalid(at, ip, "must be a valid IP address"))
			continue
		}
		errs = append(errs, validateNonSpecial(ip, at)...)
	}
	return errs
}

// validateNonSpecial refuses addresses that cannot be an endpoint's, or a
// frontend's, on another machine.
func validateNonSpecial(value string, path *field.Path) field.ErrorList {
	ip, ok := discovery.ParseAddr(value)
	if !ok {
		return nil // said elsewhere
	}
	reason := ""
	switch {
	case ip.IsUnspecified():
		reason = "may not be unspecified (0.0.0.0 or ::)"
	case ip.IsLoopback():
		reason = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
	case ip.IsLinkLocalUnicast():
		reason = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
	case ip.IsMulticast():
		reason = "may not be in the multicast range (224.0.0.0/4, ff00::/8)"
	case ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		reason = "may not be the broadcast address"
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, reason)}
}

func validatePort(port int32, path *field.Path) field.ErrorList {
	if port < 1 || port > 65535 {
		return field.ErrorList{field.Invalid(path, port, validation.InclusiveRangeError(1, 65535))}
	}
	return nil
}

func validateProtocol(p corev1.Protocol, path *field.Path) field.ErrorList {
	switch p {
	case "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return nil
	}
	return field.ErrorList{field.NotSupported(path, p, []corev1.Protocol{"SCTP", "TCP", "UDP"})}
}
