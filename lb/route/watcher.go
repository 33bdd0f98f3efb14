package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Watcher follows the kernel's routes and neighbors. Everything is written by
// the goroutine of Run; the exported methods are safe for any goroutine.
type Watcher struct {
	// Unfollowed has the routing rules that Weir does not follow.
	Unfollowed Unfollowed

	cfg  Config
	log  *slog.Logger
	conn *conn
	sub  *subscription

	table            atomic.Pointer[Table]
	hosts            atomic.Pointer[[]Address]
	reroute          atomic.Pointer[func(affected []bool)]
	nextHops         nextHops
	requests         requests
	reconfigurations chan reconfiguration
	stats            stats
	subs, linkSubs   subscribers
	closed           sync.Once
	ended            chan struct{} // closed when Run has returned
	cancel           chan struct{} // closed by Close
	run              atomic.Bool
	// readerEnded is closed when the goroutine on the subscription has ended.
	readerEnded chan struct{}

	// Owned by the goroutine of Run.
	entries    contents
	tables     map[int]*bart.Table[*entry] // of entries
	rules      []rule
	dirty      bool // tables are to be read
	dirtyNeigh bool // neighbors are to be read
	notBefore  time.Time
	failures   int
}

// reconfiguration is a request of another goroutine to Run's.
type reconfiguration struct {
	interfaces []Interface
	hostVeth   *HostVeth
	done       chan error
}

// settle is how long the watcher waits after a notification, so that a burst costs a single
// reading.
const settle = 5 * time.Millisecond

// New opens the kernel's tables and reads them once, so that Load has an answer when it
// returns. Close frees all resources.
func New(cfg Config) (*Watcher, error) {
	cfg.setDefaults()
	w := &Watcher{
		cfg: cfg, log: cfg.Logger.With("component", "route"),
		reconfigurations: make(chan reconfiguration),
		ended:            make(chan struct{}), cancel: make(chan struct{}), readerEnded: make(chan struct{}),
	}
	w.Unfollowed.log = w.log
	w.table.Store(&Table{epoch: 1, local: new(bart.Table[*entry]), main: new(bart.Table[*entry])})
	w.requests.init(cfg.Workers)
	w.nextHops.init(&cfg)
	w.nextHops.log = w.log
	var err error
	// Subscribed before the first reading: nothing falls in between.
	if w.sub, err = subscribe(cfg.Namespace, cfg.ReceiveBuffer); err != nil {
		return nil, err
	}
	if w.conn, err = dial(cfg.Namespace); err != nil {
		w.sub.close()
		return nil, err
	}
	w.nextHops.conn = w.conn
	w.dirty, w.dirtyNeigh = true, true
	for range 20 {
		if err = w.resync(); err == nil || !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		w.sub.close()
		w.conn.close()
		return nil, err
	}
	w.nextHops.addHostVethAdjacencies()
	w.nextHops.adoptManaged()
	return w, nil
}

// Load returns the current table; never nil.
func (w *Watcher) Load() *Table { return w.table.Load() }

// Run follows the kernel until ctx is done or Close is called. It returns an
// error only when the kernel cannot be followed any more.
func (w *Watcher) Run(ctx context.Context) error {
	if !w.run.CompareAndSwap(false, true) {
		return errors.New("route watcher runs already")
	}
	defer close(w.ended)
	reader := make(chan error, 1)
	go func() {
		reader <- w.sub.run()
		close(w.readerEnded)
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.cancel:
			return nil
		case err := <-reader:
			return err
		case <-w.sub.wake:
			w.apply(w.sub.take())
		case <-w.requests.wake:
		case o := <-w.reconfigurations:
			o.done <- w.reconfigure(o)
		case <-due.C:
		case now := <-tick.C:
			w.nextHops.maintain(now)
		}
		now := time.Now()
		w.requests.take(func(r request) { w.nextHops.request(r, now) })
		w.readIfDue(due)
	}
}

