package discovery

import "fmt"

// direct are the forwarding modes in which packets keep their destination
// address and port.
var direct = map[string]bool{"l2dsr": true, "ipip": true, "gue": true}

// misdirected says what is wrong with a Service that asks for a mode in which
// packets keep their port, and has endpoints that listen on another one; "" if
// nothing is.
func (s *Service) misdirected() string {
	if !direct[s.Options.ForwardingMode] {
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
