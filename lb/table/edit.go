package table

import (
	"fmt"
	"maps"
	"slices"
)

// edit is a Prepare in progress.
type edit struct {
	t       *Table
	id      uint64
	base    *Snapshot
	root    *node
	changed map[string]*service // by name; nil: deleted
	waiting map[Key]claimants   // entries of Table.waiting that become others
	touched []Key               // frontends whose entry may have changed
	errors  []*ServiceError
}

func (t *Table) newEdit(base *Snapshot, put []Service, del []string) (*edit, error) {
	t.edits++
	e := &edit{t: t, id: t.edits, base: base, root: base.root}
	e.changed = make(map[string]*service, len(put)+len(del))
	for i := range put {
		name := put[i].Name
		if name == "" {
			return nil, fmt.Errorf("service %d has no name", i)
		}
		if _, twice := e.changed[name]; twice {
			return nil, fmt.Errorf("service %s is put twice", name)
		}
		e.changed[name] = nil
	}
	for _, name := range del {
		if _, twice := e.changed[name]; twice {
			return nil, fmt.Errorf("service %s is deleted as well as put, or twice", name)
		}
		if t.services[name] != nil {
			e.changed[name] = nil
		}
	}
	return e, nil
}

// build makes the Service anew, or notes why it stays as it was.
func (e *edit) build(spec *Service) {
	old := e.t.services[spec.Name]
	s, err := e.t.builder.build(spec, old)
	switch {
	case err != nil:
		e.errors = append(e.errors, &ServiceError{Service: spec.Name, Kept: true, Err: err})
		delete(e.changed, spec.Name)
	case old != nil && s.equal(old):
		delete(e.changed, spec.Name)
	default:
		e.changed[spec.Name] = s
	}
}

func (e *edit) find(k *Key) *FrontendEntry { return e.root.find(k, k.hash()) }

func (e *edit) put(f *FrontendEntry) {
	e.root = e.root.put(f, f.Key.hash(), 0, e.id)
	e.touched = append(e.touched, f.Key)
}

// release takes out of the trie, and out of the queues for frontends that
// others hold, the frontends that changed Services claim no more.
func (e *edit) release() {
	for name, s := range e.changed {
		old := e.t.services[name]
		if old == nil {
			continue
		}
		for i, f := range old.frontends {
			if s.frontend(&f.Key, i) != nil {
				continue
			}
			if e.find(&f.Key) != f {
				e.leaveQueue(&f.Key, name)
				continue
			}
			e.root = e.root.del(&f.Key, f.Key.hash(), 0, e.id)
			e.touched = append(e.touched, f.Key)
		}
	}
}

// service is a Service as far as the edit has come.
func (e *edit) service(name string) *service {
	if s, ok := e.changed[name]; ok {
		return s
	}
	return e.t.services[name]
}

// best is the Service with the best claim to the frontend among those that wait, nil for none.
func (e *edit) best(k *Key) *service {
	var best *service
	for name := range e.queue(k) {
		if s := e.service(name); best == nil || s.before(best, k) {
			best = s
		}
	}
	return best
}

// promote gives each frontend that was let go to the Service with the best claim
// among those that wait for it.
func (e *edit) promote() {
	if len(e.t.waiting) == 0 {
		return
	}
	for _, key := range e.touched[:len(e.touched):len(e.touched)] {
		if s := e.best(&key); s != nil {
			e.put(s.frontend(&key, 0)) // Services in the queue claim it, see release
			e.leaveQueue(&key, s.name)
		}
	}
}

// claim puts the Service's frontends into the trie, but for those with a better claim of
// another Service. A waiting claim replaces a claim that has become worse, of a recreated
// Service. The winner over a recreated holder may be worse than a claim that waits, too.
func (e *edit) claim(s *service) {
	for _, f := range s.frontends {
		holder := e.find(&f.Key)
		switch {
		case holder == nil || holder.ServiceName == s.name:
			if holder != f {
				e.put(f)
			}
		case s.before(e.service(holder.ServiceName), &f.Key):
			e.yield(holder, f, s.name)
		default:
			e.joinQueue(&f.Key, s.name)
			e.conflict(f, s.name, holder.ServiceName)
			continue
		}
		if better := e.best(&f.Key); better != nil && better.before(s, &f.Key) {
			e.yield(f, better.frontend(&f.Key, 0), better.name)
		}
	}
}

// yield lets another Service have the frontend. Existing flows go on: they belong to their
// Service, which still lists the endpoints.
func (e *edit) yield(from, to *FrontendEntry, winner string) {
	e.put(to)
	e.leaveQueue(&to.Key, winner)
	e.joinQueue(&from.Key, from.ServiceName)
	e.conflict(from, from.ServiceName, winner)
}

// conflict notes the Service that does not get a frontend.
func (e *edit) conflict(f *FrontendEntry, loser, holder string) {
	err := &ConflictError{AddrPort: f.AddrPort, LastPort: f.LastPort, Proto: f.Proto, Service: loser, Holder: holder}
	e.errors = append(e.errors, &ServiceError{Service: loser, Err: err})
}

// claimants are the names of Services that wait for a frontend.
type claimants map[string]struct{}

// queue has the Services that wait for the frontend, as far as the edit has come.
func (e *edit) queue(k *Key) claimants {
	if q, ok := e.waiting[*k]; ok {
		return q
	}
	return e.t.waiting[*k]
}

// ownQueue is the queue to write to: a copy of that of the Table.
func (e *edit) ownQueue(k *Key) claimants {
	q, ok := e.waiting[*k]
	if !ok {
		if e.waiting == nil {
			e.waiting = make(map[Key]claimants)
		}
		if q = maps.Clone(e.t.waiting[*k]); q == nil {
			q = make(claimants)
		}
		e.waiting[*k] = q
	}
	return q
}

func (e *edit) joinQueue(k *Key, name string) {
	if _, in := e.queue(k)[name]; !in {
		e.ownQueue(k)[name] = struct{}{}
	}
}

func (e *edit) leaveQueue(k *Key, name string) {
	if _, in := e.queue(k)[name]; in {
		delete(e.ownQueue(k), name)
	}
}

// finish is the edit as a Change.
func (e *edit) finish() Change {
	c := Change{Errors: e.errors, base: e.base, edit: e.id, services: e.changed, waiting: e.waiting}
	if len(e.changed) == 0 {
		return c
	}
	next := *e.base
	next.number++
	next.root = e.root
	for name, s := range e.changed {
		if old := e.t.services[name]; old == nil {
			next.services++
		} else if s == nil {
			next.services--
		}
	}
	slices.SortFunc(e.touched, func(a, b Key) int { return compareKeys(&a, &b) })
	touched := slices.Compact(e.touched)
	next.ranges = e.base.ranges.with(touched, e.base.Exact, e.find)
	for _, key := range touched {
		was, is := e.base.Exact(&key), e.find(&key)
		switch {
		case was == is:
		case was == nil:
			c.Added = append(c.Added, is)
		case is == nil:
			c.Removed = append(c.Removed, was)
		default:
			c.Changed = append(c.Changed, is)
		}
	}
	next.frontends += len(c.Added) - len(c.Removed)
	c.next = &next
	return c
}
