package translate

import (
	"net/netip"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
)

// Claim is an address, protocol and port by which a Service is to be reached
// from outside, and whether this node would serve it there.
type Claim struct {
	AddrPort netip.AddrPort
	LastPort uint16 // of a range of ports; 0: a single port
	Proto    uint8
	Protocol string // TCP, UDP or SCTP
	Kind     table.Kind
	PortName string         // of the Service port
	Mode     conntrack.Mode // of new flows, where Refused is ""
	Refused  string         // why this node does not serve it, "" if it does
}

// maxClaims bounds the claims of a Service: an author can write thousands of ports and of
// addresses.
const maxClaims = 1 << 17

// Claims returns the claims of a Service under the Translator's options, as
// Apply would translate them. That another Service may hold the frontend is the
// table's to know. There are none of a Service with more than maxClaims.
func (t *Translator) Claims(svc *discovery.Service) []Claim {
	var out []Claim
	n := len(svc.LoadBalancerIPs) + len(svc.ExternalIPs) + len(svc.ClusterIPs)
	if svc.Headless || svc.ExternalName || n*len(svc.Ports) > maxClaims {
		return nil
	}
	t.work.reset()
	t.translateTo(svc, &out)
	reason := ""
	switch {
	case svc.Unsupported != "":
		reason = svc.Unsupported + " is not supported: the Service is left to the kernel"
	case svc.Refused != "":
		reason = svc.Refused + ": the Service is left to the kernel"
	}
	if reason != "" {
		for i := range out {
			out[i].Refused = reason
		}
	}
	return out
}

// claim notes a frontend that is served.
func (f *familyPort) claim(addr netip.Addr, ports discovery.PortRange, kind table.Kind, mode conntrack.Mode) {
	if f.claims != nil {
		*f.claims = append(*f.claims, Claim{netip.AddrPortFrom(addr, ports.First), ports.Last, f.proto, f.port.Protocol, kind, f.port.Name, mode, ""})
	}
}

// refuse notes a frontend that is not served, if the address is of the family at hand.
func (f *familyPort) refuse(addr netip.Addr, ports discovery.PortRange, kind table.Kind, reason string) {
	if addr = addr.Unmap(); f.claims != nil && addr.IsValid() && addr.Is6() == f.ipv6 {
		*f.claims = append(*f.claims, Claim{netip.AddrPortFrom(addr, ports.First), ports.Last, f.proto, f.port.Protocol, kind, f.port.Name, 0, reason})
	}
}
