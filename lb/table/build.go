package table

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/conntrack"
)

// builder makes Services as they are published, from those that the control plane describes. It
// gives numbers to Services and endpoints that have none.
type builder struct {
	services  *serviceIDs
	endpoints *endpointIDs

	// Memory that builds use again and again.
	members    []Endpoint
	population population
	numbers    []uint32
}

// build makes the Service anew from spec, with everything of old (nil: none) that
// is the same. It decides nothing about the holders of frontends.
func (b *builder) build(spec *Service, old *service) (*service, error) {
	pools := newPoolBuilder(b, spec, old)
	s := &service{name: spec.Name, created: spec.Created, frontends: make([]*FrontendEntry, 0, len(spec.Frontends))}
	if old != nil {
		s.id = old.id
	} else {
		s.id = b.services.allocate()
	}
	s.policy = buildPolicy(spec.Policy, old)
	for i := range spec.Frontends {
		f, err := buildFrontend(spec, i, s, pools)
		if err != nil {
			return nil, fmt.Errorf("frontend %d: %w", i, err)
		}
		if again := s.frontend(&f.Key, len(s.frontends)); again == nil {
			s.add(f)
		} else if !again.Pool.sameSettings(f.Pool) {
			return nil, fmt.Errorf("frontend %d: %v proto %d is named twice, with different pools", i, f.AddrPort, f.Proto)
		}
	}
	s.pools = pools.all
	var err error
	if s.endpointIDs, err = b.listEndpointIDs(spec, s, old); err != nil {
		return nil, err
	}
	return s, b.setQUICEndpoints(spec, s, old)
}

func buildFrontend(spec *Service, i int, s *service, pools *poolBuilder) (*FrontendEntry, error) {
	in := &spec.Frontends[i]
	ap, err := checkAddrPort(in.AddrPort)
	if err != nil {
		return nil, err
	}
	if in.Proto == 0 {
		return nil, fmt.Errorf("%v: protocol 0", ap)
	}
	if in.Pool < 0 || in.Pool >= len(spec.Pools) {
		return nil, fmt.Errorf("%v: pool %d of %d", ap, in.Pool, len(spec.Pools))
	}
	owner := servicePort(spec.Name, cmp.Or(in.Port, ap.Port()), in.Proto)
	pool, err := pools.of(in, owner, ap.Addr().Is4())
	if err != nil {
		return nil, fmt.Errorf("%v: pool %d: %w", ap, in.Pool, err)
	}
	if in.LastPort != 0 && in.LastPort < ap.Port() {
		return nil, fmt.Errorf("%v: the last port of the range is %d", ap, in.LastPort)
	}
	key := in.Key()
	f := pools.old.frontend(&key, i)
	mode := cmp.Or(in.Mode, conntrack.ModeNAT)
	if f != nil && f.Pool == pool && f.servicePort == owner && f.Policy == s.policy && f.Mode == mode && f.Kind == in.Kind && f.ClusterScope == in.ClusterScope {
		return f, nil
	}
	f = &FrontendEntry{
		Key: key, Pool: pool, Policy: s.policy, servicePort: owner, ServiceID: s.id, Proto: in.Proto, Kind: in.Kind, Mode: mode,
		ClusterScope: in.ClusterScope, AddrPort: ap, ServiceName: spec.Name,
		LastPort: key.lastPort(),
	}
	if f.LastPort != 0 {
		f.endpointPort = cmp.Or(in.Port, ap.Port())
	}
	return f, nil
}

// entries are the members as entries of a pool of a Service port, with their numbers.
func (b *builder) entries(members []Endpoint, owner uint64, proto uint8) ([]EndpointEntry, error) {
	if len(members) == 0 {
		return nil, nil
	}
	out := make([]EndpointEntry, len(members))
	for i := range members {
		m := &members[i]
		n, err := b.endpoints.assign(makeEndpointKey(owner, m.AddrPort, proto))
		if err != nil {
			return nil, fmt.Errorf("endpoint %v: %w", m.AddrPort, err)
		}
		w0, w1, family := addrWords(m.AddrPort.Addr())
		out[i] = EndpointEntry{
			ID: n, Port: rawPort(m.AddrPort.Port()), Family: family, Local: m.Local,
			W0: w0, W1: w1, Addr: addrBytes(m.AddrPort.Addr()), AddrPort: m.AddrPort, Weight: m.Weight,
		}
	}
	return out, nil
}

// addrBytes are the address's packet bytes, those of an IPv4 address first.
func addrBytes(a netip.Addr) (b [16]byte) {
	if a.Is4() {
		b4 := a.As4()
		copy(b[:], b4[:])
		return b
	}
	return a.As16()
}

// listEndpointIDs are the numbers of all endpoints that the Service names, each once,
// ascending.
func (b *builder) listEndpointIDs(spec *Service, s, old *service) ([]uint32, error) {
	numbers := b.numbers[:0]
	for _, p := range s.pools {
		for i := range p.endpoints {
			numbers = append(numbers, p.endpoints[i].ID)
		}
	}
	for i := range spec.Listed {
		l := &spec.Listed[i]
		ap, err := checkAddrPort(l.AddrPort)
		if err != nil {
			return nil, fmt.Errorf("listed endpoint %d: %w", i, err)
		}
		for owner := range s.listingPorts(l) {
			n, err := b.endpoints.assign(makeEndpointKey(owner, ap, l.Proto))
			if err != nil {
				return nil, fmt.Errorf("listed endpoint %v: %w", ap, err)
			}
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	b.numbers = numbers
	numbers = slices.Compact(numbers)
	if old != nil && slices.Equal(numbers, old.endpointIDs) {
		return old.endpointIDs, nil
	}
	return slices.Clone(numbers), nil
}

// listingPorts gives the Service ports that list an endpoint; some more than once.
func (s *service) listingPorts(l *ListedEndpoint) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		if l.Port != 0 {
			yield(servicePort(s.name, l.Port, l.Proto))
			return
		}
		for _, f := range s.frontends {
			if f.Proto == l.Proto && !yield(f.servicePort) {
				return
			}
		}
	}
}
