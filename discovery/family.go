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

// familyOf is the family of one address.
func familyOf(a netip.Addr) Families {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// serves reports whether addresses of a's family are the Service's. A Service
// that does not say its families has every one.
func (s *Service) serves(a netip.Addr) bool {
	return s.Families == 0 || s.Families&familyOf(a) != 0
}

// families reads what families the Service is of: what it says, else those of
// its cluster IPs. As in kube-proxy, which has one proxier per family, what is
// of another family is not the Service's.
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

// otherFamilyWarning words a warning about what is left out.
func (s *Service) otherFamilyWarning(kind string) string {
	only := "IPv4"
	if s.Families == IPv6 {
		only = "IPv6"
	}
	return kind + ": passed over, the Service is of " + only + " only"
}
