package answers

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/lb/header"
)

// Attempts has for views and metrics how attempts to connect to endpoints fare.
type Attempts struct {
	*attempts.Table
	LB       func() *lb.LB
	Services func() []*discovery.Service // that are served
}

// of are the attempts of endpoint number n.
func (a *Attempts) of(n uint32) api.Attempts {
	c := a.Of(n)
	return a.shown(&c)
}

func (a *Attempts) shown(c *attempts.Counts) api.Attempts {
	out := api.Attempts{Answered: c.Answered, Refused: c.Refused, Unanswered: c.Unanswered, FailedInARow: c.InARow}
	if c.Failed() > 0 {
		ago := int32(a.LB().FlowTable().Tick() - c.LastFailure)
		at := time.Now().Add(-time.Duration(max(0, ago)) * time.Second / conntrack.TicksPerSecond).Truncate(time.Second)
		out.LastFailure = &at
	}
	return out
}

// FailingEndpoints implements metrics.EndpointSource.
func (a *Attempts) FailingEndpoints(limit int) []api.EndpointState {
	tables, wanted := a.LB().Tables(), map[netip.AddrPort]map[uint32]*attempts.Counts{}
	worst := a.Worst(limit)
	for i := range worst {
		w := &worst[i]
		if ap, _, ok := tables.Endpoint(w.Number); ok {
			if wanted[ap] == nil {
				wanted[ap] = map[uint32]*attempts.Counts{}
			}
			wanted[ap][w.Number] = &w.Counts
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	var out []api.EndpointState
	for _, svc := range a.Services() {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			proto, _ := header.ProtocolNumber(p.Protocol)
			for j := range p.Endpoints {
				at := p.Endpoints[j].AddrPort
				numbers := wanted[at]
				if numbers == nil {
					continue
				}
				n, ok := tables.EndpointID(svc.Name.String(), p.Port, proto, at)
				if c := numbers[n]; ok && c != nil {
					out = append(out, api.EndpointState{
						Service: svc.Name.String(), Port: portLabel(p), Protocol: p.Protocol, Address: at.String(), Attempts: a.shown(c),
					})
				}
			}
		}
	}
	return out
}

// portLabel is the name of a Service port, or its number.
func portLabel(p *discovery.Port) string {
	if p.Name != "" {
		return p.Name
	}
	return strconv.Itoa(int(p.Port))
}
