package flowcache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/route"
)

// Config says how large the maps are, and where the next process finds the table.
type Config struct {
	// PinDir is a directory in a BPF file system. The table is pinned there under the name
	// of the network namespace of the calling thread. "" is no pin: the table ends with the
	// process.
	PinDir string
	// NextHops is the number of adjacencies, number 0 among them.
	NextHops int
	// Endpoints and Services are how many numbers there are.
	Endpoints, Services int
}

// Cache is the memory that this process shares with a program in the kernel. It is a
// conntrack.Memory:
//
//	c, err := flowcache.New(cfg)
//	flows, err := conntrack.Open(conntrack.Config{Memory: c, NextHops: cfg.NextHops, ...})
//	if flows.Restoration().MemoryErr != nil { the table is in the file: no cache }
//	routes, err := route.New(route.Config{Adjacencies: c.Adjacencies(), ...})
//	err = c.SetTable(flows)
//	load the program with c.Maps()
//	c.SetOn(true)
type Cache struct {
	cfg  Config
	pins *pins // nil without

	last, made, index      array // the table of the process before, that of this one, its index
	nextHops, states, gone array
	counts                 array // of packets by flow entry; a single element where nothing counts
	repeated               *ebpf.Map
	table                  *ebpf.Map // last's or made's; nil before SetTable
	inherited              bool      // an earlier process has pinned its table

	adjacencies  []route.Adjacency
	state        *State
	goneWords    []uint64
	firstService uint32 // word of goneWords

	mu        sync.Mutex
	on        bool   // guarded by mu: SetOn
	suspended int    // guarded by mu: calls of Suspend without Resume; negative after Leave
	numGone   uint32 // guarded by mu: bits that are set in goneWords
}

// array is a map and its memory.
type array struct {
	m *ebpf.Map
	b []byte
}

// cell is a cache line, the element of most maps.
const cell = 64

// ErrForeign is the error of New when something else is pinned in the place of the table. It
// is left alone.
var ErrForeign = errors.New("not a flow table of Weir's")

// New makes the maps but for those of the flow table, and finds the table that an earlier
// process has pinned. The error may be that the kernel lacks something, or memory: then the
// flow table belongs into a file.
func New(cfg Config) (_ *Cache, err error) {
	if cfg.NextHops < 1 || cfg.Endpoints < 1 || cfg.Services < 1 {
		return nil, fmt.Errorf("flow cache: %d next hops, %d endpoints, %d services", cfg.NextHops, cfg.Endpoints, cfg.Services)
	}
	c := &Cache{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("flow cache: %w", err), c.Close())
		}
	}()
	if err := checkClock(); err != nil {
		return nil, err
	}
	_ = rlimit.RemoveMemlock() // matters before kernel 5.11 only, and shows when a map is made
	if cfg.PinDir != "" {
		if c.pins, err = openPins(cfg.PinDir); err != nil {
			return nil, err
		}
		if c.last, err = c.pins.load(); err != nil {
			return nil, err
		}
		c.inherited = c.last.m != nil
	}
	if err := c.makeMaps(); err != nil {
		return nil, err
	}
	return c, nil
}

// makeMaps makes the maps that are this process's alone.
func (c *Cache) makeMaps() (err error) {
	c.firstService = uint32(c.cfg.Endpoints+63) / 64
	goneWords := int64(c.firstService) + int64(c.cfg.Services+63)/64
	if c.nextHops, err = makeArray("flow_next_hops", cell, int64(c.cfg.NextHops)); err != nil {
		return err
	}
	if c.states, err = makeArray("flow_state", int64(unsafe.Sizeof(State{})), 1); err != nil {
		return err
	}
	if c.gone, err = makeArray("flow_gone", 8, goneWords); err != nil {
		return err
	}
	c.repeated, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "flow_repeated", Type: ebpf.PerCPUArray,
		KeySize: 4, ValueSize: uint32(unsafe.Sizeof(Repeated{})), MaxEntries: MaxPorts,
	})
	if err != nil {
		return fmt.Errorf("map flow_repeated: %w", err)
	}
	c.adjacencies = unsafe.Slice((*route.Adjacency)(unsafe.Pointer(&c.nextHops.b[0])), c.cfg.NextHops)
	c.state = (*State)(unsafe.Pointer(&c.states.b[0]))
	c.state.ServicesAt = c.firstService
	c.goneWords = unsafe.Slice((*uint64)(unsafe.Pointer(&c.gone.b[0])), goneWords)
	return nil
}

// makeArray makes an array of n elements and maps it.
func makeArray(name string, element, n int64) (a array, err error) {
	if n > 1<<32-1 {
		return a, fmt.Errorf("map %s: %d elements are too many", name, n)
	}
	a.m, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.Array, Flags: unix.BPF_F_MMAPABLE,
		KeySize: 4, ValueSize: uint32(element), MaxEntries: uint32(n),
	})
	if err != nil {
		return a, fmt.Errorf("map %s of %d kB: %w", name, element*n>>10, err)
	}
	return a, a.mmap(element * n)
}

