package table

import (
	"cmp"
	"fmt"
	"slices"
)

// edit is a Prepare under way.
type edit struct {
	t       *Table
	id      uint64
	base    *Snapshot
	root    *node
	changed map[string]*service // by name; nil: deleted
	waiting map[Key][]string    // entries of Table.waiting that become others
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
	s, err := e.t.buildService(spec, old)
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
// others hold, what changed Services claim no more.
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

// promote gives each frontend that was let go to the Service that has been
// waiting for it the longest.
func (e *edit) promote() {
	if len(e.t.waiting) == 0 {
		return
	}
	for _, key := range e.touched[:len(e.touched):len(e.touched)] {
		queue := e.queue(&key)
		if len(queue) == 0 {
			continue
		}
		s, ok := e.changed[queue[0]]
		if !ok {
			s = e.t.services[queue[0]]
		}
		e.put(s.frontend(&key, 0)) // who is in the queue claims it, see release
		e.leaveQueue(&key, queue[0])
	}
}

// claim puts the Service's frontends into the trie, but for those that another one holds.
func (e *edit) claim(s *service) {
	for _, f := range s.frontends {
		holder := e.find(&f.Key)
		switch {
		case holder == f:
		case holder == nil || holder.ServiceName == s.name:
			e.put(f)
		default:
			e.joinQueue(&f.Key, s.name)
			err := &ConflictError{f.AddrPort, f.Proto, s.name, holder.ServiceName}
			e.errors = append(e.errors, &ServiceError{Service: s.name, Err: err})
		}
	}
}

// queue is who waits for the frontend, as far as the edit has come.
func (e *edit) queue(k *Key) []string {
	if q, ok := e.waiting[*k]; ok {
		return q
	}
	return e.t.waiting[*k]
}

func (e *edit) setQueue(k *Key, q []string) {
	if e.waiting == nil {
		e.waiting = make(map[Key][]string)
	}
	e.waiting[*k] = q
}

func (e *edit) joinQueue(k *Key, name string) {
	if q := e.queue(k); !slices.Contains(q, name) {
		e.setQueue(k, append(q[:len(q):len(q)], name))
	}
}

func (e *edit) leaveQueue(k *Key, name string) {
	if q := e.queue(k); slices.Contains(q, name) {
		e.setQueue(k, slices.DeleteFunc(slices.Clone(q), func(n string) bool { return n == name }))
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
	slices.SortFunc(e.touched, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.W0, b.W0), cmp.Compare(a.W1, b.W1), cmp.Compare(a.W2, b.W2))
	})
	for _, key := range slices.Compact(e.touched) {
		was, is := e.base.Lookup(&key), e.find(&key)
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
