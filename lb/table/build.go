package table

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/conntrack"
)

// scratch is memory that builds use again and again.
type scratch struct {
	members    []Endpoint
	population population
	pools      []builtPool
	numbers    []uint32
}

// builtPool is a pool of the Service being built: pools are per Service port and
// protocol, since an endpoint's number is.
type builtPool struct {
	index int
	owner uint64
	entry *PoolEntry
}

// buildService makes the Service anew from spec, with everything of old (nil: none) that
// is the same. It decides nothing about the holders of frontends.
func (t *Table) buildService(spec *Service, old *service) (*service, error) {
	t.scratch.pools = t.scratch.pools[:0]
	s := &service{name: spec.Name, created: spec.Created, frontends: make([]*FrontendEntry, 0, len(spec.Frontends))}
	if old != nil {
		s.id = old.id
	} else {
		s.id = t.serviceIDs.allocate()
	}
	s.policy = buildPolicy(spec.Policy, old)
	for i := range spec.Frontends {
		f, err := t.buildFrontend(spec, i, s, old)
		if err != nil {
			return nil, fmt.Errorf("frontend %d: %w", i, err)
		}
		if again := s.frontend(&f.Key, 0); again == nil {
			s.frontends = append(s.frontends, f)
		} else if !again.Pool.sameSettings(f.Pool) {
			return nil, fmt.Errorf("frontend %d: %v proto %d is named twice, with different pools", i, f.AddrPort, f.Proto)
		}
	}
	for _, b := range t.scratch.pools {
		if !slices.Contains(s.pools, b.entry) {
			s.pools = append(s.pools, b.entry)
		}
	}
	var err error
	if s.endpointIDs, err = t.listEndpointIDs(spec, s, old); err != nil {
		return nil, err
	}
	return s, t.setQUICEndpoints(spec, s, old)
}

func (t *Table) buildFrontend(spec *Service, i int, s, old *service) (*FrontendEntry, error) {
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
	pool, err := t.poolOf(spec, in, owner, ap.Addr().Is4(), old)
	if err != nil {
		return nil, fmt.Errorf("%v: pool %d: %w", ap, in.Pool, err)
	}
	key := MakeKey(ap, in.Proto)
	f := old.frontend(&key, i)
	mode := cmp.Or(in.Mode, conntrack.ModeNAT)
	if f != nil && f.Pool == pool && f.servicePort == owner && f.Policy == s.policy && f.Mode == mode && f.Kind == in.Kind && f.ClusterScope == in.ClusterScope {
		return f, nil
	}
	return &FrontendEntry{
		Key: key, Pool: pool, Policy: s.policy, servicePort: owner, ServiceID: s.id, Proto: in.Proto, Kind: in.Kind, Mode: mode,
		ClusterScope: in.ClusterScope, AddrPort: ap, ServiceName: spec.Name,
	}, nil
}

// poolOf is the pool of a frontend: a pool built in this run, or a published pool of the
// Service, if it is the same, or else a new pool.
func (t *Table) poolOf(spec *Service, f *Frontend, owner uint64, is4 bool, old *service) (*PoolEntry, error) {
	for _, b := range t.scratch.pools {
		if b.index == f.Pool && b.owner == owner {
			return b.entry, b.entry.checkFamily(is4, f.Mode)
		}
	}
	in := &spec.Pools[f.Pool]
	members, err := t.members(in.Endpoints)
	if err != nil {
		return nil, err
	}
	want := PoolEntry{
		algorithm: in.Algorithm, onEmpty: in.OnEmpty, proto: f.Proto, owner: owner, tier: in.Tier,
		affinity:  int32(min(max(in.AffinitySeconds, 0), math.MaxInt32)),
		slowStart: in.SlowStart,
	}
	entry, err := t.buildPool(&want, members, old)
	if err != nil {
		return nil, err
	}
	t.scratch.pools = append(t.scratch.pools, builtPool{f.Pool, owner, entry})
	return entry, entry.checkFamily(is4, f.Mode)
}

// checkFamily reports whether a frontend of the family can use the pool: a tunnel
// carries either family over either.
func (p *PoolEntry) checkFamily(is4 bool, mode conntrack.Mode) error {
	tunnel := mode == conntrack.ModeIPIP || mode == conntrack.ModeGUE
	if !tunnel && len(p.endpoints) > 0 && (p.endpoints[0].Family == 4) != is4 {
		return fmt.Errorf("endpoint %v is of another address family", p.endpoints[0].AddrPort)
	}
	return nil
}

// members are the endpoints checked, in order of address and port, each once, with
// weights from 1.
func (t *Table) members(in []Endpoint) ([]Endpoint, error) {
	out := append(t.scratch.members[:0], in...)
	t.scratch.members = out
	sorted := true
	for i := range out {
		e := &out[i]
		ap, err := checkAddrPort(e.AddrPort)
		if err != nil {
			return nil, fmt.Errorf("endpoint %d: %w", i, err)
		}
		e.AddrPort, e.Weight = ap, max(e.Weight, 1)
		if ap.Addr().Is4() != out[0].AddrPort.Addr().Is4() {
			return nil, fmt.Errorf("endpoints %v and %v are of different address families", out[0].AddrPort, ap)
		}
		sorted = sorted && (i == 0 || out[i-1].AddrPort.Compare(ap) < 0)
	}
	if sorted {
		return out, nil
	}
	slices.SortFunc(out, func(a, b Endpoint) int {
		if c := a.AddrPort.Compare(b.AddrPort); c != 0 {
			return c
		}
		return cmp.Compare(b.Weight, a.Weight)
	})
	return slices.CompactFunc(out, func(a, b Endpoint) bool { return a.AddrPort == b.AddrPort }), nil
}

