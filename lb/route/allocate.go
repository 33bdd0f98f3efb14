package route

import (
	"math/rand/v2"
	"slices"
	"time"
)

// The next hops that have an adjacency. A sender of packets from forged addresses of the
// link makes a next hop per address, and the kernel sees none of them (an IPv6 /64 has
// enough forever). So that they take nothing from others:
//
//   - next hops that have never answered have a quarter of the numbers, and displace
//     each other, the oldest first: a host that exists answers in time;
//   - those that have answered are given up when idle, sooner when numbers are few;
//   - endpoints and gateways have a sixteenth to themselves, and displace the first.
//
// Flows keep the numbers of next hops that have answered, and no others: the number of a
// guest is reused at once.
const (
	unprovenShare = 4  // of all numbers, for next hops that have never answered
	reservedShare = 16 // for endpoints and gateways alone
)

// idleWhenScarce is how long a next hop that has answered stays unused when numbers are few.
const idleWhenScarce = 10 * time.Second

// A request for a client's next hop costs the kernel and the watcher some 50 us: at most
// so many new ones per second are made, and at once.
const (
	unprovenPerSecond = 2000
	unprovenBurst     = 256
)

// takeToken takes a token for a request of a client's next hop.
func (x *nextHops) takeToken(now time.Time) bool {
	x.tokens = min(unprovenBurst, x.tokens+now.Sub(x.filled).Seconds()*unprovenPerSecond)
	x.filled = now
	if x.tokens < 1 {
		return false
	}
	x.tokens--
	return true
}

// probeRetryDelay is the delay of the next probe on workers' requests when the kernel has
// refused a probe (the neighbor table may be full).
const probeRetryDelay = 10 * time.Millisecond

// request creates the adjacency for a next hop, or probes it again if needed.
func (x *nextHops) request(k request, now time.Time) {
	if h := x.byKey[k.hopKey]; h != nil {
		x.setNeeded(h, k.needed)
		s := x.adj[h.number].State()
		ask := s == Unresolved || s == Failed && k.needed
		if ask && !h.permanent && now.Sub(h.refusedAt) >= probeRetryDelay {
			h.usedAt = now
			x.probe(h, now)
		}
		return
	}
	iface, ok := x.ports[int(k.port)-1]
	if !ok || !k.nextHop().IsValid() || k.nextHop().IsMulticast() {
		x.counts.refused.Add(1)
		return
	}
	if !k.needed && !x.takeToken(now) {
		x.counts.full.Add(1)
		return
	}
	h := x.create(k, now)
	if h == nil {
		return
	}
	h.neighbor = neighborKey{iface, k.nextHop()}
	x.byNeighbor[h.neighbor] = append(x.byNeighbor[h.neighbor], h)
	n, known := x.neigh[h.neighbor]
	// A neighbor that the kernel kept for an earlier process was that process's too.
	h.created = !known || n.managedByWeir()
	x.setFromNeighbor(h)
	x.probe(h, now)
	x.index.Load().insert(k.hopKey, h.number)
}

// setNeeded notes that an endpoint or a gateway turned out to be at a next hop.
func (x *nextHops) setNeeded(h *nextHop, needed bool) {
	if !needed || h.needed {
		return
	}
	if h.unproven() {
		x.numUnproven--
	}
	h.needed = true
	x.adj[h.number].needed.Store(true)
}

// setAnswered notes that a next hop exists.
func (x *nextHops) setAnswered(h *nextHop) {
	if h.unproven() {
		x.numUnproven--
	}
	h.answered = true
}

// unproven reports whether a next hop may not exist.
func (h *nextHop) unproven() bool { return !h.needed && !h.answered && !h.permanent }

// create takes a number and fills in the adjacency's words, but the MAC.
func (x *nextHops) create(k request, now time.Time) *nextHop {
	n, ok := x.allocate(k.needed, now)
	if !ok {
		x.counts.full.Add(1)
		x.swept = time.Time{} // look for idle ones at the next tick
		return nil
	}
	a := &x.adj[n]
	a.hop[0].Store(k.w0)
	a.hop[1].Store(k.w1)
	a.dst.Store(uint64(Unresolved) << 48)
	a.used.Store(0)
	a.needed.Store(k.needed)
	a.silent.Store(false)
	a.port.Store(k.port)
	h := &nextHop{key: k.hopKey, number: n, needed: k.needed, usedAt: now}
	x.byKey[k.hopKey] = h
	if h.unproven() {
		x.unproven = append(x.unproven, h)
		x.numUnproven++
	}
	x.setPort(a, k.hopKey)
	return h
}

