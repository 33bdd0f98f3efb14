package frontends

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/aligned"
	"github.com/weirlb/weir/lb/table"
)

// settleTime is the time after which no worker has a packet of a frontend that was withdrawn.
const settleTime = 5 * time.Second

// Run ends once a second what is due, until ctx ends: a look at all flows holds nothing else up. mu
// guards all other methods. While a worker is stuck nothing ends, since it may hold a flow.
func (s *Set) Run(ctx context.Context, mu sync.Locker, stuck func() bool) {
	tick := aligned.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.settle(ctx, mu, stuck)
		}
	}
}

func (s *Set) settle(ctx context.Context, mu sync.Locker, stuck func() bool) {
	mu.Lock()
	s.changeAgain()
	mu.Unlock()
	if !stuck() {
		s.settleWithdrawals(ctx, mu)
		s.settleFormer(ctx, mu)
	}
}

// settleWithdrawals has the flows of frontends that are gone wait for a packet of the client
// that reaches the packet loop. Then the other flows of their Services are the kernel's
// again.
func (s *Set) settleWithdrawals(ctx context.Context, mu sync.Locker) {
	mu.Lock()
	services := s.withdrawn.services
	if len(services) == 0 || time.Since(s.withdrawn.since) < settleTime {
		mu.Unlock()
		return
	}
	s.withdrawn.services = map[uint32]bool{}
	snapshot := s.cfg.Tables.Load()
	mu.Unlock()

	s.cfg.Flows.Range(func(ref conntrack.Ref) bool {
		if services[atomic.LoadUint32(&s.cfg.Flows.Conn(ref).ServiceID)] {
			if k := table.DestinationKey(&s.cfg.Flows.Entry(ref).Key.W); snapshot.Lookup(&k) == nil {
				s.cfg.Flows.Unsettle(ref)
			}
		}
		return ctx.Err() == nil
	})

	mu.Lock()
	defer mu.Unlock()
	for n := range services {
		if ctx.Err() == nil && !s.withdrawn.services[n] { // it has lost no other meanwhile
			s.cfg.ServiceRemoved(n, false)
		}
	}
}

// settleFormer ends the former frontends that have no connection left, and forgets the UDP flows of
// frontends that are gone.
func (s *Set) settleFormer(ctx context.Context, mu sync.Locker) {
	mu.Lock()
	began := time.Now()
	if began.Before(s.former.look) {
		mu.Unlock()
		return
	}
	due, datagrams := s.former.due(began)
	for _, x := range due {
		a := x.entry.AddrPort.Addr()
		x.unrouted = !s.cfg.Routed(a) && !s.cfg.Router.Local(a)
	}
	if len(due)+len(datagrams) == 0 {
		s.unroute(began)
		mu.Unlock()
		return
	}
	mu.Unlock()

	used, whole := s.look(ctx, due, datagrams)

	mu.Lock()
	defer mu.Unlock()
	if whole {
		s.unroute(began)
	}
	s.former.look = began.Add(max(lookFormerEvery, lookFormerShare*time.Since(began)))
	var gone []*table.FrontendEntry
	for k, x := range due {
		if whole && !used[k] && s.former.byKey[k] == x { // no Service has it again
			s.former.remove(k)
			gone = append(gone, &x.entry)
		}
	}
	if err := s.unsteer(gone); err != nil {
		s.cfg.Log.Warn("frontends without a connection", "err", err)
	}
}

// unroute removes the routes of frontends that were due when a look began.
func (s *Set) unroute(began time.Time) {
	const margin = time.Second // a former frontend begins a moment after its route is left
	if err := s.cfg.Unroute(began.Add(-settleTime - margin)); err != nil {
		s.cfg.Log.Warn("routes of addresses without a frontend", "err", err)
	}
}

// look returns the frontends of due that have connections, and deletes the flows of datagrams.
// Connections of the node's own clients that are about to lose their route are ended: their packets
// will go elsewhere, but the next packet of the endpoint tells both sides. whole is false where ctx has
// ended meanwhile.
func (s *Set) look(ctx context.Context, due map[table.Key]*formerFrontend, datagrams map[table.Key]bool) (used map[table.Key]bool, whole bool) {
	routes := s.cfg.Router.Load()
	used = map[table.Key]bool{}
	rangesDue, ofDatagrams := table.NewRanges(maps.Keys(due)), table.NewRanges(maps.Keys(datagrams))
	s.cfg.Flows.Range(func(r conntrack.Ref) bool {
		key := &s.cfg.Flows.Entry(r).Key
		k := table.DestinationKey(&key.W)
		former := k
		x := due[k]
		if x == nil {
			former = rangesDue.Find(k)
			x = due[former]
		}
		switch {
		case x != nil:
			used[former] = true
			if !x.unrouted || s.cfg.Flows.Conn(r).Aborted() {
				break
			}
			if routes.Local(key.Src().Addr()) && s.cfg.Tables.Load().Lookup(&k) == nil { // now: its route stays
				s.cfg.Flows.Abort(r, s.cfg.Flows.Tick())
			}
		case datagrams[ofDatagrams.Find(k)] && s.cfg.Tables.Load().Lookup(&k) == nil: // now: a Service that has it again makes flows
			s.cfg.Flows.Delete(r)
		}
		return ctx.Err() == nil
	})
	return used, ctx.Err() == nil
}
