package addresspool

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// RestTime is how long a released address is not given to another Service, unless that is of the
// same namespace and asks for it by name: clients and caches still know it.
const RestTime = time.Minute

// Reasons of an Outcome, in the form of reasons of conditions.
const (
	ReasonAllocated     = "Allocated"
	ReasonKept          = "Kept"          // it has the addresses already
	ReasonExhausted     = "PoolExhausted" // no address is free in the pools that the Service may use
	ReasonNoPool        = "NoPool"        // no pool is for the Service
	ReasonUnknownPool   = "UnknownPool"   // the pool that it asks for is not there
	ReasonNotInPool     = "AddressNotInPool"
	ReasonAddressInUse  = "AddressInUse"
	ReasonRequest       = "InvalidRequest"
	ReasonConflict      = "AddressConflict" // an older Service has the address as well
	ReasonOutsideOfPool = "OutsideOfPools"  // kept, though no pool has it any more
	ReasonClaimed       = "AddressClaimed"  // kept, though a Service of another controller has it as well
)

// Outcome says which addresses a Service should have.
type Outcome struct {
	// Addresses is empty if there is none for it; in the order of the Service's status, or IPv4 before IPv6.
	Addresses []netip.Addr
	Reason    string
	// Text explains the reason; empty with ReasonAllocated and ReasonKept.
	Text string
	// Retry is when a resting address becomes free that the Service waits for; zero: unknown.
	Retry time.Time
	// Lost names the addresses that the Service had and an older Service keeps.
	Lost []netip.Addr
}

// Allocator gives addresses to Services. It is not for concurrent use.
type Allocator struct {
	pools    []*Pool // in the order of automatic allocation
	services map[string]*Service
	given    map[netip.Addr][]string // the Services that have an address, by name
	resting  map[netip.Addr]rest
	lowest   map[*Pool][]netip.Addr // per range: all before it are given
	homes    rangeSet[home]
	names    map[string]*Pool
}

// home is where an address is: the place in the ranges of a pool.
type home struct {
	pool *Pool
	at   int
}

// New makes an Allocator without Services.
func New(pools []Pool) *Allocator {
	a := &Allocator{services: map[string]*Service{}, given: map[netip.Addr][]string{}, resting: map[netip.Addr]rest{}}
	a.SetPools(pools)
	return a
}

// SetPools replaces the pools, which do not overlap. Addresses that were given stay.
func (a *Allocator) SetPools(pools []Pool) {
	a.pools = order(slices.Clone(pools))
	a.lowest, a.names, a.homes = map[*Pool][]netip.Addr{}, map[string]*Pool{}, rangeSet[home]{}
	for _, p := range a.pools {
		a.names[p.Name] = p
		for i, r := range p.Ranges {
			a.lowest[p] = append(a.lowest[p], r.From)
			a.homes.add(r, home{p, i})
		}
	}
}

// Adopt takes over what the status of a Service says. An address that another Service has, and
// may not share, stays with the one whose terms are those recorded, so that a start decides as
// Reconcile would have; of two with the older. The names of the Services that lose an address
// are returned. A Foreign Service takes none away and loses none. A start adopts all Services
// before it reconciles the first. Addresses that the Service had before, and nobody has any more, rest.
func (a *Allocator) Adopt(s *Service, now time.Time) (losers []string) {
	before := a.forget(s.Name)
	defer func() { a.rests(s, before, now) }()
	own := *s
	own.Status, own.kept = nil, s.unchanged()
	a.services[s.Name] = &own
	for _, addr := range s.Status {
		keeps := true
		for _, name := range slices.Clone(a.given[addr]) {
			o := a.services[name]
			switch {
			case own.shares(o) || own.Foreign || o.Foreign:
			case o.precedes(&own):
				keeps, losers = false, append(losers, s.Name)
			default:
				o.Status = slices.DeleteFunc(slices.Clone(o.Status), func(x netip.Addr) bool { return x == addr })
				a.drop(addr, name)
				losers = append(losers, name)
			}
		}
		if keeps {
			own.Status = append(own.Status, addr)
			a.take(addr, s.Name)
		}
	}
	return losers
}

// take notes that a Service has the address.
func (a *Allocator) take(addr netip.Addr, name string) {
	if !slices.Contains(a.given[addr], name) {
		a.given[addr] = append(a.given[addr], name)
	}
	delete(a.resting, addr)
}

// drop notes that a Service has the address no more. It is true if nobody has it.
func (a *Allocator) drop(addr netip.Addr, name string) bool {
	left := slices.DeleteFunc(a.given[addr], func(n string) bool { return n == name })
	if len(left) > 0 {
		a.given[addr] = left
		return false
	}
	delete(a.given, addr)
	if h, ok := a.homes.of(addr); ok && addr.Less(a.lowest[h.pool][h.at]) {
		a.lowest[h.pool][h.at] = addr
	}
	return true
}

