package explain

import (
	"cmp"
	"strings"

	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
)

// reasons gives the endpoints of a Service the reasons of the node itself. A state that it has nothing to do with
// is that of the slice.
func (q *Question) reasons(out *Service, svc *discovery.Service) {
	guard := q.Guard
	if q.View != nil {
		guard = &q.View.Guard
	}
	by := "EndpointSlice"
	if svc.Mirrored {
		by = "Endpoints object"
	}
	for i := range out.Ports { // those of svc, with its endpoints
		p := &svc.Ports[i]
		for j := range out.Ports[i].Detail {
			at, e := p.Endpoints[j].AddrPort, &out.Ports[i].Detail[j]
			why := ""
			if q.Why != nil {
				why = q.Why(svc, p, at)
			}
			if why != "" {
				e.own, e.Reason = why+"; ", why+"; "+e.Reason
				continue
			}
			for _, reason := range []*string{&e.Reason, &e.LocalReason} {
				*reason = strings.Replace(*reason, notReady, notReady+" by its "+by, 1)
			}
		}
	}
	if guard != nil {
		refusals(guard, out, svc)
	}
}

// notReady is the reason of topology.Explain.
const notReady = "not ready"

// refusals gives the endpoints that the node refuses the reason. of is what svc explains.
func refusals(guard *translate.Guard, svc *Service, of *discovery.Service) {
	own := guard.Frontends(of)
	for i := range svc.Ports {
		p := &of.Ports[i]
		for j := range svc.Ports[i].Detail {
			e := &p.Endpoints[j]
			if why := cmp.Or(guard.RefusesEndpoint(of, e.AddrPort), own.Refuses(e, p.Protocol)); why != "" {
				d := &svc.Ports[i].Detail[j]
				d.Reason, d.LocalReason = "refused: "+why, ""
			}
		}
	}
}
