package table

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
	"slices"

	"github.com/weirlb/weir/conntrack"
)

// poolBuilder makes the pools of a Service. Its work for a pool does not depend on the number of
// pools: a Service may have thousands of ports.
type poolBuilder struct {
	from *builder
	spec *Service
	old  *service // as published; nil: none
	// all are the pools made so far, each once; made has them by what they were made for.
	all  []*PoolEntry
	used map[*PoolEntry]bool
	made map[poolRef]*PoolEntry
	// byOwner are the pools of all and of old, which a Service port may use again; kin is for
	// each set of members a pool that has them, if possible with a Maglev table.
	byOwner map[uint64][]*PoolEntry
	kin     map[uint64]*PoolEntry // by PoolEntry.members
	since   map[endpointKey]uint32
}

// poolRef is a pool of the Service being built: pools are per Service port and protocol, since an
// endpoint's number is.
type poolRef struct {
	index int
	owner uint64
}

func newPoolBuilder(from *builder, spec *Service, old *service) *poolBuilder {
	n := len(spec.Pools)
	if old != nil {
		n = max(n, len(old.pools))
	}
	b := &poolBuilder{
		from: from, spec: spec, old: old,
		used: make(map[*PoolEntry]bool, n),
		made: make(map[poolRef]*PoolEntry, n), byOwner: make(map[uint64][]*PoolEntry, n), kin: make(map[uint64]*PoolEntry, n),
	}
	if old != nil {
		for _, p := range old.pools {
			b.know(p)
		}
	}
	return b
}

// know has later pools use p again, or the Maglev table of p.
func (b *poolBuilder) know(p *PoolEntry) {
	b.byOwner[p.owner] = append(b.byOwner[p.owner], p)
	if k := b.kin[p.members]; k == nil || k.size == 0 {
		b.kin[p.members] = p
	}
}

// of is the pool of a frontend: a pool built in this run, or a published pool of the
// Service, if it is the same, or else a new pool.
func (b *poolBuilder) of(f *Frontend, owner uint64, is4 bool) (*PoolEntry, error) {
	ref := poolRef{f.Pool, owner}
	if p := b.made[ref]; p != nil {
		return p, p.checkFamily(is4, f.Mode)
	}
	in := &b.spec.Pools[f.Pool]
	members, err := b.from.checked(in.Endpoints)
	if err != nil {
		return nil, err
	}
	want := PoolEntry{
		algorithm: in.Algorithm, onEmpty: in.OnEmpty, proto: f.Proto, owner: owner, tier: in.Tier,
		affinity:  int32(min(max(in.AffinitySeconds, 0), math.MaxInt32)),
		slowStart: in.SlowStart,
		members:   hashMembers(members),
	}
	p, err := b.build(&want, members)
	if err != nil {
		return nil, err
	}
	b.made[ref] = p
	return p, p.checkFamily(is4, f.Mode)
}

// build is want with the members: an equal pool of the Service, built in this run or published,
// or a new pool that shares the Maglev table of a pool with the same members.
func (b *poolBuilder) build(want *PoolEntry, members []Endpoint) (*PoolEntry, error) {
	for _, p := range b.byOwner[want.owner] {
		if p.sameWeights(members) && p.same(want, members) {
			b.use(p)
			return p, nil
		}
	}
	p := *want
	var err error
	if p.endpoints, err = b.from.entries(members, p.owner, p.proto); err != nil {
		return nil, err
	}
	b.setStarts(&p)
	if p.affinity != 0 {
		p.byID = indexByID(p.endpoints)
	}
	kin := b.kin[p.members]
	if kin != nil && !kin.sameWeights(members) {
		kin = nil
	}
	switch needsTable := p.algorithm == Maglev || p.affinity != 0; {
	case len(p.endpoints) < 2:
	case !needsTable:
		p.alias = makeAlias(p.endpoints)
	case kin != nil && kin.size != 0:
		p.slots, p.size, p.shift = kin.slots, kin.size, kin.shift
	default:
		p.slots, p.size, p.shift = b.from.population.build(p.endpoints)
	}
	p.mask = uint32(1<<(8<<p.shift) - 1)
	b.use(&p)
	b.know(&p)
	return &p, nil
}

// use adds a pool to those of the Service.
func (b *poolBuilder) use(p *PoolEntry) {
	if !b.used[p] {
		b.used[p] = true
		b.all = append(b.all, p)
	}
}

var membersSeed = maphash.MakeSeed()

// hashMembers is equal for pools with the same members and weights, and hardly ever for others.
func hashMembers(members []Endpoint) uint64 {
	var h maphash.Hash
	h.SetSeed(membersSeed)
	for i := range members {
		maphash.WriteComparable(&h, members[i].AddrPort)
		maphash.WriteComparable(&h, members[i].Weight)
	}
	return h.Sum64()
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

// checked are the endpoints checked, in order of address and port, each once, with
// weights from 1.
func (b *builder) checked(in []Endpoint) ([]Endpoint, error) {
	out := append(b.members[:0], in...)
	b.members = out
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