// allocate takes a free number, or the oldest guest's; ok is false if there is neither.
func (x *nextHops) allocate(needed bool, now time.Time) (uint32, bool) {
	for len(x.quarantined) > 0 && now.After(x.quarantined[0].until) {
		x.free = append(x.free, x.quarantined[0].n)
		x.quarantined = x.quarantined[1:]
	}
	least := 0
	if !needed {
		least = x.limit / reservedShare
	}
	if len(x.free) <= least || !needed && x.numUnproven >= max(1, x.limit/unprovenShare) {
		x.displaceUnproven()
	}
	if len(x.free) <= least {
		return 0, false
	}
	n := x.free[len(x.free)-1]
	x.free = x.free[:len(x.free)-1]
	return n, true
}

// displaceUnproven gives the oldest guest up, if there is any.
func (x *nextHops) displaceUnproven() {
	for len(x.unproven) > 0 {
		h := x.unproven[0]
		x.unproven = x.unproven[1:]
		if h.unproven() && x.byKey[h.key] == h {
			x.counts.displaced.Add(1)
			x.release([]*nextHop{h})
			return
		}
	}
}

// expireIdle frees the adjacencies that no worker has used for a while, those
// that lead nowhere sooner, and clients' sooner when few numbers are left.
func (x *nextHops) expireIdle(now time.Time) {
	few := len(x.free) < x.limit/8
	var unused []*nextHop
	for _, h := range x.byKey {
		limit := x.idleAfter
		if x.adj[h.number].State() != Valid {
			limit = x.idleAfter / 10
		}
		if few && !h.needed {
			limit = min(limit, idleWhenScarce)
		}
		if !h.permanent && now.Sub(h.usedAt) > limit {
			unused = append(unused, h)
		}
	}
	x.release(unused)
	x.unproven = slices.DeleteFunc(x.unproven, func(h *nextHop) bool { return !h.unproven() || x.byKey[h.key] != h })
}

// release frees adjacencies. A new stamp makes flows with such an adjacency look it up
// again; their other adjacencies stay valid.
func (x *nextHops) release(hs []*nextHop) {
	if len(hs) == 0 {
		return
	}
	now := time.Now()
	index := x.index.Load()
	for _, h := range hs {
		index.remove(h.key, h.number)
		if err := x.releaseNeighbor(h); err != nil {
			x.log.Debug("release a neighbor", "address", h.neighbor.addr, "err", err)
		}
		delete(x.byKey, h.key)
		x.forgetNeighbor(h)
		a := &x.adj[h.number]
		a.dst.Store(uint64(Unresolved) << 48)
		a.port.Store(0)
		if h.unproven() {
			x.numUnproven--
			x.free = append(x.free, h.number)
			continue
		}
		a.restamp()
		x.quarantined = append(x.quarantined, quarantinedNumber{h.number, now.Add(quarantineTime)})
	}
	x.counts.released.Add(uint64(len(hs)))
	if index.tombs > len(index.slots)/4 {
		x.reindex()
	}
}

// firstStamps gives each adjacency a stamp that no word has: the flow table may hold words
// of an earlier process, so that a random number begins the stamps of each process.
func (x *nextHops) firstStamps() {
	x.adj[0].stamp.Store(noStamp)
	first := 1 + rand.Uint32N(noStamp-1)
	for i := range x.adj[1:] {
		x.adj[1+i].stamp.Store(first)
	}
}

// noStamp is the stamp of number 0, which no word has.
const noStamp = ^uint32(0)

// restamp gives an adjacency another stamp.
func (a *Adjacency) restamp() {
	n := a.stamp.Load() + 1
	if n == noStamp {
		n = 1 // 0 is that of words that are not valid
	}
	a.stamp.Store(n)
}
