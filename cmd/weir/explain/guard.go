package explain

import (
	"cmp"
	"net/netip"

	"github.com/weirlb/weir/discovery"
)

// refusals gives the endpoints that the node refuses the reason. of is what svc explains, nil for
// a Service that is not valid.
func (v *View) refusals(svc *Service, of *discovery.Service) {
	loops := map[string]string{}
	if of != nil {
		own := v.Guard.Frontends(of)
		for i := range of.Ports {
			for j := range of.Ports[i].Endpoints {
				e := &of.Ports[i].Endpoints[j]
				if why := own.Refuses(e, of.Ports[i].Protocol); why != "" {
					loops[of.Ports[i].Protocol+e.AddrPort.String()] = why
				}
			}
		}
	}
	for i := range svc.Ports {
		for j := range svc.Ports[i].Detail {
			e := &svc.Ports[i].Detail[j]
			a, err := netip.ParseAddrPort(e.Address)
			refused := v.Guard.Refuses(a)
			if of != nil {
				refused = v.Guard.RefusesEndpoint(of, a)
			}
			why := cmp.Or(refused, loops[svc.Ports[i].Protocol+e.Address])
			if err == nil && why != "" {
				e.Reason, e.LocalReason = "refused: "+why, ""
			}
		}
	}
}
