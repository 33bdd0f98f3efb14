package discovery

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Use is what this node makes of a Service.
type Use struct {
	// Endpoints is false if no frontend here needs them: they are not merged.
	Endpoints bool
	// Frontends is how many frontends the node has for the Service.
	Frontends int
}

// Limits bound what Services take of stores that all share. The zero value has no limits.
type Limits struct {
	Frontends Limit
	// Endpoints counts an endpoint once for each Service port.
	Endpoints Limit
	// Names counts the endpoints that names stand for, once for each slice and port number of it.
	Names Limit
}

// Limit is the size of a store, and the part that a namespace and a Service may take; 0 is no
// limit.
type Limit struct{ Total, Namespace, Service int }

// demand is what a Service takes of the stores.
type demand struct{ frontends, endpoints, named int }

func (d demand) plus(o demand, by int) demand {
	return demand{d.frontends + by*o.frontends, d.endpoints + by*o.endpoints, d.named + by*o.named}
}

// demands are those of all Services that are within the limits of a Service.
type demands struct {
	limits      Limits
	total       demand
	byNamespace map[string]demand
	// refused are the Services for which the stores have no room.
	refused map[*service]struct{}
	changed bool // since the last admit
}

// resource is a store with its limit.
type resource struct {
	name  string
	limit Limit
	of    func(demand) int
}

func (d *demands) resources() [3]resource {
	return [3]resource{
		{"frontends", d.limits.Frontends, func(d demand) int { return d.frontends }},
		{"endpoints of Service ports", d.limits.Endpoints, func(d demand) int { return d.endpoints }},
		{"endpoints by name", d.limits.Names, func(d demand) int { return d.named }},
	}
}

// exceeds reports whether n is beyond a limit.
func exceeds(n, limit int) bool { return limit > 0 && n > limit }

// weigh notes what a Service takes, before it is merged.
func (s *Store) weigh(svc *service) {
	var d demand
	svc.tooLarge, svc.use, svc.matches = "", Use{Endpoints: true}, nil
	if sp := svc.spec; sp != nil && !sp.svc.Headless && !sp.svc.ExternalName {
		if s.opts.Use != nil {
			svc.use = s.opts.Use(&sp.svc)
		}
		if svc.use.Endpoints {
			d = demand{svc.use.Frontends, s.countEndpoints(svc), svc.countNamed()}
		}
		for _, r := range s.demands.resources() {
			if svc.tooLarge == "" && exceeds(r.of(d), r.limit.Service) {
				svc.tooLarge = fmt.Sprintf("asks for more than the %d %s that a Service may have", r.limit.Service, r.name)
			}
		}
		if svc.tooLarge != "" || sp.svc.Unsupported != "" {
			d = demand{} // the kernel serves it
		}
	}
	s.demands.set(svc, d)
}

// countEndpoints is the number of endpoints of all ports, before duplicates are removed.
func (s *Store) countEndpoints(svc *service) (n int) {
	sources := svc.sources()
	svc.matches = matchPorts(svc.spec.svc.Ports, sources)
	for _, list := range svc.matches {
		for _, m := range list {
			if d := sources[m.source]; !d.byName {
				n += len(d.endpoints)
			}
		}
	}
	for _, d := range sources {
		if d.named == nil {
			continue
		}
		svc.matches = nil // endpoints of names are made once there is room for them
		for i := range svc.spec.svc.Ports {
			n += d.named.count(portID{svc.spec.svc.Ports[i].Name, svc.spec.svc.Ports[i].Protocol})
		}
	}
	return n
}

// set replaces the demand of a Service.
func (d *demands) set(svc *service, now demand) {
	created := svc.created()
	if svc.demand == now && svc.demanded == created {
		return
	}
	svc.demanded = created
	ns := svc.name.Namespace
	d.total = d.total.plus(svc.demand, -1).plus(now, 1)
	if d.byNamespace[ns] = d.byNamespace[ns].plus(svc.demand, -1).plus(now, 1); d.byNamespace[ns] == (demand{}) {
		delete(d.byNamespace, ns)
	}
	svc.demand, d.changed = now, true
}