// apply takes over the kernel's changes.
func (w *Watcher) apply(c changes) {
	if c.lost {
		w.stats.lost.Add(1)
		w.log.Warn("kernel notifications were lost, reading everything again")
		w.dirty, w.dirtyNeigh, w.notBefore = true, true, time.Time{}
	}
	if c.links || c.lost {
		w.linkSubs.notify()
	}
	if c.tables {
		if !w.dirty {
			w.dirty = true
			if soon := time.Now().Add(settle); w.notBefore.Before(soon) {
				w.notBefore = soon
			}
		}
	}
	for i := range c.neighbors {
		w.nextHops.neighborChanged(&c.neighbors[i])
	}
	now := time.Now()
	for index, change := range c.carriers {
		w.nextHops.carrierChanged(index, change, now)
	}
}

// readIfDue reads the kernel's tables when something changed and enough time
// has passed since the last reading, else sets the timer for it.
func (w *Watcher) readIfDue(due *time.Timer) {
	if !w.dirty && !w.dirtyNeigh {
		return
	}
	start := time.Now()
	if wait := w.notBefore.Sub(start); wait > 0 {
		due.Reset(wait)
		return
	}
	err := w.resync()
	// At most a tenth of a core however fast the tables change, and however
	// large they are.
	pause := min(10*time.Since(start), 10*time.Second)
	switch {
	case errors.Is(err, netlink.ErrDumpInterrupted):
		w.stats.interrupted.Add(1)
		pause = max(pause, 10*time.Millisecond)
	case err != nil:
		w.failures++
		pause = max(pause, min(time.Second<<min(w.failures, 5), 30*time.Second))
		w.log.Warn("read routes, keeping the last ones", "err", err, "retryIn", pause)
	default:
		w.failures = 0
	}
	w.notBefore = time.Now().Add(pause)
	if w.dirty || w.dirtyNeigh {
		due.Reset(pause)
	}
}

// resync reads the dirty tables and publishes them. On error nothing has changed
// and it is dirty still.
func (w *Watcher) resync() error {
	w.stats.readings.Add(1)
	if w.dirty {
		k, err := w.conn.read()
		if err != nil {
			return err
		}
		w.dirty = false
		w.publish(k)
	}
	if w.dirtyNeigh {
		all, err := w.conn.neighbors(w.nextHops.watched)
		if err != nil {
			return err
		}
		w.dirtyNeigh = false
		w.nextHops.replaceNeighbors(all)
	}
	return nil
}

// publish makes a table of the kernel's state, if it differs.
func (w *Watcher) publish(k *kernelState) {
	b := newBuilder(k, &w.cfg)
	t, affected := w.replaceTables(b, b.build())
	w.nextHops.links = k.links
	w.Unfollowed.set(k.rules.ignored)
	if w.nextHops.portsChanged(b.ports) {
		w.dirtyNeigh = true
	}
	w.nextHops.refreshPorts()
	w.nextHops.readCarriers(k)
	addrs := w.hostAddresses(k)
	moved := w.hosts.Load() == nil || !slices.Equal(*w.hosts.Load(), addrs)
	if moved {
		w.hosts.Store(&addrs)
	}
	if affected != nil {
		w.publishTable(t, affected)
	}
	if affected != nil || moved {
		w.subs.notify()
	}
}

// replaceTables brings the tables to the new entries, by the differences. affected is nil if
// nothing changed.
func (w *Watcher) replaceTables(b *builder, now contents) (t *Table, affected *affectedHops) {
	old := w.table.Load()
	changes := make(map[int][]routeChange)
	tables := make(map[int]*bart.Table[*entry])
	for table, entries := range now {
		var c []routeChange
		if tables[table], c = update(w.tables[table], w.entries[table], entries); len(c) > 0 {
			changes[table] = c
		}
	}
	// A table comes and goes with the rules that name it, or with its first and last route.
	ruled := !slices.Equal(w.rules, b.k.rules.followed) || len(now) != len(w.entries)
	for table := range now {
		ruled = ruled || w.entries[table] == nil
	}
	before := w.tables
	w.entries, w.tables, w.rules = now, tables, b.k.rules.followed
	t = &Table{local: tables[unix.RT_TABLE_LOCAL], main: tables[unix.RT_TABLE_MAIN]}
	t.policy4, t.policy6 = b.policyOf(true, tables), b.policyOf(false, tables)
	switch {
	case ruled && (t.HasRules() || old.HasRules()):
		return t, &affectedHops{all: true}
	case len(changes) > 0 && t.HasRules():
		return t, affectedUnderRules(before, changes)
	case len(changes) > 0:
		return t, affectedBy(old, t, changes[unix.RT_TABLE_LOCAL], changes[unix.RT_TABLE_MAIN])
	}
	return t, nil
}

