package route

import (
	"maps"
	"net/netip"
	"slices"
)

// Neighbor is an adjacency for a reader.
type Neighbor struct {
	Port    int
	NextHop netip.Addr
	MAC     [6]byte // zero until resolved
	State   State
}

// Neighbors lists the adjacencies, by port and address.
func (w *Watcher) Neighbors() []Neighbor {
	var out []Neighbor
	for i := range w.nextHops.adj {
		a := &w.nextHops.adj[i]
		hop := a.NextHop()
		if !hop.IsValid() {
			continue
		}
		mac, state := a.Dst()
		n := Neighbor{Port: int(a.port.Load()) - 1, NextHop: hop, State: state}
		for j := range n.MAC {
			n.MAC[j] = byte(mac >> (8 * j))
		}
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b Neighbor) int {
		if a.Port != b.Port {
			return a.Port - b.Port
		}
		return a.NextHop.Compare(b.NextHop)
	})
	return out
}

// Sources lists every address that some path out of an attached interface has
// as its SNAT source.
func (w *Watcher) Sources() []netip.Addr {
	seen := map[netip.Addr]bool{}
	for _, routes := range w.Load().tables() {
		for _, e := range routes.All() {
			for i := range e.paths {
				if p := &e.paths[i]; p.Kind == Attached && p.Source.IsValid() {
					seen[p.Source] = true
				}
			}
		}
	}
	return slices.SortedFunc(maps.Keys(seen), netip.Addr.Compare)
}

// Stats are totals since New.
type Stats struct {
	// Readings of the kernel's tables; Interrupted by a change meanwhile and
	// done again; Lost counts times that notifications were lost.
	Readings, Interrupted, Lost uint64
	// Probes counts requests to the kernel to resolve a neighbor.
	Probes, ProbeErrors uint64
	// Refused requests of workers: for a port that is not attached. Full: no
	// adjacency was free. RingFull: a worker's ring was.
	Refused, Full, RingFull uint64
	// Released adjacencies: they were unused, or displaced by others. Displaced are those
	// of them that had never answered and made room for the next.
	Released, Displaced uint64
}

// Stats returns the watcher's counters.
func (w *Watcher) Stats() Stats {
	hops := &w.nextHops.counts
	return Stats{
		Readings: w.stats.readings.Load(), Interrupted: w.stats.interrupted.Load(), Lost: w.stats.lost.Load(),
		Probes: hops.probes.Load(), ProbeErrors: hops.probeErrors.Load(),
		Refused: hops.refused.Load(), Full: hops.full.Load(), Released: hops.released.Load(), Displaced: hops.displaced.Load(),
		RingFull: w.requests.full(),
	}
}

// Adjacency finds the number of a next hop behind a port. Safe for any number
// of workers; no lock, no allocation. When there is none, call Resolve.
func (w *Watcher) Adjacency(port int, nextHop netip.Addr) (uint32, bool) {
	return w.nextHops.index.Load().find(w.nextHops.adj, makeHopKey(port, nextHop))
}

// Adjacencies is the table itself, to be indexed by number. Number 0 is never used. A
// number belongs to the next hop from the moment it is Valid, as long as [Adjacency.Stamp]
// stays the same. Before that it may become another next hop's at any time.
func (w *Watcher) Adjacencies() []Adjacency { return w.nextHops.adj }

// Resolve asks the watcher to create an adjacency and have the kernel resolve
// it. Only the goroutine of the given worker may call it for that worker; it
// neither blocks nor allocates. The adjacency appears soon after; asking again
// for the same next hop does no harm.
//
// A neighbor can be flushed before any worker saw the answer. A worker that waits asks again
// when the adjacency is Unresolved after another probe. A needed next hop that has Failed is asked
// for again as well, as the kernel does with its own next packet.
//
// needed is true of next hops that the configuration names: endpoints and gateways.
// All others are clients' on the link, of which an attacker can forge any number: they
// never displace a needed next hop, and those that have never answered only each other.
func (w *Watcher) Resolve(worker, port int, nextHop netip.Addr, needed bool) {
	w.requests.put(worker, request{makeHopKey(port, nextHop), needed})
}