// buildPool is want with the members: an equal pool of the Service, built in
// this run or published, or a new pool that shares the Maglev table of a pool with the
// same members.
func (t *Table) buildPool(want *PoolEntry, members []Endpoint, old *service) (*PoolEntry, error) {
	var kin *PoolEntry // has the same members and weights
	look := func(p *PoolEntry) bool {
		if !p.sameWeights(members) {
			return false
		}
		if kin == nil || p.size != 0 {
			kin = p
		}
		return p.same(want, members)
	}
	for _, b := range t.scratch.pools {
		if look(b.entry) {
			return b.entry, nil
		}
	}
	if old != nil {
		for _, p := range old.pools {
			if look(p) {
				return p, nil
			}
		}
	}
	p := *want
	var err error
	if p.endpoints, err = t.entries(members, p.owner, p.proto); err != nil {
		return nil, err
	}
	t.setStarts(&p, old)
	if p.affinity != 0 {
		p.byID = indexByID(p.endpoints)
	}
	switch needsTable := p.algorithm == Maglev || p.affinity != 0; {
	case len(p.endpoints) < 2:
	case !needsTable:
		p.alias = makeAlias(p.endpoints)
	case kin != nil && kin.size != 0:
		p.slots, p.size, p.shift = kin.slots, kin.size, kin.shift
	default:
		p.slots, p.size, p.shift = t.scratch.population.build(p.endpoints)
	}
	p.mask = uint32(1<<(8<<p.shift) - 1)
	return &p, nil
}

// indexByID is for PoolEntry.Find.
func indexByID(endpoints []EndpointEntry) []idIndex {
	out := make([]idIndex, len(endpoints))
	for i := range endpoints {
		out[i] = idIndex{endpoints[i].ID, uint32(i)}
	}
	slices.SortFunc(out, func(a, b idIndex) int { return cmp.Compare(a.id, b.id) })
	return out
}

// same reports whether the pool equals want with the members.
func (p *PoolEntry) same(want *PoolEntry, members []Endpoint) bool {
	if p.owner != want.owner || p.algorithm != want.algorithm || p.onEmpty != want.onEmpty || p.proto != want.proto ||
		p.affinity != want.affinity || p.slowStart != want.slowStart || p.tier != want.tier {
		return false
	}
	for i := range members {
		if p.endpoints[i].Local != members[i].Local {
			return false
		}
	}
	return true
}

// sameSettings reports whether the pools differ at most in the Service port that they are of.
func (p *PoolEntry) sameSettings(o *PoolEntry) bool {
	if p == o {
		return true
	}
	same := func(a, b EndpointEntry) bool {
		return a.AddrPort == b.AddrPort && a.Weight == b.Weight && a.Local == b.Local
	}
	return p.algorithm == o.algorithm && p.onEmpty == o.onEmpty && p.proto == o.proto && p.affinity == o.affinity &&
		p.slowStart == o.slowStart && p.tier == o.tier && slices.EqualFunc(p.endpoints, o.endpoints, same)
}

// sameWeights reports whether the pool has these members with these weights: then the
// Maglev table is the same too.
func (p *PoolEntry) sameWeights(members []Endpoint) bool {
	if len(p.endpoints) != len(members) {
		return false
	}
	for i := range members {
		if e := &p.endpoints[i]; e.AddrPort != members[i].AddrPort || e.Weight != members[i].Weight {
			return false
		}
	}
	return true
}

func (t *Table) entries(members []Endpoint, owner uint64, proto uint8) ([]EndpointEntry, error) {
	if len(members) == 0 {
		return nil, nil
	}
	out := make([]EndpointEntry, len(members))
	for i := range members {
		m := &members[i]
		n, err := t.endpoints.assign(makeEndpointKey(owner, m.AddrPort, proto))
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
func (t *Table) listEndpointIDs(spec *Service, s, old *service) ([]uint32, error) {
	numbers := t.scratch.numbers[:0]
	for _, b := range t.scratch.pools {
		for i := range b.entry.endpoints {
			numbers = append(numbers, b.entry.endpoints[i].ID)
		}
	}
	for i := range spec.Listed {
		l := &spec.Listed[i]
		ap, err := checkAddrPort(l.AddrPort)
		if err != nil {
			return nil, fmt.Errorf("listed endpoint %d: %w", i, err)
		}
		for owner := range s.listingPorts(l) {
			n, err := t.endpoints.assign(makeEndpointKey(owner, ap, l.Proto))
			if err != nil {
				return nil, fmt.Errorf("listed endpoint %v: %w", ap, err)
			}
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	t.scratch.numbers = numbers
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