// forget removes a Service without rest, and returns the addresses that it had.
func (a *Allocator) forget(name string) []netip.Addr {
	s := a.services[name]
	if s == nil {
		return nil
	}
	for _, addr := range s.Status {
		a.drop(addr, name)
	}
	delete(a.services, name)
	return s.Status
}

// Release is for a Service that is deleted, or is of another type or class now. It
// returns the addresses that nobody has any more; they rest.
func (a *Allocator) Release(name string, now time.Time) []netip.Addr {
	s := a.services[name]
	if s == nil {
		return nil
	}
	return a.rests(s, a.forget(name), now)
}

// Reconcile says which addresses the Service should have, and notes that it has them. The
// Service's Status is that of the API server, which may be older than the last Outcome. A Service whose
// request cannot be met keeps what it has; the reason says why.
func (a *Allocator) Reconcile(s *Service, now time.Time) Outcome {
	var given []netip.Addr // by the last Outcome
	if known := a.services[s.Name]; known != nil {
		given = slices.Clone(known.Status)
	}
	had := s.Status
	if len(had) == 0 {
		had = given
	}
	a.forget(s.Name)
	own := *s
	defer func() { a.rests(&own, append(given, had...), now) }()
	own.Status = nil
	a.services[s.Name] = &own
	var has, lost []netip.Addr
	for _, addr := range had {
		if !a.mayKeep(addr, &own) {
			lost = append(lost, addr)
			continue
		}
		has = append(has, addr)
		a.take(addr, s.Name)
	}
	if text, ok := a.valid(&own, has); ok {
		own.Status = has
		out := Outcome{Addresses: has, Reason: ReasonKept, Text: text}
		if text != "" {
			out.Reason = ReasonOutsideOfPool
		}
		if claims := a.claims(&own); claims != "" {
			out.Reason, out.Text = ReasonClaimed, claims
		}
		return out
	}
	out := a.allocate(&own, now, has, given)
	out.Lost = lost
	if len(out.Addresses) == 0 {
		out.Addresses = has
	}
	if out.Reason == ReasonAddressInUse && len(lost) > 0 {
		out.Reason = ReasonConflict
	}
	for _, addr := range has {
		if !slices.Contains(out.Addresses, addr) {
			a.drop(addr, s.Name)
		}
	}
	own.Status = slices.Clone(out.Addresses)
	for _, addr := range out.Addresses {
		a.take(addr, s.Name)
	}
	return out
}

// claims says which addresses of the Service are in the status of a Foreign one too, "" if none are.
func (a *Allocator) claims(s *Service) string {
	for _, addr := range s.Status {
		for _, name := range a.given[addr] {
			if a.services[name].Foreign {
				return fmt.Sprintf("%v is in the status of %s too, which another controller serves", addr, a.services[name].nameFor(s))
			}
		}
	}
	return ""
}

// Claimed are the Services whose addresses are in the status of a Foreign one too.
func (a *Allocator) Claimed(foreign string) (out []string) {
	s := a.services[foreign]
	if s == nil || !s.Foreign {
		return nil
	}
	for _, addr := range s.Status {
		for _, name := range a.given[addr] {
			if !a.services[name].Foreign && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// valid reports whether the Service may keep the addresses: it has those that it asks for, or
// asks for none, and has the families that it needs. An address that is in no pool is kept;
// the text says so.
func (a *Allocator) valid(s *Service, has []netip.Addr) (text string, ok bool) {
	switch {
	case len(has) == 0, len(s.Addresses) == 0 && !s.complete(has):
		return "", false
	case len(s.Addresses) > 0 && (!sameSet(s.Addresses, has) || !s.wants(has)):
		return "", false
	}
	for _, addr := range has {
		p := a.poolOf(addr)
		if s.PoolName != "" && a.names[s.PoolName] != nil && (p == nil || p.Name != s.PoolName) {
			return "", false
		}
		if p == nil {
			text = fmt.Sprintf("%v is in no pool: it stays, and is not given again", addr)
		}
	}
	return text, true
}

func sameSet(a, b []netip.Addr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}

func (a *Allocator) poolOf(addr netip.Addr) *Pool {
	h, _ := a.homes.of(addr)
	return h.pool
}

// offers reports whether the pool gives the address to Services.
func (a *Allocator) offers(p *Pool, addr netip.Addr) bool {
	return a.poolOf(addr) == p && !p.avoids(addr)
}
