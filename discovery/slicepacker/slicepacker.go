// Package slicepacker spreads a Service's endpoints over EndpointSlices with few
// writes.
//
// It follows the slice controller's algorithm (KEP-752, "Distribution of
// EndpointSlices"): a change in a slice costs a write of that slice, sent to every watcher,
// so new endpoints go where a write is due anyway, else all into a slice with room for
// them, else into new slices. Slices
// are left partly empty rather than rewritten to be full.
package slicepacker

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Limits of endpoints per slice: the controller's default and the API's most.
const (
	DefaultMaxPerSlice = 100
	MostPerSlice       = 1000
)

// Options say how to pack.
type Options struct {
	// MaxPerSlice is the most endpoints of a slice; 0 is
	// DefaultMaxPerSlice, and more than MostPerSlice is MostPerSlice.
	MaxPerSlice int
}

// Group is endpoints of the same address type and ports, which may share a slice.
type Group struct {
	AddressType discoveryv1.AddressType
	Ports       []discoveryv1.EndpointPort
	Endpoints   []discoveryv1.Endpoint
}

// Changes are the writes that bring a Service's slices to the desired state.
// Slices that are in none of the lists stay as they are.
type Changes struct {
	// Create have no name where none could be reused.
	Create []*discoveryv1.EndpointSlice
	Update []*discoveryv1.EndpointSlice
	Delete []*discoveryv1.EndpointSlice
}

// Writes is the number of requests to the API server.
func (c *Changes) Writes() int { return len(c.Create) + len(c.Update) + len(c.Delete) }

// Pack computes the changes that take a Service's existing slices to groups,
// with each desired endpoint in exactly one slice. New slices are copies of
// prototype (metadata without a name) with address type, ports and endpoints
// set; an existing slice that lacks a label of it is updated. Endpoints are
// the same if their addresses, hostname and target are; a desired endpoint
// given twice counts once. Nothing that is given is written to.
//
// A slice that would be deleted is rather updated to replace a slice that would be created,
// where the address type (which is immutable) allows.
func Pack(prototype *discoveryv1.EndpointSlice, existing []*discoveryv1.EndpointSlice, groups []Group, opts Options) Changes {
	most := opts.MaxPerSlice
	if most <= 0 {
		most = DefaultMaxPerSlice
	}
	most = min(most, MostPerSlice)

	byKey := make(map[string][]*discoveryv1.EndpointSlice)
	for _, s := range existing {
		k := groupKey(s.AddressType, s.Ports)
		byKey[k] = append(byKey[k], s)
	}
	var all Changes
	for _, g := range combine(groups) {
		k := groupKey(g.AddressType, g.Ports)
		p := packer{prototype: prototype, group: g, most: most}
		p.pack(byKey[k])
		delete(byKey, k)
		all.Create = append(all.Create, p.Create...)
		all.Update = append(all.Update, p.Update...)
		all.Delete = append(all.Delete, p.Delete...)
	}
	// Slices of ports that nobody wants any more, in the order given.
	for _, s := range existing {
		if _, left := byKey[groupKey(s.AddressType, s.Ports)]; left {
			all.Delete = append(all.Delete, s)
		}
	}
	all.recycle()
	return all
}

// combine joins groups with the same address type and ports.
func combine(groups []Group) []Group {
	at := make(map[string]int, len(groups))
	out := make([]Group, 0, len(groups))
	for _, g := range groups {
		k := groupKey(g.AddressType, g.Ports)
		if i, found := at[k]; found {
			out[i].Endpoints = slices.Concat(out[i].Endpoints, g.Endpoints)
			continue
		}
		at[k] = len(out)
		out = append(out, g)
	}
	return out
}

// packer packs a group.
type packer struct {
	Changes
	prototype *discoveryv1.EndpointSlice
	group     Group
	most      int

	pending   []*discoveryv1.Endpoint // desired and not in any slice yet
	unchanged []*discoveryv1.EndpointSlice
}

func (p *packer) pack(existing []*discoveryv1.EndpointSlice) {
	p.keep(existing)
	// Fill slices that are written anyway, the fullest first.
	byLength := slices.Clone(p.Update)
	slices.SortStableFunc(byLength, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Compare(len(b.Endpoints), len(a.Endpoints))
	})
	for _, s := range byLength {
		p.fill(s)
	}
	for len(p.pending) > 0 {
		if s := p.roomiest(); s != nil {
			s = copySlice(s, slices.Clone(s.Endpoints))
			p.fill(s)
			p.Update = append(p.Update, s)
			continue
		}
		s := p.prototype.DeepCopy()
		s.AddressType, s.Ports, s.Endpoints = p.group.AddressType, p.group.Ports, nil
		p.fill(s)
		p.Create = append(p.Create, s)
	}
}