// created is the time by which Services are ordered: those of unknown age come last.
func (svc *service) created() int64 {
	if svc.spec == nil || svc.spec.svc.Created == 0 {
		return math.MaxInt64
	}
	return svc.spec.svc.Created
}

// exceeded reports whether any store or share is too small for all.
func (d *demands) exceeded() bool {
	for _, r := range d.resources() {
		if exceeds(r.of(d.total), r.limit.Total) {
			return true
		}
		for _, n := range d.byNamespace {
			if exceeds(r.of(n), r.limit.Namespace) {
				return true
			}
		}
	}
	return false
}

// admit decides which Services the stores have room for: the oldest first, whatever came first
// to this process. The answer follows from the objects alone, so a restart changes nothing. The
// Services whose answer differs from the last are queued.
func (s *Store) admit() {
	d := &s.demands
	if !d.changed {
		return
	}
	d.changed = false
	if len(d.refused) == 0 && !d.exceeded() {
		return
	}
	var list []*service
	for _, svc := range s.services {
		if svc.demand != (demand{}) {
			list = append(list, svc)
		}
	}
	slices.SortFunc(list, func(a, b *service) int {
		return cmp.Or(cmp.Compare(a.created(), b.created()), a.name.compare(b.name))
	})
	refused := map[*service]struct{}{}
	var total demand
	byNamespace := map[string]demand{}
	for _, svc := range list {
		ns := svc.name.Namespace
		reason := d.refusal(total.plus(svc.demand, 1), byNamespace[ns].plus(svc.demand, 1))
		if reason == "" {
			total, byNamespace[ns] = total.plus(svc.demand, 1), byNamespace[ns].plus(svc.demand, 1)
		} else {
			refused[svc] = struct{}{}
		}
		if svc.noRoom != reason {
			svc.noRoom = reason
			s.queue(svc)
		}
	}
	for svc := range d.refused {
		if _, still := refused[svc]; !still && svc.noRoom != "" {
			svc.noRoom = "" // it asks for nothing any more
			s.queue(svc)
		}
	}
	d.refused = refused
}

// refusal is why a Service is refused with which all older ones, and those of its namespace, ask
// for so much; "" if it is not.
func (d *demands) refusal(total, namespace demand) string {
	for _, r := range d.resources() {
		if exceeds(r.of(namespace), r.limit.Namespace) {
			return fmt.Sprintf("older Services of the namespace leave too few of the %d %s that a namespace may have", r.limit.Namespace, r.name)
		}
		if exceeds(r.of(total), r.limit.Total) {
			return fmt.Sprintf("older Services leave too few of the %d %s of a node", r.limit.Total, r.name)
		}
	}
	return ""
}

// Reconsider asks Options.Use again of all Services, for the next Flush.
func (s *Store) Reconsider() {
	if s.opts.Use == nil {
		return
	}
	for _, svc := range s.services {
		if sp := svc.spec; sp != nil && !sp.svc.Headless && !sp.svc.ExternalName && svc.use != s.opts.Use(&sp.svc) {
			s.queue(svc)
		}
	}
}

// Merged is a Service with all endpoints, also where no frontend here needs them, nil when there
// is none. A Service beyond the limits of a Service has none.
func (s *Store) Merged(name ServiceName) *Service {
	svc := s.services[name]
	if svc == nil || svc.spec == nil || svc.out == nil || !svc.out.Unused {
		return s.Service(name)
	}
	if exceeds(s.countEndpoints(svc), s.demands.limits.Endpoints.Service) || exceeds(svc.countNamed(), s.demands.limits.Names.Service) {
		svc.matches = nil
		return svc.out
	}
	s.makeNamed(svc, true)
	defer s.makeNamed(svc, false) // nothing here needs them
	return s.mergeEndpoints(svc)
}

// refusal is why a Service is not served, "" if it is.
func (svc *service) refusal() string { return cmp.Or(svc.tooLarge, svc.noRoom) }
