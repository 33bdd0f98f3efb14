package discovery

import (
	"net/netip"
)

// nameIndex has what concerns the slices of names of a Store: there are few.
type nameIndex struct {
	slices map[objectName]*sliceData
	// byAddr leads from the addresses of names to the Services that have them.
	byAddr addrIndex
	// frontends counts the Services that have an address.
	frontends map[netip.Addr]int
}

// followNames has the names of a slice resolved, and takes the answers that are there already.
func (s *Store) followNames(d *sliceData) {
	if d.named == nil {
		return
	}
	if s.named.slices == nil {
		s.named.slices, s.named.byAddr = map[objectName]*sliceData{}, addrIndex{}
	}
	s.named.slices[d.named.id] = d
	s.opts.Names.Follow(d.named.id, d.named.questions)
	d.named.take(s.opts.Names)
	d.named.stale = true
}

// forgetNames ends that.
func (s *Store) forgetNames(d *sliceData) {
	if d.named == nil {
		return
	}
	if s.named.slices[d.named.id] == d { // no other version has followed
		delete(s.named.slices, d.named.id)
		s.opts.Names.Follow(d.named.id, nil)
	}
	s.useNamed(d.svc, d.named.made, -1)
}

// useNamed tells the indexes that slices made of answers now count for svc (by is 1) or no longer do (by is -1).
func (s *Store) useNamed(svc *service, list []*sliceData, by int) {
	for _, made := range list {
		s.nodes.addUse(svc, made, by)
		s.stats.NamedEndpoints += by * len(made.endpoints)
		for i := range made.endpoints {
			s.named.byAddr.use(made.endpoints[i].addr, svc, by)
		}
	}
}

// NamesChanged takes the answers of Options.Names again, for the next Flush.
func (s *Store) NamesChanged() {
	for _, d := range s.named.slices {
		if d.named.take(s.opts.Names) {
			d.named.stale = true
			s.queue(d.svc)
		}
	}
}

// Settle waits for the first answers of Options.Names. It may be called without the lock of the Store. If it
// returns true, NamesChanged is to be called before the next Flush.
func (o *Options) Settle() (starts bool) {
	return o.Names != nil && o.Names.Settle()
}

// frontendsOf follows the addresses of a Service: by is 1 for those that it has now, -1 for former ones.
func (s *Store) frontendsOf(sp *spec, by int) {
	if sp == nil || s.opts.Names == nil {
		return
	}
	if s.named.frontends == nil {
		s.named.frontends = map[netip.Addr]int{}
	}
	for _, list := range [][]netip.Addr{sp.svc.ClusterIPs, sp.svc.LoadBalancerIPs, sp.svc.ExternalIPs} {
		for _, a := range list {
			if s.named.frontends[a] += by; s.named.frontends[a] == 0 {
				delete(s.named.frontends, a)
			}
			if p := s.named.byAddr[a]; p != nil {
				p.each(s.queue)
			}
		}
	}
}

// refusesNamed says why no name may have an address, "" if it may: who writes a name in the DNS is not
// who writes the slice.
func (s *Store) refusesNamed(a netip.Addr) string {
	switch {
	case s.nodes.byAddr.owner(a) != nil:
		return "it is the address of a Node"
	case s.named.frontends[a] > 0:
		return "it is the address of a Service"
	}
	return ""
}
