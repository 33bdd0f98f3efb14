package translate

import (
	"net/netip"
	"time"

	"github.com/weirlb/weir/discovery"
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

// DrainedSet is a set of endpoints that are drained. It may be large, and so is the number of
// endpoints that are looked up in it.
type DrainedSet map[Drained]time.Time

// NewDrainedSet returns the set of a list.
func NewDrainedSet(list []Drained) DrainedSet {
	s := make(DrainedSet, len(list))
	for _, d := range list {
		s[d] = time.Time{}
	}
	return s
}

// Has reports whether the set names an endpoint.
func (s DrainedSet) Has(a netip.AddrPort) bool {
	_, is := s.Since(a)
	return is
}

// Since is since when an endpoint is drained that the set names; zero: it is not known.
func (s DrainedSet) Since(a netip.AddrPort) (since time.Time, is bool) {
	if len(s) == 0 {
		return since, false
	}
	addr := a.Addr().Unmap()
	if since, is = s[Drained{addr, a.Port()}]; is {
		return since, true
	}
	since, is = s[Drained{Addr: addr}]
	return since, is
}

// lists reports whether a Service lists an endpoint that is named.
func lists(svc *discovery.Service, set DrainedSet) bool {
	if len(set) == 0 {
		return false
	}
	for i := range svc.Ports {
		for j := range svc.Ports[i].Endpoints {
			if set.Has(svc.Ports[i].Endpoints[j].AddrPort) {
				return true
			}
		}
	}
	return false
}

// Listed returns the part of a set that names endpoints of Services with a frontend on this
// node. It looks at all endpoints.
func (t *Translator) Listed(set DrainedSet) DrainedSet {
	out := DrainedSet{}
	if len(set) == 0 {
		return out
	}
	for _, e := range t.services {
		for i := range e.svc.Ports {
			for j := range e.svc.Ports[i].Endpoints {
				a := e.svc.Ports[i].Endpoints[j].AddrPort
				addr := a.Addr().Unmap()
				for _, d := range [2]Drained{{addr, a.Port()}, {Addr: addr}} {
					if since, ok := set[d]; ok {
						out[d] = since
					}
				}
			}
		}
	}
	return out
}

// SetDrained replaces the list of drained endpoints. Only Services that list an endpoint of
// which this changes something are translated again.
func (t *Translator) SetDrained(list []Drained) Batch {
	now, changed := NewDrainedSet(list), DrainedSet{}
	for d := range t.drained {
		if _, ok := now[d]; !ok {
			changed[d] = time.Time{}
		}
	}
	for d := range now {
		if _, ok := t.drained[d]; !ok {
			changed[d] = time.Time{}
		}
	}
	t.drained = now
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
