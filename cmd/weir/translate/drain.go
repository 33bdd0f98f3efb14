package translate

import (
	"net/netip"
	"slices"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// Drained names an endpoint, or with port 0 all endpoints of an address, that get no new
// connections on this node while others are ready. They count as terminating.
type Drained struct {
	Addr netip.Addr
	Port uint16
}

// ParseDrained reads ADDRESS or ADDRESS:PORT.
func ParseDrained(s string) (d Drained, ok bool) {
	if a, err := netip.ParseAddrPort(s); err == nil && a.Port() != 0 {
		return Drained{a.Addr().Unmap(), a.Port()}, true
	}
	a, err := netip.ParseAddr(s)
	return Drained{Addr: a.Unmap()}, err == nil
}

// String is ADDRESS or ADDRESS:PORT.
func (d Drained) String() string {
	if d.Port == 0 {
		return d.Addr.String()
	}
	return netip.AddrPortFrom(d.Addr, d.Port).String()
}

// Has reports whether d names the endpoint.
func (d Drained) Has(a netip.AddrPort) bool {
	return d.Addr == a.Addr().Unmap() && (d.Port == 0 || d.Port == a.Port())
}

// IsDrained reports whether an endpoint is named in a list.
func IsDrained(list []Drained, a netip.AddrPort) bool {
	return slices.ContainsFunc(list, func(d Drained) bool { return d.Has(a) })
}

// drainIn returns the endpoints, of which those in the list are terminating.
func drainIn(list []Drained, eps []topology.Endpoint) []topology.Endpoint {
	if len(list) == 0 {
		return eps
	}
	copied := false
	for i := range eps {
		if !eps[i].Ready || !IsDrained(list, eps[i].AddrPort) {
			continue
		}
		if !copied {
			eps, copied = slices.Clone(eps), true
		}
		eps[i].Serving, eps[i].Ready, eps[i].Terminating = true, false, true
	}
	return eps
}

// WithDrained is a Service as a node with drained endpoints sees it.
func WithDrained(list []Drained, svc *discovery.Service) *discovery.Service {
	if !lists(svc, list) {
		return svc
	}
	out := *svc
	out.Ports = slices.Clone(svc.Ports)
	for i := range out.Ports {
		out.Ports[i].Endpoints = drainIn(list, out.Ports[i].Endpoints)
	}
	return &out
}

// lists reports whether a Service lists an endpoint that is named.
func lists(svc *discovery.Service, list []Drained) bool {
	for i := range svc.Ports {
		for j := range svc.Ports[i].Endpoints {
			if IsDrained(list, svc.Ports[i].Endpoints[j].AddrPort) {
				return true
			}
		}
	}
	return false
}

// Lists reports whether a Service with a frontend on this node lists an endpoint that d
// names. It looks at all endpoints.
func (t *Translator) Lists(d Drained) bool {
	for _, e := range t.services {
		if lists(e.svc, []Drained{d}) {
			return true
		}
	}
	return false
}

// SetDrained replaces the list of drained endpoints. Only Services that list an endpoint of
// which this changes something are translated again.
func (t *Translator) SetDrained(list []Drained) Batch {
	var changed []Drained
	for _, d := range t.drained {
		if !slices.Contains(list, d) {
			changed = append(changed, d)
		}
	}
	for _, d := range list {
		if !slices.Contains(t.drained, d) {
			changed = append(changed, d)
		}
	}
	t.drained = slices.Clone(list)
	b := t.begin()
	var put []*discovery.Service
	for _, e := range t.services {
		if lists(e.svc, changed) {
			put = append(put, e.svc)
		}
	}
	t.putAll(b, put)
	return t.end(b)
}
