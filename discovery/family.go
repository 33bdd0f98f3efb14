package discovery

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Families is a set of address families.
type Families uint8

// Address families.
const (
	IPv4 Families = 1 << iota
	IPv6
)

// familyOf is the family of an address.
func familyOf(a netip.Addr) Families {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// serves reports whether addresses of a's family are the Service's. A Service without
// families has every family.
func (s *Service) serves(a netip.Addr) bool {
	return s.Families == 0 || s.Families&familyOf(a) != 0
}

// families reads the families of the Service, or else those of the cluster IPs. As in
// kube-proxy, which has a proxier per family, addresses of another family are not the
// Service's.
func (p *parser) families() {
	for i, f := range p.obj.Spec.IPFamilies {
		switch f {
		case corev1.IPv4Protocol:
			p.out.Families |= IPv4
		case corev1.IPv6Protocol:
			p.out.Families |= IPv6
		default:
			p.fail(notSupported(index("spec.ipFamilies", i), string(f), `"IPv4", "IPv6"`))
		}
	}
}

// otherFamilyWarning words a warning about the addresses left out.
func (s *Service) otherFamilyWarning(kind string) string {
	only := "IPv4"
	if s.Families == IPv6 {
		only = "IPv6"
	}
	return kind + ": passed over, the Service is of " + only + " only"
}
