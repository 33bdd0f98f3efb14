package table

import (
	"cmp"
	"errors"
	"slices"
	"strings"
)

// Change is a prepared publication.
//
// The steering program must not send Weir packets of a frontend that the
// snapshot does not serve. So:
//
//	change, err := t.Prepare(put, del)
//	steering.Remove(change.Removed)
//	t.Publish(change)
//	steering.Add(change.Added)
type Change struct {
	// Added are frontends that the new snapshot has and the last has not; Removed the
	// reverse; Changed those whose pool, kind, scope or Service differs (here as in the new
	// snapshot).
	Added, Removed, Changed []*FrontendEntry
	// Errors are about the parts that could not be applied; all else is in the Change.
	// Frontends held by another Service are here too (errors.Is ErrFrontendTaken).
	Errors []*ServiceError

	base     *Snapshot
	edit     uint64
	next     *Snapshot           // nil: nothing to publish
	services map[string]*service // by name; nil: deleted
	waiting  map[Key]claimants   // the new entries of Table.waiting
}

// Empty is true when publication would change nothing.
func (c *Change) Empty() bool { return c.next == nil }

// Next is the snapshot that the Change publishes: the present one if it is empty.
func (c *Change) Next() *Snapshot {
	if c.next == nil {
		return c.base
	}
	return c.next
}

// Number is the snapshot number that the Change will have been published
// with, or the present number if it is empty.
func (c *Change) Number() uint64 {
	return c.Next().number
}

// ErrStale is Publish's error for a Change that is not the last prepared, or is published
// already.
var ErrStale = errors.New("change is not the one prepared last")

// Apply is Prepare and Publish at once.
func (t *Table) Apply(put []Service, del []string) (Change, error) {
	c, err := t.Prepare(put, del)
	if err != nil {
		return c, err
	}
	return c, t.Publish(c)
}

// Prepare makes the snapshot that follows the present one: put are Services
// that are new or changed, each whole; del are names of deleted Services. Unknown names in
// del are no error. The cost is in proportion to put and del.
//
// A Service that cannot be served as given stays as it was, and Change.Errors
// says why. A frontend that two Services claim goes to the older Service (see
// Service.Created), even if the other has it already; the other gets it when it is
// released. The error of Prepare is a mistake of the caller, a Service
// without a name or named twice; the Change is then empty.
//
// Nothing is visible before Publish. A Change that is not published may be dropped.
func (t *Table) Prepare(put []Service, del []string) (Change, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endpoints.endChange()
	t.serviceIDs.endChange()
	base := t.current.Load()
	e, err := t.newEdit(base, put, del)
	if err != nil {
		return Change{base: base, edit: t.edits}, err
	}
	for i := range put {
		e.build(&put[i])
	}
	e.release()
	e.promote()
	for i := range put {
		if s := e.changed[put[i].Name]; s != nil {
			e.claim(s)
		}
	}
	return e.finish(), nil
}

// Publish makes the Change the present snapshot. Workers see it with their
// next batch. The error is ErrStale when another Change has been prepared since;
// nothing has happened then.
func (t *Table) Publish(c Change) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.base != t.current.Load() || c.edit != t.edits {
		return ErrStale
	}
	if c.next == nil {
		return nil
	}
	for _, s := range c.services {
		if s != nil {
			t.endpoints.addRef(s.endpointIDs)
			t.serviceIDs.assign(s.id, s.name)
		}
	}
	before := len(t.endpoints.removed)
	t.setRemovals(c.services)
	t.current.Store(c.next)
	for name, s := range c.services {
		if old := t.services[name]; old != nil {
			t.endpoints.dropRef(old.endpointIDs)
		}
		if s != nil {
			t.services[name] = s
			continue
		}
		t.serviceIDs.release(t.services[name].id)
		delete(t.services, name)
	}
	for key, queue := range c.waiting {
		if len(queue) == 0 {
			delete(t.waiting, key)
		} else {
			t.waiting[key] = queue
		}
	}
	t.endpoints.endChange()
	t.endpoints.reclaim(reclaimBudget+2*(len(t.endpoints.removed)-before), quarantineTicks)
	return nil
}

// Conflicts are the frontends that Services claim while another Service holds them, or some ports of a range.
func (t *Table) Conflicts() []ConflictError {
	t.mu.Lock()
	defer t.mu.Unlock()
	root := t.current.Load().root
	var out []ConflictError
	for key, queue := range t.waiting {
		held := root.find(&key, key.hash())
		if held == nil {
			continue
		}
		for name := range queue {
			out = append(out, ConflictError{AddrPort: held.AddrPort, LastPort: held.LastPort, Proto: held.Proto, Service: name, Holder: held.ServiceName})
		}
	}
	out = t.current.Load().ranges.overlaps(out)
	slices.SortFunc(out, func(a, b ConflictError) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), a.AddrPort.Compare(b.AddrPort), cmp.Compare(a.Proto, b.Proto))
	})
	return out
}
