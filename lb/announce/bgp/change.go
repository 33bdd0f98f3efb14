package bgp

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
)

// SetNeighbors makes the list the neighbors, in any order. Sessions with neighbors that stay as
// they are go on. One with another password or other times begins anew. A neighbor that cannot be
// added is an error, and all others are in use.
func (s *Speaker) SetNeighbors(list []Neighbor) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	ends := map[string]uint64{} // of neighbors that are replaced
	var errs []error
	for i, n := range s.present() {
		if slices.ContainsFunc(list, func(x Neighbor) bool { return same(&x, n) }) {
			continue
		}
		ended, err := s.remove(i)
		ends[n.Name()] = ended
		errs = append(errs, err)
	}
	for _, n := range list {
		if s.has(&n) {
			continue
		}
		i := s.place(&n, ends[n.Name()])
		errs = append(errs, s.limitAgain())
		s.cfg.Log.Info("announce: a router is added", "peer", n.Name(), "asn", n.ASN)
		if n.Interface != "" || !s.mayBegin(&n) {
			continue // follow does it
		}
		if err := s.addNeighbor(i); err != nil {
			s.vacate(i)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// same reports whether a session with a would be that with b.
func same(a, b *Neighbor) bool {
	x, y := *a, *b
	x.BFD, y.BFD = nil, nil
	return x == y && (a.BFD == nil) == (b.BFD == nil) && (a.BFD == nil || *a.BFD == *b.BFD)
}

// neighborOf is the configuration of a neighbor.
func (s *Speaker) neighborOf(i int) *Neighbor {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.cfg.Neighbors[i]
	return &n
}

// present are the neighbors that are not removed, by their place.
func (s *Speaker) present() map[int]*Neighbor {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[int]*Neighbor{}
	for i, n := range s.cfg.Neighbors {
		if !s.neighbors[i].removed {
			out[i] = &n
		}
	}
	return out
}

func (s *Speaker) has(n *Neighbor) bool {
	for _, x := range s.present() {
		if same(x, n) {
			return true
		}
	}
	return false
}

// place gives a neighbor a place: a new one, or that of one that was removed.
func (s *Speaker) place(n *Neighbor, ends uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.neighbors, func(x neighbor) bool { return x.removed })
	if i < 0 {
		i = len(s.neighbors)
		s.neighbors, s.cfg.Neighbors = append(s.neighbors, neighbor{}), append(s.cfg.Neighbors, Neighbor{})
		s.detection.grow(i + 1)
	}
	s.neighbors[i], s.cfg.Neighbors[i] = neighbor{ends: ends}, *n
	return i
}

// vacate marks a neighbor as removed, and returns what was known of it.
func (s *Speaker) vacate(i int) neighbor {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.neighbors[i]
	s.neighbors[i].removed = true
	return known
}

// remove ends the session with a neighbor, and returns how many have ended. BFD ends before: see
// detection.
func (s *Speaker) remove(i int) (ends uint64, err error) {
	n := s.neighborOf(i)
	known := s.vacate(i)
	s.cfg.Log.Info("announce: a router is removed", "peer", n.Name(), "asn", n.ASN)
	s.detection.session(i, false)
	for deadline := time.Now().Add(2 * bfdWithin); s.detection.runsWith(i) && time.Now().Before(deadline); time.Sleep(bfdLookEvery) {
	}
	ends = known.ends
	if !known.since.IsZero() {
		ends++
	}
	if known.added.IsZero() {
		return known.ends, nil // the server does not know it
	}
	if err := s.server.DeletePeer(s.ctx, &api.DeletePeerRequest{Address: known.address.String()}); err != nil {
		return ends, fmt.Errorf("peer %s: %w", n.Name(), err)
	}
	return ends, nil
}

// grow has places for so many neighbors.
func (d *detection) grow(neighbors int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.changes) < neighbors {
		d.changes, d.wanted, d.runs = append(d.changes, 0), append(d.wanted, 0), append(d.runs, false)
	}
}

// neighbors is the number of places.
func (d *detection) neighbors() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.changes)
}

// runsWith reports whether BFD runs with a neighbor.
func (d *detection) runsWith(neighbor int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runs[neighbor]
}
