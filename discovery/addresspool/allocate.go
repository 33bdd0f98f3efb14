package addresspool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// allocate looks for addresses of a Service that has not all. It has some: they stay unless it asks
// for another address or pool. given are those of the last Outcome, which are preferred.
func (a *Allocator) allocate(s *Service, now time.Time, has, given []netip.Addr) Outcome {
	if !s.IPv4 && !s.IPv6 {
		return Outcome{Reason: ReasonRequest, Text: "the Service has no IP family"}
	}
	if len(s.Addresses) > 0 {
		return a.requested(s, now)
	}
	if kept := s.keeps(has); s.PoolName == "" && s.complete(kept) {
		return Outcome{Addresses: kept, Reason: ReasonAllocated} // it has given up a family
	}
	pools, refusal := a.candidates(s)
	if refusal.Reason != "" {
		return refusal
	}
	prefer := append(slices.Clone(has), given...)
	preferred := map[*Pool]bool{}
	for _, addr := range prefer {
		preferred[a.poolOf(addr)] = true
	}
	slices.SortStableFunc(pools, func(x, y *Pool) int { return count(preferred[y]) - count(preferred[x]) })
	out := a.fromPools(s, pools, now, has, prefer)
	if out.Reason != ReasonExhausted || !s.Prefers {
		return out
	}
	one := *s
	if one.IPv4 = s.First4; len(has) > 0 {
		one.IPv4 = has[0].Is4()
	}
	for range 2 {
		one.IPv6 = !one.IPv4
		if single := a.fromPools(&one, pools, now, has, prefer); single.Reason == ReasonAllocated {
			return single
		}
		one.IPv4 = !one.IPv4
	}
	return out
}

// fromPools are addresses of the first pool that has one of each family.
func (a *Allocator) fromPools(s *Service, pools []*Pool, now time.Time, has, prefer []netip.Addr) Outcome {
	var retry time.Time
	for _, p := range pools {
		var out []netip.Addr
		complete := true
		for _, want4 := range families(s) {
			if addr := a.stays(p, s, want4, has); addr.IsValid() {
				if home := a.poolOf(addr); home != nil && home != p {
					complete = false // the families are of the same pool
					break
				}
				out = append(out, addr)
				continue
			}
			addr, rests := a.free(p, s, want4, now, prefer)
			if !addr.IsValid() {
				complete = false
				if !rests.IsZero() && (retry.IsZero() || rests.Before(retry)) {
					retry = rests
				}
				break
			}
			out = append(out, addr)
		}
		if complete {
			return Outcome{Addresses: out, Reason: ReasonAllocated}
		}
	}
	names := make([]string, len(pools))
	for i, p := range pools {
		names[i] = p.Name
	}
	text := fmt.Sprintf("no free %s in pool %s", familyText(s), strings.Join(names, ", "))
	return Outcome{Reason: ReasonExhausted, Text: text, Retry: retry}
}

// keeps is the first address of each family that the Service needs.
func (s *Service) keeps(has []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, want4 := range families(s) {
		if i := slices.IndexFunc(has, func(addr netip.Addr) bool { return addr.Is4() == want4 }); i >= 0 {
			out = append(out, has[i])
		}
	}
	return out
}

// stays is the address of a family that the Service has and keeps if the pool serves it. There is none
// if the Service asks for a pool that the address is not of.
func (a *Allocator) stays(p *Pool, s *Service, want4 bool, has []netip.Addr) netip.Addr {
	for _, addr := range has {
		if addr.Is4() == want4 && (s.PoolName == "" || a.poolOf(addr) == p) {
			return addr
		}
	}
	return netip.Addr{}
}

// families are true for IPv4, false for IPv6.
func families(s *Service) []bool {
	var out []bool
	if s.IPv4 {
		out = append(out, true)
	}
	if s.IPv6 {
		out = append(out, false)
	}
	return out
}

func familyText(s *Service) string {
	switch {
	case s.IPv4 && s.IPv6:
		return "pair of an IPv4 and an IPv6 address"
	case s.IPv4:
		return "IPv4 address"
	}
	return "IPv6 address"
}

// requested are the addresses that the Service asks for, if it may have them.
func (a *Allocator) requested(s *Service, now time.Time) Outcome {
	if !s.wants(s.Addresses) {
		return Outcome{Reason: ReasonRequest, Text: fmt.Sprintf("asks for %s, and needs an %s", list(s.Addresses), familyText(s))}
	}
	for _, addr := range s.Addresses {
		p := a.poolOf(addr)
		switch {
		case p == nil:
			return Outcome{Reason: ReasonNotInPool, Text: fmt.Sprintf("asks for %v, which is in no pool", addr)}
		case s.PoolName != "" && p.Name != s.PoolName:
			return Outcome{Reason: ReasonNotInPool, Text: fmt.Sprintf("asks for %v of pool %s, which is in pool %s", addr, s.PoolName, p.Name)}
		case p.avoids(addr):
			return Outcome{Reason: ReasonNotInPool, Text: fmt.Sprintf("asks for %v, which pool %s leaves out (avoidBuggyIPs)", addr, p.Name)}
		case !p.admits(s):
			return Outcome{Reason: ReasonNoPool, Text: fmt.Sprintf("asks for %v: the serviceAllocation of pool %s does not match the Service", addr, p.Name)}
		case !a.mayTake(addr, s):
			return Outcome{Reason: ReasonAddressInUse, Text: fmt.Sprintf("asks for %v, which %s", addr, a.inUse(addr, s))}
		}
		if until := a.restsFor(addr, s, now); !until.IsZero() {
			return Outcome{Reason: ReasonAddressInUse, Retry: until, Text: fmt.Sprintf(
				"asks for %v, which a Service of another namespace had: it rests until %s", addr, until.UTC().Format(time.RFC3339))}
		}
	}
	return Outcome{Addresses: slices.Clone(s.Addresses), Reason: ReasonAllocated}
}