// publishTable gives t the next epoch and makes it current. The stamps of the affected next
// hops follow: a worker that reads a stamp and then finds its table still current has read
// an earlier stamp.
func (w *Watcher) publishTable(t *Table, affected *affectedHops) {
	t.epoch = w.table.Load().epoch + 1
	if t.epoch == 0 {
		t.epoch = 1
	}
	w.table.Store(t)
	numbers := w.nextHops.numbersOf(affected)
	if f := w.reroute.Load(); f != nil && numbers != nil {
		(*f)(numbers)
	}
	for i, is := range numbers {
		if is {
			w.nextHops.adj[i].restamp()
		}
	}
}

// SetReroute has f called when routes have changed, before the stamps of the affected
// adjacencies, which f gets by number: f may give flows their new next hops. Flows that it
// has not come to go by the old routes until it returns, so it has to be quick. It runs on the
// goroutine of Run.
func (w *Watcher) SetReroute(f func(affected []bool)) { w.reroute.Store(&f) }

// update brings a table from the old to the new entries by the differences, and returns
// these. Readers of the old table are not disturbed.
func update(
	t *bart.Table[*entry], old, now map[netip.Prefix]*entry,
) (*bart.Table[*entry], []routeChange) {
	var changes []routeChange
	for p, e := range now {
		if o := old[p]; o == nil || !o.equal(e) {
			changes = append(changes, routeChange{p, o, e})
		} else {
			now[p] = o
		}
	}
	for p, o := range old {
		if now[p] == nil {
			changes = append(changes, routeChange{p, o, nil})
		}
	}
	if t == nil || len(changes) > len(now)/8 {
		t = new(bart.Table[*entry])
		for p, e := range now {
			t.Insert(p, e)
		}
		return t, changes
	}
	for _, c := range changes {
		if c.now != nil {
			t = t.InsertPersist(c.prefix, c.now)
		} else {
			t = t.DeletePersist(c.prefix)
		}
	}
	return t, changes
}

// SetInterfaces replaces the attached interfaces and the host veth, as
// Config.Interfaces and Config.HostVeth, while Run is running. Adjacencies of
// ports that are gone are given up.
func (w *Watcher) SetInterfaces(ifaces []Interface, host *HostVeth) error {
	o := reconfiguration{slices.Clone(ifaces), host, make(chan error, 1)}
	select {
	case w.reconfigurations <- o:
		return <-o.done
	case <-w.ended:
		return errors.New("route watcher has ended")
	}
}

func (w *Watcher) reconfigure(o reconfiguration) error {
	w.cfg.Interfaces, w.cfg.HostVeth, w.nextHops.host = o.interfaces, o.hostVeth, o.hostVeth
	w.dirty, w.dirtyNeigh = true, true
	w.nextHops.addHostVethAdjacencies()
	if err := w.resync(); err != nil {
		return fmt.Errorf("read routes for the new interfaces: %w", err)
	}
	return nil
}

// Close ends Run, takes back Weir's requests to the kernel (neighbors kept fresh) and frees
// the sockets.
func (w *Watcher) Close() error {
	var err error
	w.closed.Do(func() {
		close(w.cancel)
		ran := !w.run.CompareAndSwap(false, true)
		if ran {
			<-w.ended
		} else {
			close(w.ended)
		}
		err = errors.Join(w.nextHops.releaseAll(), w.sub.close())
		if ran {
			<-w.readerEnded
		}
		w.conn.close()
	})
	return err
}

type stats struct {
	readings, interrupted, lost atomic.Uint64
}
