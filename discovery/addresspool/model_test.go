package addresspool

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is the slow, obvious allocator: the cluster's statuses, and every rule by looking at all of
// them.
type model struct {
	pools   []Pool
	status  map[string]*Service // Status is what the API server has
	resting map[netip.Addr]rest
	now     time.Time
}

func (m *model) haveOther(addr netip.Addr, s *Service) bool {
	for _, o := range m.status {
		if o.Name != s.Name && slices.Contains(o.Status, addr) && !o.shares(s) {
			return true
		}
	}
	return false
}

// all are the addresses of a range.
func all(r Range) []netip.Addr {
	var out []netip.Addr
	for a := r.From; r.Contains(a); a = a.Next() {
		out = append(out, a)
	}
	return out
}

// pick is the address of a family that a Service without any gets of a pool.
func (m *model) pick(p *Pool, s *Service, want4 bool) netip.Addr {
	var shared, free netip.Addr
	for _, r := range p.Ranges {
		for _, a := range all(r) {
			if a.Is4() != want4 || !p.offers(a) || m.haveOther(a, s) {
				continue
			}
			used := false
			for _, o := range m.status {
				used = used || o.Name != s.Name && slices.Contains(o.Status, a)
			}
			if used && (!shared.IsValid() || a.Less(shared)) {
				shared = a
			}
			if r, rests := m.resting[a]; !used && !free.IsValid() && (!rests || !r.until.After(m.now)) {
				free = a
			}
		}
	}
	if shared.IsValid() {
		return shared
	}
	return free
}

// expect is the addresses that a Service should have.
func (m *model) expect(s *Service) []netip.Addr {
	if s.wants(s.Status) && (len(s.Addresses) == 0 || sameSet(s.Addresses, s.Status)) && !slices.ContainsFunc(s.Status, func(a netip.Addr) bool { return m.haveOther(a, s) }) {
		return s.Status
	}
	if len(s.Addresses) > 0 {
		for _, a := range s.Addresses {
			ok := false
			for i := range m.pools {
				ok = ok || m.pools[i].offers(a) && m.pools[i].admits(s)
			}
			if r := m.resting[a]; !ok || m.haveOther(a, s) || r.until.After(m.now) && r.namespace != s.Namespace {
				return s.Status // it keeps what it has
			}
		}
		return s.Addresses
	}
	if len(s.Status) > 0 {
		return s.Status
	}
	for _, p := range order(m.pools) {
		if !p.AutoAssign || !p.admits(s) {
			continue
		}
		var out []netip.Addr
		for _, want4 := range families(s) {
			if a := m.pick(p, s, want4); a.IsValid() {
				out = append(out, a)
			}
		}
		if s.wants(out) {
			return out
		}
	}
	return nil
}

// testPools are small, so that they run out.
func testPools(t *rapid.T, generation int) []Pool {
	var out []Pool
	for i := range rapid.IntRange(0, 3).Draw(t, "pools") {
		p := Pool{Name: fmt.Sprintf("pool-%d", i), AutoAssign: rapid.IntRange(0, 3).Draw(t, "auto") > 0, AvoidBuggyIPs: rapid.Bool().Draw(t, "avoid")}
		first := netip.AddrFrom4([4]byte{192, 0, byte(i), byte(rapid.SampledFrom([]int{0, 1, 253}).Draw(t, "first"))})
		last := first
		for range rapid.IntRange(0, 3).Draw(t, "more") {
			if next := last.Next(); next.As4()[2] == first.As4()[2] {
				last = next
			}
		}
		p.Ranges = []Range{{first, last}}
		if rapid.Bool().Draw(t, "ipv6") {
			p.Ranges = append(p.Ranges, Range{netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::1", i)), netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::3", i))})
		}
		if rapid.IntRange(0, 3).Draw(t, "allocation") == 0 {
			p.Allocation = &Allocation{Priority: rapid.IntRange(0, 2).Draw(t, "priority"), Namespaces: []string{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace")}}
		}
		out = append(out, p)
	}
	return out
}

// The allocator gives what the slow model gives, over changes of Services and pools, time, and
// restarts that know nothing but the statuses.
func TestAllocatorGivesWhatTheModelGives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{pools: testPools(t, 0), status: map[string]*Service{}, resting: map[netip.Addr]rest{}, now: time.Unix(1e9, 0)}
		a := New(m.pools)
		for step := range 30 {
			m.now = m.now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 30, 61}).Draw(t, "seconds")) * time.Second)
			name := fmt.Sprintf("%s/s%d", rapid.SampledFrom([]string{"a", "b"}).Draw(t, "ns"), rapid.IntRange(0, 5).Draw(t, "service"))
			switch rapid.IntRange(0, 7).Draw(t, "action") {
			case 0: // deleted
				if s := m.status[name]; s != nil {
					delete(m.status, name)
					for _, addr := range s.Status {
						if !slices.ContainsFunc(a.given[addr], func(n string) bool { return n != name }) {
							m.resting[addr] = rest{m.now.Add(RestTime), s.Namespace}
						}
					}
				}
				a.Release(name, m.now)
			case 1: // the controller is killed and starts again
				record := a.Rests(m.now)
				if a = New(m.pools); rapid.Bool().Draw(t, "recorded") {
					if err := a.TakeRests(record, m.now); err != nil {
						t.Fatal(err)
					}
				} else {
					clear(m.resting)
				}
				for _, s := range m.status {
					if losers := a.Adopt(s, m.now); losers != nil {
						t.Fatalf("step %d: a conflict of %v", step, losers)
					}
				}
			case 2: // pools are changed
				m.pools = testPools(t, step)
				a.SetPools(m.pools)
			default: // a Service is made or reconciled
				s := m.status[name]
				if s == nil {
					s = &Service{Name: name, Namespace: name[:1], Created: int64(step)}
					family := rapid.IntRange(0, 2).Draw(t, "family")
					s.IPv4, s.IPv6 = family != 1, family != 0
					if rapid.IntRange(0, 2).Draw(t, "shares") == 0 {
						s.SharingKey, s.Ports = "key", []Port{{Protocol: "TCP", Port: uint16(rapid.IntRange(80, 81).Draw(t, "port"))}}
					}
					if rapid.IntRange(0, 3).Draw(t, "asks") == 0 && family == 0 {
						s.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(rapid.IntRange(0, 2).Draw(t, "net")), byte(rapid.IntRange(0, 3).Draw(t, "host"))})}
					}
					m.status[name] = s
				}
				m.reconcile(t, a, s, step)
			}
			m.check(t)
		}
	})
}

func (m *model) reconcile(t *rapid.T, a *Allocator, s *Service, step int) {
	want, had := m.expect(s), s.Status
	out := a.Reconcile(s, m.now)
	if !slices.Equal(out.Addresses, want) {
		t.Fatalf("step %d: %+v: got %v (%s %s), want %v", step, *s, out.Addresses, out.Reason, out.Text, want)
	}
	if len(had) > 0 && !slices.Equal(had, out.Addresses) {
		t.Fatalf("step %d: %s moved from %v to %v", step, s.Name, had, out.Addresses)
	}
	s.Status = slices.Clone(out.Addresses)
	for _, addr := range s.Status {
		delete(m.resting, addr)
	}
}

// check looks for an address that two Services have which may not share.
func (m *model) check(t *rapid.T) {
	for _, s := range m.status {
		for _, addr := range s.Status {
			if m.haveOther(addr, s) {
				t.Fatalf("%v is given twice, to %s too", addr, s.Name)
			}
		}
	}
}

func (p *Pool) offers(a netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r Range) bool { return r.Contains(a) }) && !p.avoids(a)
}
