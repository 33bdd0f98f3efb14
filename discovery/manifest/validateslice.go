package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/weirlb/weir/discovery"
)

// Limits of the API (discovery.k8s.io/v1 types.go).
const (
	maxSliceEndpoints = 1000
	maxSlicePorts     = 20000
	maxSliceAddresses = 100
	maxHints          = 8
)

func checkSlice(slice *discoveryv1.EndpointSlice) (v verdict) {
	v.meta(&slice.ObjectMeta)
	switch slice.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	case "":
		v.fail(field.Required(field.NewPath("addressType"), ""))
		return v
	default:
		v.fail(field.NotSupported(field.NewPath("addressType"), slice.AddressType, []discoveryv1.AddressType{"FQDN", "IPv4", "IPv6"}))
		return v
	}
	v.slicePorts(slice.Ports)
	path := field.NewPath("endpoints")
	if n := len(slice.Endpoints); n > maxSliceEndpoints {
		v.fail(field.TooMany(path, n, maxSliceEndpoints))
		return v
	}
	for i := range slice.Endpoints {
		v.endpoint(&slice.Endpoints[i], slice.AddressType, path.Index(i))
	}
	return v
}

func (v *verdict) slicePorts(ports []discoveryv1.EndpointPort) {
	path, names := field.NewPath("ports"), map[string]bool{}
	if n := len(ports); n > maxSlicePorts {
		v.fail(field.TooMany(path, n, maxSlicePorts))
		return
	}
	for i, p := range ports {
		at, name := path.Index(i), ""
		if p.Name != nil && *p.Name != "" {
			name = *p.Name
			v.label(at.Child("name"), name)
		}
		if names[name] {
			v.fail(field.Duplicate(at.Child("name"), name))
		}
		names[name] = true
		if p.Port != nil {
			v.portNumber(at.Child("port"), *p.Port)
		}
		if p.Protocol != nil {
			v.protocol(at.Child("protocol"), *p.Protocol)
			if *p.Protocol == "" {
				v.warn(field.NotSupported(at.Child("protocol"), "", []string{"SCTP", "TCP", "UDP"}))
			}
		}
		v.appProtocol(at.Child("appProtocol"), p.AppProtocol)
	}
}

func (v *verdict) endpoint(e *discoveryv1.Endpoint, family discoveryv1.AddressType, path *field.Path) {
	v.endpointAddresses(e.Addresses, family, path.Child("addresses"))
	v.nodeName(path.Child("nodeName"), e.NodeName)
	if e.Hostname != nil {
		v.label(path.Child("hostname"), *e.Hostname)
	}
	if e.Hints != nil {
		v.hints(e.Hints, path.Child("hints"))
	}
}

func (v *verdict) endpointAddresses(addrs []string, family discoveryv1.AddressType, path *field.Path) {
	switch n := len(addrs); {
	case n == 0:
		v.fail(field.Required(path, "must contain at least 1 address"))
	case n > maxSliceAddresses:
		v.fail(field.TooMany(path, n, maxSliceAddresses))
		return
	}
	for i, a := range addrs {
		at := path.Index(i)
		if family == discoveryv1.AddressTypeFQDN {
			v.warn(validation.IsFullyQualifiedDomainName(at, a)...)
			continue
		}
		v.ordinaryAddress(at, a)
		switch ip, ok := discovery.ParseAddr(a); {
		case !ok:
		case family == discoveryv1.AddressTypeIPv4 && !ip.Is4():
			v.fail(field.Invalid(at, a, "must be an IPv4 address"))
		case family == discoveryv1.AddressTypeIPv6 && !ip.Is6():
			v.fail(field.Invalid(at, a, "must be an IPv6 address"))
		case family == discoveryv1.AddressTypeIPv6 && ip.String() != a:
			v.warn(validation.IsValidIP(at, a)...)
		}
	}
}

func (v *verdict) hints(h *discoveryv1.EndpointHints, path *field.Path) {
	zones, nodes := path.Child("forZones"), path.Child("forNodes")
	if n := len(h.ForZones); n > maxHints {
		v.warn(field.TooMany(zones, n, maxHints))
		return
	}
	seen := map[string]bool{}
	for i, z := range h.ForZones {
		at := zones.Index(i).Child("name")
		if seen[z.Name] {
			v.warn(field.Duplicate(at, z.Name))
		}
		seen[z.Name] = true
		v.warn(messages(at, z.Name, validation.IsValidLabelValue(z.Name))...)
	}
	if n := len(h.ForNodes); n > maxHints {
		v.warn(field.TooMany(nodes, n, maxHints))
		return
	}
	clear(seen)
	for i, n := range h.ForNodes {
		at := nodes.Index(i).Child("name")
		if seen[n.Name] {
			v.warn(field.Duplicate(at, n.Name))
		}
		seen[n.Name] = true
		v.nodeName(at, &n.Name)
	}
}

func checkEndpoints(ep *corev1.Endpoints) (v verdict) {
	v.meta(&ep.ObjectMeta)
	for i := range ep.Subsets {
		subset, at := &ep.Subsets[i], field.NewPath("subsets").Index(i)
		if len(subset.Addresses)+len(subset.NotReadyAddresses) == 0 {
			v.warn(field.Required(at, "must specify `addresses` or `notReadyAddresses`"))
		}
		v.legacyAddresses(subset.Addresses, at.Child("addresses"))
		v.legacyAddresses(subset.NotReadyAddresses, at.Child("notReadyAddresses"))
		for j, p := range subset.Ports {
			path := at.Child("ports").Index(j)
			if p.Name != "" {
				v.label(path.Child("name"), p.Name)
			} else if len(subset.Ports) > 1 {
				v.fail(field.Required(path.Child("name"), ""))
			}
			v.portNumber(path.Child("port"), p.Port)
			v.protocol(path.Child("protocol"), p.Protocol)
			v.appProtocol(path.Child("appProtocol"), p.AppProtocol)
		}
	}
	return v
}

func (v *verdict) legacyAddresses(list []corev1.EndpointAddress, path *field.Path) {
	for i := range list {
		a, at := &list[i], path.Index(i)
		v.ordinaryAddress(at.Child("ip"), a.IP)
		v.nodeName(at.Child("nodeName"), a.NodeName)
		if a.Hostname != "" {
			v.label(at.Child("hostname"), a.Hostname)
		}
	}
}
