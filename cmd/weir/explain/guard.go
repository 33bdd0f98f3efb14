package explain

import "net/netip"

// refusals gives the endpoints that the node refuses the reason.
func (v *View) refusals(svc *Service) {
	for i := range svc.Ports {
		for j := range svc.Ports[i].Detail {
			e := &svc.Ports[i].Detail[j]
			a, err := netip.ParseAddrPort(e.Address)
			if why := v.Guard.Refuses(a); err == nil && why != "" {
				e.Reason, e.LocalReason = "refused: "+why, ""
			}
		}
	}
}
