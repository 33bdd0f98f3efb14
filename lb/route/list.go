package route

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
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
	for i := range w.adj {
		a := &w.adj[i]
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
	t := w.Load()
	seen := map[netip.Addr]bool{}
	for _, b := range []*bart.Table[*entry]{t.local, t.main} {
		for _, e := range b.All() {
			for i := range e.paths {
				if p := &e.paths[i]; p.Kind == Attached && p.Source.IsValid() {
					seen[p.Source] = true
				}
			}
		}
	}
	out := make([]netip.Addr, 0, len(seen))
	for a := range seen {
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}