// mmap maps the memory of an array of size bytes.
func (a *array) mmap(size int64) (err error) {
	page := int64(unix.Getpagesize())
	a.b, err = unix.Mmap(a.m.FD(), 0, int((size+page-1)/page*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return errors.Join(fmt.Errorf("map %d kB of %s: %w", size>>10, a.m, err), a.m.Close())
	}
	a.b = a.b[:size:len(a.b)]
	return nil
}

func (a *array) close() error {
	if a.b == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(a.b[:cap(a.b)]), a.m.Close())
	*a = array{}
	return err
}

// Last is the table of an earlier process. See conntrack.Memory.
func (c *Cache) Last() []byte { return c.last.b }

// Table makes memory for a new table.
func (c *Cache) Table(size int64) (_ []byte, err error) {
	c.made, err = makeArray("flow_table", cell, (size+cell-1)/cell)
	return c.made.b, err
}

// Index makes memory for the index.
func (c *Cache) Index(size int64) (_ []byte, err error) {
	if err := c.index.close(); err != nil {
		return nil, err
	}
	c.index, err = makeArray("flow_index", cell, (size+cell-1)/cell)
	return c.index.b, err
}

// Keep pins the new table in place of the last.
func (c *Cache) Keep() error {
	if c.pins == nil {
		return nil
	}
	return c.pins.replace(c.made.m)
}

// Drop removes the pin of the last table.
func (c *Cache) Drop() error {
	if c.pins == nil {
		return nil
	}
	return c.pins.remove()
}

// Adjacencies is the memory for route.Config.
func (c *Cache) Adjacencies() []route.Adjacency { return c.adjacencies }

// SetTable gives the program the flow table, which has been opened with c as the memory.
func (c *Cache) SetTable(flows *conntrack.Table) error {
	if c.index.m == nil {
		return errors.New("flow cache: the flow table has other memory")
	}
	c.table = c.last.m
	if c.made.m != nil {
		c.table = c.made.m
		_ = c.last.close()
	}
	if err := c.makeCounts(flows); err != nil {
		return err
	}
	shape, s := flows.Shape(), c.state
	for i := range s.Seed {
		atomic.StoreUint64(&s.Seed[i], shape.Seed[i])
	}
	atomic.StoreUint64(&s.Tick0, uint64(shape.Epoch))
	atomic.StoreUint32(&s.Buckets, shape.Buckets)
	atomic.StoreUint32(&s.ConnsAt, uint32(shape.Conns/cell))
	atomic.StoreUint32(&s.EntriesAt, uint32(shape.Entries/cell))
	return nil
}

// makeCounts makes the map in which the program counts the packets of flows, if these are recorded.
func (c *Cache) makeCounts(flows *conntrack.Table) (err error) {
	n := len(flows.Counts())
	size := int64(unsafe.Sizeof(conntrack.Count{}))
	if c.counts, err = makeArray("flow_counts", size, int64(max(n, 1))); err != nil || n == 0 {
		return err
	}
	flows.SetCounts(unsafe.Slice((*conntrack.Count)(unsafe.Pointer(&c.counts.b[0])), n))
	return nil
}

// Maps are the maps by their names in the program. SetTable has been called.
func (c *Cache) Maps() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		"flow_table": c.table, "flow_index": c.index.m, "flow_next_hops": c.nextHops.m,
		"flow_state": c.states.m, "flow_gone": c.gone.m, "flow_repeated": c.repeated,
		"flow_counts": c.counts.m,
	}
}

// Save moves the flow table into its file, and removes the pin: no process is to have the memory
// after this one, also if the file cannot be written. Preconditions: no worker and no program in the
// kernel changes the table.
func (c *Cache) Save(flows *conntrack.Table) error {
	err := conntrack.Save(flows)
	if c.pins == nil {
		return err
	}
	err = errors.Join(err, c.pins.remove())
	_ = os.Remove(filepath.Dir(c.pins.path)) // if it is empty
	return err
}

// Inherited reports whether the program of an earlier process may forward by the flow table.
func (c *Cache) Inherited() bool { return c.inherited }

// Close frees the memory. The flow table and the routes must have been closed before. The pin
// stays, for the next process.
func (c *Cache) Close() error {
	errs := []error{
		c.last.close(), c.made.close(), c.index.close(),
		c.nextHops.close(), c.states.close(), c.gone.close(), c.counts.close(),
	}
	if c.repeated != nil {
		errs = append(errs, c.repeated.Close())
		c.repeated = nil
	}
	if c.pins != nil {
		errs = append(errs, c.pins.close())
		c.pins = nil
	}
	return errors.Join(errs...)
}