func list(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

// candidates are the pools for the Service, in order, or the reason why there is none.
func (a *Allocator) candidates(s *Service) ([]*Pool, Outcome) {
	if s.PoolName != "" {
		p := a.names[s.PoolName]
		switch {
		case p == nil:
			return nil, Outcome{Reason: ReasonUnknownPool, Text: fmt.Sprintf("asks for pool %s, which is not there", s.PoolName)}
		case !p.admits(s):
			return nil, Outcome{Reason: ReasonNoPool, Text: fmt.Sprintf("asks for pool %s, whose serviceAllocation does not match the Service", p.Name)}
		}
		return []*Pool{p}, Outcome{}
	}
	var out []*Pool
	for _, p := range a.pools {
		if p.AutoAssign && p.admits(s) {
			out = append(out, p)
		}
	}
	if out == nil {
		return nil, Outcome{Reason: ReasonNoPool, Text: "no pool with autoAssign is for the Service"}
	}
	return out, Outcome{}
}

// mayTake reports whether all that have the address share it with the Service.
func (a *Allocator) mayTake(addr netip.Addr, s *Service) bool {
	return !slices.ContainsFunc(a.given[addr], func(name string) bool {
		return name != s.Name && !s.shares(a.services[name])
	})
}

// mayKeep is mayTake of an address that the Service has: the status of another controller's
// Service does not take it away.
func (a *Allocator) mayKeep(addr netip.Addr, s *Service) bool {
	return !slices.ContainsFunc(a.given[addr], func(name string) bool {
		o := a.services[name]
		return name != s.Name && !o.Foreign && !s.shares(o)
	})
}

// free is an address of the pool for the Service: a preferred one, one that it shares, else the
// lowest that nobody has. Without any it says when the first resting address is free.
func (a *Allocator) free(p *Pool, s *Service, want4 bool, now time.Time, prefer []netip.Addr) (netip.Addr, time.Time) {
	for _, addr := range prefer {
		if addr.Is4() == want4 && a.offers(p, addr) && a.mayTake(addr, s) {
			return addr, time.Time{}
		}
	}
	if addr, ok := a.shared(p, s, want4); ok {
		return addr, time.Time{}
	}
	var rests time.Time
	for i, r := range p.Ranges {
		if r.From.Is4() != want4 {
			continue
		}
		packed := true // all before addr are given
		for addr := a.lowest[p][i]; r.Contains(addr); addr = addr.Next() {
			if len(a.given[addr]) > 0 || p.avoids(addr) {
				continue
			}
			if packed {
				a.lowest[p][i], packed = addr, false
			}
			r, resting := a.resting[addr]
			if !resting || !r.until.After(now) {
				return addr, time.Time{}
			}
			if rests.IsZero() || r.until.Before(rests) {
				rests = r.until
			}
		}
	}
	return netip.Addr{}, rests
}

// shared is an address that Services with the same sharing key have.
func (a *Allocator) shared(p *Pool, s *Service, want4 bool) (netip.Addr, bool) {
	if s.SharingKey == "" {
		return netip.Addr{}, false
	}
	var best netip.Addr
	for _, o := range a.services {
		if o.Name == s.Name || o.SharingKey != s.SharingKey {
			continue
		}
		for _, addr := range o.Status {
			if addr.Is4() == want4 && a.offers(p, addr) && a.mayTake(addr, s) && (!best.IsValid() || addr.Less(best)) {
				best = addr
			}
		}
	}
	return best, best.IsValid()
}

// Usage is the addresses of a pool, of a family.
type Usage struct {
	Pool     string
	Family   string // IPv4 or IPv6
	Assigned int
	Resting  int
	// Available is without those that rest. IPv6 pools can be larger than any integer.
	Available float64
}

// Usage is the use of all pools at a time, ordered by pool and family.
func (a *Allocator) Usage(now time.Time) []Usage {
	type part struct {
		pool *Pool
		four bool
	}
	assigned, resting := map[part]int{}, map[part]int{}
	note := func(in map[part]int, addr netip.Addr) {
		if p := a.poolOf(addr); p != nil && !p.avoids(addr) {
			in[part{p, addr.Is4()}]++
		}
	}
	for addr := range a.given {
		note(assigned, addr)
	}
	for addr, r := range a.resting {
		if r.until.After(now) {
			note(resting, addr)
		}
	}
	var out []Usage
	for _, p := range a.pools {
		for _, want4 := range []bool{true, false} {
			u := Usage{Pool: p.Name, Family: "IPv6", Assigned: assigned[part{p, want4}], Resting: resting[part{p, want4}]}
			if want4 {
				u.Family = "IPv4"
			}
			if total := p.size(want4); total > 0 {
				u.Available = total - float64(u.Assigned+u.Resting)
				out = append(out, u)
			}
		}
	}
	slices.SortStableFunc(out, func(x, y Usage) int { return strings.Compare(x.Pool, y.Pool) })
	return out
}

// size is how many addresses of a family the pool gives.
func (p *Pool) size(want4 bool) (total float64) {
	for _, r := range p.Ranges {
		if r.From.Is4() != want4 {
			continue
		}
		total += r.size()
		if p.AvoidBuggyIPs {
			total -= buggyIn(r)
		}
	}
	return total
}
