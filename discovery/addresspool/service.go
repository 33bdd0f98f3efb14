package addresspool

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Port is a port that a Service uses of an address.
type Port struct {
	Protocol string
	Port     uint16
	Last     uint16 // the last of a range that begins with Port, 0 for a single port
}

func (p Port) last() uint16 { return max(p.Port, p.Last) }

// String is the protocol with the port or the range.
func (p Port) String() string {
	if p.last() == p.Port {
		return fmt.Sprintf("%s %d", p.Protocol, p.Port)
	}
	return fmt.Sprintf("%s %d-%d", p.Protocol, p.Port, p.Last)
}

// common is the ports that both have. ok is false if there are none.
func (p Port) common(o Port) (both Port, ok bool) {
	both = Port{p.Protocol, max(p.Port, o.Port), min(p.last(), o.last())}
	return both, p.Protocol == o.Protocol && both.Port <= both.Last
}

// Service is a Service as far as addresses are concerned.
type Service struct {
	Name      string // namespace/name, the identity
	Namespace string
	Created   int64 // Unix seconds
	Labels    map[string]string
	// NamespaceLabels are those of the Service's namespace.
	NamespaceLabels map[string]string
	// IPv4 and IPv6 are the families that it needs an address of; with both it gets both or none.
	IPv4, IPv6 bool
	// Prefers is true if one of both families will do (PreferDualStack), First4 if IPv4 is the first.
	Prefers, First4 bool
	Ports           []Port
	// SharingKey lets Services with the same key share an address, if their ports differ.
	SharingKey string
	// Endpoints is equal for Services that may share an address in spite of
	// externalTrafficPolicy Local: that are served by the same pods. It is empty for Cluster.
	Endpoints string
	// Addresses are those that the Service asks for, none for any; PoolName is a pool that it asks for.
	Addresses []netip.Addr
	PoolName  string
	// Status is the addresses that the Service has.
	Status []netip.Addr
	// Recorded are the Terms of the last Outcome that was written, "" for unknown.
	Recorded string
	// Foreign is a Service that another controller gives addresses: these are not given again, and
	// the Service is left alone.
	Foreign bool

	kept bool // unchanged when it was adopted
}

// maxTerms is the length of Terms beyond which a hash stands for what makes them long: they are in
// the status, which all nodes get, and a sharing key may have 256 KiB.
const maxTerms = 512

// Terms are addresses, and all by which others may share them with the Service. They are a record:
// a Service whose terms have changed since is the one that broke an agreement.
func (s *Service) Terms(addresses []netip.Addr) string {
	if s.SharingKey == "" || len(addresses) == 0 {
		return list(addresses)
	}
	var ports []string
	for _, p := range s.Ports {
		ports = append(ports, p.String())
	}
	slices.Sort(ports)
	terms := fmt.Sprintf("key %q; ports %s; endpoints %q", s.SharingKey, strings.Join(ports, ", "), s.Endpoints)
	if len(terms) > maxTerms {
		terms = fmt.Sprintf("SHA-256 %x", sha256.Sum256([]byte(terms)))
	}
	return list(addresses) + "; " + terms
}

// unchanged reports whether the Service has what was written for it last.
func (s *Service) unchanged() bool { return s.Recorded != "" && s.Recorded == s.Terms(s.Status) }

// precedes reports whether s, whose status is that of the API server, has the better claim to an
// address that both have: a Service with other terms than those written yields, then the younger.
func (s *Service) precedes(o *Service) bool {
	return cmp.Or(count(o.kept)-count(s.kept), cmp.Compare(s.Created, o.Created), strings.Compare(s.Name, o.Name)) < 0
}

// shares reports whether both may have the same address.
func (s *Service) shares(o *Service) bool {
	if s.SharingKey == "" || s.SharingKey != o.SharingKey || s.Endpoints != o.Endpoints || s.Foreign || o.Foreign {
		return false
	}
	return s.samePorts(o) == ""
}

// samePorts says which ports both have, and by which field, "" for none.
func (s *Service) samePorts(o *Service) string {
	for _, p := range s.Ports {
		for _, q := range o.Ports {
			both, ok := p.common(q)
			switch {
			case ok && p.Last == 0 && q.Last == 0:
				return "spec.ports: both have " + both.String()
			case ok:
				return "spec.ports or annotation port-range: both have " + both.String()
			}
		}
	}
	return ""
}

// wants reports whether a set of addresses will do for the Service.
func (s *Service) wants(addrs []netip.Addr) bool {
	if s.Prefers && len(addrs) == 1 {
		return true
	}
	return s.complete(addrs)
}

// complete reports whether a set of addresses has an address of each family of the Service, and no other.
func (s *Service) complete(addrs []netip.Addr) bool {
	var n4, n6 int
	for _, a := range addrs {
		if a.Is4() {
			n4++
		} else {
			n6++
		}
	}
	return n4 == count(s.IPv4) && n6 == count(s.IPv6)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
