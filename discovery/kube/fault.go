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
	Connected bool      // the last request was answered
	Last      time.Time // when the API server last said something; zero: never
}

// Contacts are the resources that were asked for, by name. A watch without changes sends a
// bookmark about every minute.
func (s *Source) Contacts() []Contact {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	var out []Contact
	for name, r := range s.watch.resources {
		c := Contact{Resource: name, Connected: r.fault == ""}
		if at := r.last.Load(); at != 0 {
			c.Last = time.Unix(0, at)
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Contact) int { return strings.Compare(a.Resource, b.Resource) })
	return out
}

// GoodAt is when the delivered state was last known to be that of the API server: now while
// every resource is watched, else the time of the first failure. It
// is zero before the first full view.
func (s *Source) GoodAt() time.Time {
	if !s.Synced() {
		return time.Time{}
	}
	at := time.Now()
	for _, f := range s.Faults() {
		if f.Since.Before(at) {
			at = f.Since
		}
	}
	return at
}