// keep sorts existing slices into those that change, go and stay, and leaves in pending the
// endpoints that none of them has.
func (p *packer) keep(existing []*discoveryv1.EndpointSlice) {
	desired := make(map[endpointKey]*discoveryv1.Endpoint, len(p.group.Endpoints))
	order := make([]endpointKey, 0, len(p.group.Endpoints))
	for i := range p.group.Endpoints {
		e := &p.group.Endpoints[i]
		k := keyOf(e)
		if _, twice := desired[k]; !twice {
			order = append(order, k)
		}
		desired[k] = e
	}
	for _, s := range existing {
		kept := make([]discoveryv1.Endpoint, 0, len(s.Endpoints))
		changed := !hasLabels(s, p.prototype)
		for i := range s.Endpoints {
			k := keyOf(&s.Endpoints[i])
			want, found := desired[k]
			if !found || len(kept) == p.most {
				changed = true
				continue
			}
			delete(desired, k)
			changed = changed || !reflect.DeepEqual(*want, s.Endpoints[i])
			kept = append(kept, *want)
		}
		switch {
		case len(kept) == 0 && len(s.Endpoints) > 0:
			p.Delete = append(p.Delete, s)
		case changed:
			p.Update = append(p.Update, copySlice(s, kept))
			copyLabels(p.Update[len(p.Update)-1], p.prototype)
		default:
			p.unchanged = append(p.unchanged, s)
		}
	}
	for _, k := range order {
		if e, left := desired[k]; left {
			p.pending = append(p.pending, e)
		}
	}
}

// fill moves pending endpoints into s until it is full.
func (p *packer) fill(s *discoveryv1.EndpointSlice) {
	n := min(len(p.pending), p.most-len(s.Endpoints))
	for _, e := range p.pending[:n] {
		s.Endpoints = append(s.Endpoints, *e)
	}
	p.pending = p.pending[n:]
}

// roomiest takes out the unchanged slice that all that is pending fits into
// and that it leaves the fullest, nil if there is none: the same number of writes, but
// fewer slices.
func (p *packer) roomiest() *discoveryv1.EndpointSlice {
	best := -1
	for i, s := range p.unchanged {
		if len(s.Endpoints)+len(p.pending) > p.most {
			continue
		}
		if best < 0 || len(s.Endpoints) > len(p.unchanged[best].Endpoints) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	s := p.unchanged[best]
	p.unchanged = slices.Delete(p.unchanged, best, best+1)
	return s
}

// recycle gives the names of slices to delete to slices to create.
func (c *Changes) recycle() {
	var create []*discoveryv1.EndpointSlice
	for _, s := range c.Create {
		i := slices.IndexFunc(c.Delete, func(d *discoveryv1.EndpointSlice) bool { return d.AddressType == s.AddressType })
		if i < 0 {
			create = append(create, s)
			continue
		}
		u := copySlice(c.Delete[i], s.Endpoints)
		u.Ports = s.Ports
		copyLabels(u, s)
		c.Update = append(c.Update, u)
		c.Delete = slices.Delete(c.Delete, i, i+1)
	}
	c.Create = create
}

// copySlice is s with other endpoints; metadata is shared.
func copySlice(s *discoveryv1.EndpointSlice, endpoints []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	out := *s
	out.Endpoints = endpoints
	return &out
}

func hasLabels(s, prototype *discoveryv1.EndpointSlice) bool {
	for k, v := range prototype.Labels {
		if have, ok := s.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func copyLabels(s, prototype *discoveryv1.EndpointSlice) {
	if hasLabels(s, prototype) {
		return
	}
	labels := make(map[string]string, len(s.Labels)+len(prototype.Labels))
	for k, v := range s.Labels {
		labels[k] = v
	}
	for k, v := range prototype.Labels {
		labels[k] = v
	}
	s.Labels = labels
}

// endpointKey says which endpoints are the same, whatever their state.
type endpointKey struct{ addresses, hostname, namespace, name string }

func keyOf(e *discoveryv1.Endpoint) endpointKey {
	var k endpointKey
	switch len(e.Addresses) {
	case 0:
	case 1:
		k.addresses = e.Addresses[0]
	default:
		k.addresses = strings.Join(slices.Sorted(slices.Values(e.Addresses)), ",")
	}
	if e.Hostname != nil {
		k.hostname = *e.Hostname
	}
	if e.TargetRef != nil {
		k.namespace, k.name = e.TargetRef.Namespace, e.TargetRef.Name
	}
	return k
}

// groupKey is equal for slices that can share endpoints; the order of ports
// does not matter.
func groupKey(family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) string {
	texts := make([]string, len(ports))
	for i := range ports {
		texts[i] = portKey(&ports[i])
	}
	slices.Sort(texts)
	return string(family) + "|" + strings.Join(texts, "|")
}

func portKey(p *discoveryv1.EndpointPort) string {
	field := func(s *string) string {
		if s == nil {
			return "-"
		}
		return strconv.Quote(*s)
	}
	number, protocol := "-", "-"
	if p.Port != nil {
		number = strconv.Itoa(int(*p.Port))
	}
	if p.Protocol != nil {
		protocol = string(*p.Protocol)
	}
	return field(p.Name) + "/" + number + "/" + protocol + "/" + field(p.AppProtocol)
}
