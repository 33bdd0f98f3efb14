package lb

import (
	"container/list"
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/steer"
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

func (f *formerFrontends) init() {
	f.datagrams = map[table.Key]time.Time{}
	f.byKey, f.owners = map[table.Key]*formerFrontend{}, map[string]*list.List{}
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
		out = f.yield()
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

// yield forgets the oldest frontend of the namespace that has most, and returns it, nil for none.
func (f *formerFrontends) yield() *table.FrontendEntry {
	var oldest *formerFrontend
	most := 0
	for _, own := range f.owners {
		first := own.Front().Value.(*formerFrontend)
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
	if now.Before(f.look) {
		return nil, nil
	}
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

// keepFormer makes former frontends of those that are served no more, where connections may go on.
// It returns the others, and those that make room. Without a host veth there are none: other
// packets could not be given to the kernel. Preconditions: l.mu is held.
func keepFormer(l *LB, removed []*table.FrontendEntry) (gone []*table.FrontendEntry) {
	now := time.Now()
	for _, f := range removed {
		if f.Proto == header.ProtoUDP {
			l.former.forget(f.Key, now)
			gone = append(gone, f)
			continue
		}
		if l.host == nil || !l.attached || l.unsteered[f.Key] != nil ||
			l.steer.AddFrontend(f.AddrPort, f.Proto, steer.FlowsOnly) != nil {
			gone = append(gone, f)
			continue
		}
		if out := l.former.add(f, now); out != nil {
			gone = append(gone, out)
		}
	}
	return gone
}

// adoptFormer makes a former frontend of one of the last process.
func adoptFormer(l *LB, k table.Key, to netip.AddrPort, proto uint8) {
	if proto == header.ProtoUDP {
		l.former.forget(k, time.Now())
		return
	}
	if l.host == nil || l.former.byKey[k] != nil || len(l.former.byKey) >= maxFormer ||
		l.steer.AddFrontend(to, proto, steer.FlowsOnly) != nil {
		return
	}
	l.former.add(&table.FrontendEntry{Key: k, AddrPort: to, Proto: proto}, time.Now())
}

// addFrontend adds a frontend to the steering program. Former frontends make room.
func addFrontend(l *LB, f *table.FrontendEntry) error {
	l.former.remove(f.Key)
	for {
		err := l.steer.AddFrontend(f.AddrPort, f.Proto, uint32(f.Kind))
		if !errors.Is(err, steer.ErrFull) {
			return err
		}
		out := l.former.yield()
		if out == nil {
			return err
		}
		l.withdraw([]*table.FrontendEntry{out})
		if err := l.unsteerFrontends([]*table.FrontendEntry{out}); err != nil {
			return err
		}
	}
}

// settleFormer ends the former frontends that have no connection left, and forgets the UDP flows of
// frontends that are gone.
func settleFormer(l *LB) {
	l.mu.Lock()
	began := time.Now()
	due, datagrams := l.former.due(began)
	for _, x := range due {
		a := x.entry.AddrPort.Addr()
		x.unrouted = !l.routed[a] && !l.router.Local(a)
	}
	l.mu.Unlock()
	if len(due)+len(datagrams) == 0 {
		return
	}
	used := lookFormer(l, due, datagrams)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.former.look = began.Add(max(lookFormerEvery, lookFormerShare*time.Since(began)))
	var gone []*table.FrontendEntry
	for k, x := range due {
		if !used[k] && l.former.byKey[k] == x { // no Service has it again
			l.former.remove(k)
			gone = append(gone, &x.entry)
		}
	}
	if err := l.unsteerFrontends(gone); err != nil {
		l.log.Warn("frontends without a connection", "err", err)
	}
}

// lookFormer returns the frontends of due that have connections, and deletes the flows of datagrams.
// Connections of the node's own clients that have lost their route are ended: their packets go
// elsewhere, but the next packet of the endpoint tells both sides.
func lookFormer(l *LB, due map[table.Key]*formerFrontend, datagrams map[table.Key]bool) (used map[table.Key]bool) {
	routes := l.router.Load()
	used = map[table.Key]bool{}
	l.flows.Range(func(r conntrack.Ref) bool {
		key := &l.flows.Entry(r).Key
		k := table.DestinationKey(&key.W)
		x := due[k]
		switch {
		case x != nil:
			used[k] = true
			if !x.unrouted || l.flows.Conn(r).Aborted() {
				break
			}
			if routes.Local(key.Src().Addr()) {
				l.flows.Abort(r, l.flows.Tick())
			}
		case datagrams[k] && l.tables.Load().Lookup(&k) == nil: // now: a Service that has it again makes flows
			l.flows.Delete(r)
		}
		return true
	})
	return used
}
