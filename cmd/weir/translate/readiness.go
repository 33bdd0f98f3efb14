package translate

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// Readiness is all that a node combines with the conditions of slices. Everything that asks whether an
// endpoint is ready on the node asks here: the choice of endpoints and with it tiers and announcements,
// health checks of Services, and all that is shown.
type Readiness struct {
	Guard   *Guard // nil refuses nothing
	Drained DrainedSet
	Health  Health // nil: nothing is known
}

// Health is what checks say of an endpoint of a Service port.
type Health func(*discovery.Service, *discovery.Port, netip.AddrPort) topology.Health

// Of is a Service as the node sees it. svc is not changed.
func (r *Readiness) Of(svc *discovery.Service) *discovery.Service {
	out, own := svc, r.frontends(svc)
	for i := range svc.Ports {
		p := &svc.Ports[i]
		four, six := ofFamily(p.Endpoints, false), ofFamily(p.Endpoints, true)
		now4, _, _ := r.endpoints(svc, p, four, own)
		now6, _, _ := r.endpoints(svc, p, six, own)
		if same(four, now4) && same(six, now6) {
			continue
		}
		if out == svc {
			copied := *svc
			out, copied.Ports = &copied, slices.Clone(svc.Ports)
		}
		out.Ports[i].Endpoints = slices.Concat(now4, now6)
	}
	return out
}

// same reports whether two slices are the same memory.
func same(a, b []topology.Endpoint) bool { return len(a) == 0 || &a[0] == &b[0] }

func (r *Readiness) frontends(svc *discovery.Service) *Frontends {
	if r.Guard == nil {
		return nil
	}
	return r.Guard.Frontends(svc)
}

// endpoints returns the endpoints of a Service port in a family as the node uses them, and the reasons
// for the first that it refuses. own are the frontends of the Service, nil without a guard.
func (r *Readiness) endpoints(svc *discovery.Service, p *discovery.Port, eps []topology.Endpoint, own *Frontends) (out []topology.Endpoint, refused, loop string) {
	out = topology.Readiness(eps, func(e *topology.Endpoint) (h topology.Health) {
		if r.Guard != nil {
			why, comesBack := r.Guard.RefusesEndpoint(svc, e.AddrPort), ""
			if why == "" {
				comesBack = own.Refuses(e, p.Protocol)
			}
			refused, loop = cmp.Or(refused, why), cmp.Or(loop, comesBack)
			if h.Refused = why != "" || comesBack != ""; h.Refused {
				return h
			}
		}
		if r.Health != nil {
			h = r.Health(svc, p, e.AddrPort)
		}
		h.Drained = r.Drained.Has(e.AddrPort)
		return h
	}, svc.Options.HealthCheckClosed)
	return out, refused, loop
}

// Refresh translates Services again, of whose endpoints the health has changed.
func (t *Translator) Refresh(names []discovery.ServiceName) Batch {
	b := t.begin()
	var put []*discovery.Service
	for _, name := range names {
		if e := t.services[name]; e != nil {
			put = append(put, e.svc)
		}
	}
	t.putAll(b, put)
	return t.end(b)
}
