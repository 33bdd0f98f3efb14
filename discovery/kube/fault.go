package kube

import (
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/discovery"
)

// Notes are the objects that are passed over, as discovery.Store.Notes has
// them.
func (s *Source) Notes() []discovery.Note {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Notes()
}

// Fault is a resource that cannot be listed or watched now.
type Fault struct {
	Resource string // such as services
	Reason   string
	Since    time.Time // of the first failure in a row
}

// Faults are the resources that cannot be listed or watched now, by name.
func (s *Source) Faults() []Fault { return s.watch.faults() }

// faults are the resources that cannot be listed or watched now, by name.
func (o *observer) faults() []Fault {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []Fault
	for name, r := range o.resources {
		if r.fault != "" {
			out = append(out, Fault{name, r.fault, r.since})
		}
	}
	slices.SortFunc(out, func(a, b Fault) int { return strings.Compare(a.Resource, b.Resource) })
	return out
}

// Contact is the state of the connection for a resource.
type Contact struct {
	Resource  string
	Connected bool      // there is no fault since the last list or event
	Last      time.Time // when a list was last completed, or an event or bookmark decoded; zero: never
}

// Contacts are the resources that were asked for, by name. A watch without changes sends a
// bookmark about every minute.
func (s *Source) Contacts() []Contact {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	var out []Contact
	for name, r := range s.watch.resources {
		c := Contact{Resource: name, Connected: r.fault == ""}
		if at := r.good.Load(); at != 0 {
			c.Last = time.Unix(0, at)
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Contact) int { return strings.Compare(a.Resource, b.Resource) })
	return out
}

// GoodAt is when the delivered state was last known to be that of the API server: of the watched
// resources the earliest time at which a list was last completed, or an event or bookmark decoded.
// It is zero before the first full view.
func (s *Source) GoodAt() time.Time {
	if !s.Synced() {
		return time.Time{}
	}
	var at time.Time
	for _, c := range s.Contacts() {
		if at.IsZero() || c.Last.Before(at) {
			at = c.Last
		}
	}
	return at
}
