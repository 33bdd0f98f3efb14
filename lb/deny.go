package lb

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/denylist"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/worker"
)

// MaxDenyLists is the number of deny lists that there can be.
const MaxDenyLists = denylist.MaxLists

// The program's counts are by the number of a list.
var _ [steer.DenyLists]uint64 = [MaxDenyLists]uint64{}

// DenyList names clients that may begin no flow.
type DenyList struct {
	Name string
	// Services has it deny the frontends alone of Services that name it.
	Services bool
	// Prefixes are the clients at the start.
	Prefixes []netip.Prefix
	// Keep lets the established flows of these clients go on.
	Keep bool
}

// DenyStatus is what a deny list does.
type DenyStatus struct {
	Name     string
	Prefixes int
	// Packets are those dropped, Ended the flows that were ended for a client that had come on the
	// list.
	Packets, Ended uint64
}

// Denials are the deny lists. Workers ask them about packets without a flow only: a flow that was
// established before goes on, in a worker and in the kernel, until it is ended here.
type Denials struct {
	program *steer.Program
	early   bool // the program denies, too
	lists   []DenyList
	node    denylist.Mask // of the lists about all frontends
	keep    denylist.Mask
	denied  *worker.Denied // nil without lists
	changed chan struct{}

	mu    sync.Mutex // guards the following
	ended [MaxDenyLists]uint64

	servicesMu sync.Mutex               // guards the following; held for no time that counts
	services   map[uint32]denylist.Mask // lists of Services that have some, by number
}

// open makes the first set. The program gets it when the interfaces are attached: until then an
// earlier process's frontends may be there, with the numbers of lists of that process.
func (d *Denials) open(lists []DenyList, program *steer.Program) error {
	if len(lists) > MaxDenyLists {
		return fmt.Errorf("%d deny lists, at most %d are supported", len(lists), MaxDenyLists)
	}
	d.program, d.changed = program, make(chan struct{}, 1)
	if err := program.Deny(nil, 0, 0); err != nil {
		return err
	}
	if len(lists) == 0 {
		return nil
	}
	d.lists = make([]DenyList, len(lists))
	d.services = map[uint32]denylist.Mask{}
	set := denylist.New()
	for i, l := range lists {
		alloc := denylist.Heap // of a map of the kernel's the collector does not know how large it is
		if i == len(lists)-1 {
			alloc = d.alloc
		}
		if !l.Services {
			d.node |= 1 << i
		}
		if l.Keep {
			d.keep |= 1 << i
		}
		d.lists[i] = DenyList{Name: l.Name, Keep: l.Keep}
		var err error
		if set, err = set.With(i, l.Prefixes, alloc); err != nil {
			return err
		}
	}
	d.denied = &worker.Denied{Node: d.node}
	d.denied.Set.Store(set)
	return nil
}

// alloc is the memory of a set, which the program shares.
func (d *Denials) alloc(n int) ([]denylist.Block, any, error) {
	if !d.program.Denies() {
		return denylist.Heap(n)
	}
	return steer.NewDenyMemory(n)
}

// drop has the program drop packets of denied clients, from the time on that the frontends are this
// process's.
func (d *Denials) drop() error {
	if d.denied == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.early = true
	return d.share(d.denied.Set.Load())
}

// share gives a set to the program.
func (d *Denials) share(set *denylist.Set) error {
	memory, ok := set.Memory().(*steer.DenyMemory)
	if !ok || !d.early {
		return nil
	}
	return d.program.Deny(memory, uint16(d.denied.Node), uint16(d.keep))
}

// Set publishes other prefixes of list number list, which it may sort.
func (d *Denials) Set(list int, prefixes []netip.Prefix) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	set, err := d.denied.Set.Load().With(list, prefixes, d.alloc)
	if err != nil {
		return err
	}
	if err := d.share(set); err != nil {
		return err
	}
	d.denied.Set.Store(set)
	d.look()
	return nil
}

// look has the flows of denied clients ended.
func (d *Denials) look() {
	select {
	case d.changed <- struct{}{}:
	default: // a change that has not been seen yet
	}
}

// follow takes the lists of Services of a publication. Those of a Service that is gone stay: its flows
// have its number.
func (d *Denials) follow(ch *table.Change) {
	if d.denied == nil {
		return
	}
	d.servicesMu.Lock()
	defer d.servicesMu.Unlock()
	for _, list := range [][]*table.FrontendEntry{ch.Added, ch.Changed} {
		for _, f := range list {
			lists, had := denylist.Mask(f.DenyLists()), d.services[f.ServiceID]
			if delete(d.services, f.ServiceID); lists != 0 {
				d.services[f.ServiceID] = lists
			}
			if lists&^had&^d.keep != 0 {
				d.look()
			}
		}
	}
}

// end ends the flows of clients on a list, and with them what the kernel forwards. The client gets no
// answer, and the next packet of the endpoint has none to go to.
func (d *Denials) end(flows *conntrack.Table) {
	if d.denied == nil || d.keep == 1<<len(d.lists)-1 {
		return
	}
	d.servicesMu.Lock()
	services := maps.Clone(d.services)
	d.servicesMu.Unlock()
	set := d.denied.Set.Load()
	var ended [MaxDenyLists]uint64
	flows.Range(func(r conntrack.Ref) bool {
		lists := (d.node | services[atomic.LoadUint32(&flows.Changing(r).ServiceID)]) &^ d.keep
		if lists == 0 {
			return true
		}
		i := set.Find(flows.Entry(r).Key.Src().Addr(), lists)
		if i >= 0 && flows.Delete(r) {
			ended[i]++
		}
		return true
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, n := range ended {
		d.ended[i] += n
	}
}

// run ends flows after each change, and once more when no worker has a packet that was admitted
// before. While a worker is stuck the second time waits. Each looks at all flows: changes in a row share
// one.
func (d *Denials) run(ctx context.Context, flows *conntrack.Table, stuck func() bool) {
	const settleTime, rest = 5 * time.Second, time.Second
	changed, again, more := d.changed, (<-chan time.Time)(nil), false
	var rested <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-rested:
			changed, rested = d.changed, nil
		case <-changed:
			d.end(flows)
			if more = again != nil; !more {
				again = time.After(settleTime)
			}
			changed, rested = nil, time.After(rest)
		case <-again:
			again = nil
			wait := stuck()
			if !wait {
				d.end(flows)
			}
			if wait || more {
				again, more = time.After(settleTime), false
			}
		}
	}
}

// status is that of each list, in order, with the packets of the workers and of the program.
func (d *Denials) status(workers []WorkerStatus) (list []DenyStatus) {
	if d.denied == nil {
		return nil
	}
	set := d.denied.Set.Load()
	early, _ := d.program.Denied() // an error of the kernel's is shown by the counters of the program
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, l := range d.lists {
		s := DenyStatus{Name: l.Name, Prefixes: set.Len(i), Packets: early[i], Ended: d.ended[i]}
		for w := range workers {
			s.Packets += workers[w].Denied[i]
		}
		list = append(list, s)
	}
	return list
}

// ListOf is the name of the first list that denies a source packets to a frontend, nil for a ping; "" for
// none.
func (d *Denials) ListOf(source netip.Addr, f *table.FrontendEntry) string {
	if d.denied == nil || !source.IsValid() {
		return ""
	}
	lists := d.node
	if f != nil {
		lists |= denylist.Mask(f.DenyLists())
	}
	if i := d.denied.Set.Load().Find(source, lists); i >= 0 {
		return d.lists[i].Name
	}
	return ""
}

// Denials are the deny lists.
func (l *LB) Denials() *Denials { return &l.denials }
