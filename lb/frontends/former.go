package frontends

import (
	"container/list"
	"strings"
	"time"

	"github.com/weirlb/weir/lb/table"
)

// formerFrontends are TCP and SCTP frontends that no Service has any more, while connections of
// them may go on, as in the kernel's NAT. They stay in the steering program, for packets of
// connections alone: a worker punts all others, so that the kernel answers them as if the frontend
// were not there. They are in no snapshot, and so neither served nor announced. UDP has none: as
// with kube-proxy, datagrams to such a frontend are the kernel's, and its flows are forgotten.
//
// A former frontend ends with the last connection, or when the program has no room for a frontend
// of a Service.
type formerFrontends struct {
	byKey  map[table.Key]*formerFrontend
	owners map[string]*list.List // of *formerFrontend, by namespace, the oldest first
	look   time.Time             // when connections are looked for next
	// datagrams are UDP frontends whose flows are to be forgotten, with the time of removal.
	datagrams map[table.Key]time.Time
}

type formerFrontend struct {
	entry table.FrontendEntry // without the pool
	since time.Time
	place *list.Element // among those of the namespace
	// unrouted is that clients on the node have no route to the address any more.
	unrouted bool
}

const (
	// maxFormer is the number of former frontends; a namespace that has most of them loses its
	// oldest for another.
	maxFormer = 1 << 14
	// lookFormerEvery is how often connections are looked for, which reads the whole flow table;
	// at most lookFormerShare of the time is spent on it.
	lookFormerEvery = 10 * time.Second
	lookFormerShare = 100
)

func newFormer() *formerFrontends {
	return &formerFrontends{
		byKey: map[table.Key]*formerFrontend{}, owners: map[string]*list.List{}, datagrams: map[table.Key]time.Time{},
	}
}

// owner is the namespace of a frontend, "" for that of an earlier process.
func (f *formerFrontend) owner() string {
	namespace, _, _ := strings.Cut(f.entry.ServiceName, "/")
	return namespace
}

// add adds a frontend that is served no more. It returns the one that makes room, nil for none.
func (f *formerFrontends) add(entry *table.FrontendEntry, now time.Time) (out *table.FrontendEntry) {
	f.remove(entry.Key)
	if len(f.byKey) >= maxFormer {
		out = f.yield(func(*table.FrontendEntry) bool { return true })
	}
	x := &formerFrontend{entry: *entry, since: now}
	x.entry.Pool, x.entry.Policy = nil, nil
	f.byKey[entry.Key] = x
	if f.owners[x.owner()] == nil {
		f.owners[x.owner()] = list.New()
	}
	x.place = f.owners[x.owner()].PushBack(x)
	return out
}

// forget notes a UDP frontend that is served no more. Flows of those beyond the limit go by their
// timeouts.
func (f *formerFrontends) forget(k table.Key, now time.Time) {
	if len(f.datagrams) < maxFormer {
		f.datagrams[k] = now
	}
}

// remove forgets a frontend, if it is there.
func (f *formerFrontends) remove(k table.Key) {
	delete(f.datagrams, k)
	x := f.byKey[k]
	if x == nil {
		return
	}
	delete(f.byKey, k)
	own := f.owners[x.owner()]
	if own.Remove(x.place); own.Len() == 0 {
		delete(f.owners, x.owner())
	}
}

// yield forgets the oldest frontend that makes room of the namespace that has most, and returns it,
// nil for none.
func (f *formerFrontends) yield(makesRoom func(*table.FrontendEntry) bool) *table.FrontendEntry {
	var oldest *formerFrontend
	most := 0
	for _, own := range f.owners {
		at := own.Front()
		for at != nil && !makesRoom(&at.Value.(*formerFrontend).entry) {
			at = at.Next()
		}
		if at == nil {
			continue
		}
		first := at.Value.(*formerFrontend)
		if own.Len() > most || own.Len() == most && first.since.Before(oldest.since) {
			oldest, most = first, own.Len()
		}
	}
	if oldest == nil {
		return nil
	}
	f.remove(oldest.entry.Key)
	return &oldest.entry
}

// due returns the frontends of which connections are to be looked for now, and those of UDP whose
// flows are to be forgotten. A worker may still make a connection of a frontend that was withdrawn a
// moment ago.
func (f *formerFrontends) due(now time.Time) (due map[table.Key]*formerFrontend, datagrams map[table.Key]bool) {
	due, datagrams = map[table.Key]*formerFrontend{}, map[table.Key]bool{}
	for k, x := range f.byKey {
		if now.Sub(x.since) >= settleTime {
			due[k] = x
		}
	}
	for k, since := range f.datagrams {
		if now.Sub(since) >= settleTime {
			datagrams[k] = true
			delete(f.datagrams, k)
		}
	}
	return due, datagrams
}
