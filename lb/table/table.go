// Package table holds the frontends of the packet path, and for each the pool of endpoints
// that may get new flows.
//
// The control plane writes, workers read. A [Snapshot] is immutable; a
// publication makes the next snapshot, which shares all unchanged parts with the last, and
// publishes it by an atomic pointer store. A worker loads the
// pointer once per batch and may use everything it reaches from it for as
// long as it likes: nothing is ever written again, the garbage collector
// takes it when the last reader has gone on.
//
// Frontends live in a hash trie with 64 children per node and small leaves, so a change
// copies two or three nodes whatever the number of Services. A pool's
// Maglev table is built again only when endpoints or weights change.
//
// Choice is the same on every node that knows the same endpoints: it depends
// on the tuple, on the set of (address, port, weight), and on nothing else,
// neither on the order in which endpoints became known nor on their numbers.
package table

import (
	"sync"
	"sync/atomic"
	"time"
)

// DefaultMaxEndpoints is the number of endpoint numbers when Config leaves it open.
const DefaultMaxEndpoints = 1 << 20

// Config has the parameters of a Table.
type Config struct {
	// InUse reports whether a flow has the endpoint ID. The publishing goroutine calls
	// it before an ID that is in no pool is given to another endpoint. It must not
	// call back into the Table. nil: no flow has any.
	InUse func(endpointID uint32) bool
	// ServiceInUse reports the same of a Service's number: an open connection has it.
	ServiceInUse func(service uint32) bool
	// OnRemoval is called before [Table.EndpointRemoved] becomes true of a number, and after
	// it has become false. It must not call back into the Table. It may be nil.
	OnRemoval func(endpointID uint32, removed bool)
	// OnAssign is called before a number names an endpoint, another than before. It must not call
	// back into the Table. It may be nil.
	OnAssign func(endpointID uint32)
	// MaxEndpoints is the largest endpoint number; 0 is DefaultMaxEndpoints.
	MaxEndpoints int
	// Tick is the coarse time, in 1/16 s, in which [Table.EndpointRemoved] answers:
	// that of the flow table. nil counts from New.
	Tick func() uint32
}

// Table is the published frontends and endpoints. Load, EndpointRemoved and the counters
// may be called from any goroutine and never block; the other methods take turns.
type Table struct {
	current atomic.Pointer[Snapshot]

	mu         sync.Mutex // guards all below
	services   map[string]*service
	waiting    map[Key]claimants // Services that claim a frontend another holds
	serviceIDs serviceIDs
	builder    builder
	edits      uint64 // numbers the trie edits: a node of the running edit may be written

	endpoints endpointIDs
	// removals are the actions for TCP flows of removed endpoints, by Service number; nil:
	// all are kept. The action of a deleted Service stays until the number is reused.
	removals atomic.Pointer[[]Removal]
}

// New makes an empty Table; the first snapshot has number 0.
func New(cfg Config) *Table {
	if cfg.MaxEndpoints <= 0 {
		cfg.MaxEndpoints = DefaultMaxEndpoints
	}
	if cfg.InUse == nil {
		cfg.InUse = func(uint32) bool { return false }
	}
	if cfg.ServiceInUse == nil {
		cfg.ServiceInUse = func(uint32) bool { return false }
	}
	if cfg.Tick == nil {
		start := time.Now()
		cfg.Tick = func() uint32 { return uint32(time.Since(start) / (time.Second / ticksPerSecond)) }
	}
	t := &Table{
		services: make(map[string]*service),
		waiting:  make(map[Key]claimants),
	}
	t.endpoints.init(cfg)
	t.serviceIDs.inUse = cfg.ServiceInUse
	t.builder = builder{services: &t.serviceIDs, endpoints: &t.endpoints}
	t.current.Store(&Snapshot{ranges: &ranges{}})
	return t
}

// Load is the snapshot published last, never nil. A worker calls it once per batch.
func (t *Table) Load() *Snapshot { return t.current.Load() }
