package discovery

import "fmt"

// dsrModes are the forwarding modes with direct server return: packets keep their
// destination address and port.
var dsrModes = map[string]bool{"l2dsr": true, "ipip": true, "gue": true}

// modeConflict returns an error text for a Service in a mode with direct server
// return whose endpoints listen on another port than the Service port, else "".
func (s *Service) modeConflict() string {
	if !dsrModes[s.Options.ForwardingMode] {
		return ""
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		for j := range p.Endpoints {
			if target := p.Endpoints[j].AddrPort; target.Port() != p.Port {
				return annotationPath(AnnotationForwardingMode) + ": " + invalidValue(s.Options.ForwardingMode, fmt.Sprintf(
					"packets keep their port in this mode, but endpoint %v of port %d does not listen there: nat is used for that port", target, p.Port))
			}
		}
	}
	return ""
}
