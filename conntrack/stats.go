package conntrack

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// counters belong to a handle. Only the handle's owner adds; any goroutine may read.
type counters struct {
	created, existed, full, reused, evicted counter
	deleted, expired, gone                  counter
	displaced                               [numPortClasses]counter
}

// counter is added to by a single goroutine at a time, which needs no locked instruction.
type counter struct{ n uint64 }

func (c *counter) Add(n uint64) { storeRelaxed64(&c.n, c.n+n) }
func (c *counter) Load() uint64 { return atomic.LoadUint64(&c.n) }

// Stats are the table's figures. Counters count since Open. A Create without success is not
// among them: its caller may have another choice, and counts the connections that it refuses.
type Stats struct {
	MaxFlows int
	Flows    int // connections now
	Restored int // connections of the last process, restored by Open
	Created  uint64
	Existed  uint64 // Create found another's
	Reused   uint64 // SNAT ports taken from a flow that had ended
	// Displaced counts, per PortClass, SNAT ports taken from a flow that had not ended.
	Displaced [numPortClasses]uint64
	Evicted   uint64 // half-open, ended or unproven ones, for want of room
	Deleted   uint64 // by Delete
	Expired   uint64 // by age
	// ByState counts connections per State as of the last whole sweep.
	ByState [flowstate.Count]uint32
	// Limbo counts connections that are deleted and wait for the workers.
	Limbo int
}

// Stats returns the table's figures. The counters are read in sequence while workers go on,
// so that they may differ by events meanwhile.
func (t *Table) Stats() Stats {
	s := Stats{MaxFlows: len(t.conns), Restored: t.restored.Flows, Limbo: int(t.limboSize())}
	for i := range t.workers {
		c := &t.workers[i].count
		s.Created += c.created.Load()
		s.Existed += c.existed.Load()
		s.Reused += c.reused.Load()
		for class := range c.displaced {
			s.Displaced[class] += c.displaced[class].Load()
		}
		s.Evicted += c.evicted.Load()
		s.Deleted += c.deleted.Load()
		s.Expired += c.expired.Load()
	}
	for i := range t.stateCounts {
		s.ByState[i] = t.stateCounts[i].Load()
	}
	s.Flows = t.Flows()
	return s
}

// Flows returns the number of connections.
func (t *Table) Flows() int {
	n := int64(t.restored.Flows)
	for i := range t.workers {
		// gone first: a connection counted as gone was created before.
		gone := t.workers[i].count.gone.Load()
		n += int64(t.workers[i].count.created.Load()) - int64(gone)
	}
	return int(max(n, 0))
}

// Awaited counts the connections that a drain waits for: answered and not over. It
// looks at every connection there is, some nanoseconds each.
func (t *Table) Awaited() int {
	n, now := 0, t.Tick()
	t.Range(func(r Ref) bool {
		if c := t.Conn(r); flowstate.AwaitedByDrain(atomic.LoadUint32(&c.state), c.Idle(now)) {
			n++
		}
		return true
	})
	return n
}

// IndexLoad returns the share of the index's slots that are in use, from 0 to 1.
func (t *Table) IndexLoad() float64 {
	return float64(2*t.Flows()) / float64(slotsPerBucket*len(t.index.buckets))
}

// MemoryUse is the memory of a table by its parts, in bytes. The first four are in the file, or
// in Config.Memory; the others are the process's own.
type MemoryUse struct {
	Header  int64 `json:"header"`  // and the gaps between parts
	Cursors int64 `json:"cursors"` // of port rotation
	Conns   int64 `json:"conns"`
	Entries int64 `json:"entries"`
	Index   int64 `json:"index"`
	Links   int64 `json:"links"`  // of free connections
	Counts  int64 `json:"counts"` // of endpoints and Services, and for records of connections: the memory of those that have had none is not touched
}

// Total returns the sum.
func (m *MemoryUse) Total() int64 {
	return m.Header + m.Cursors + m.Conns + m.Entries + m.Index + m.Links + m.Counts
}

// MemoryUse returns the memory of the table.
func (t *Table) MemoryUse() MemoryUse {
	m := MemoryUse{
		Cursors: cursorCount * cursorSize,
		Conns:   int64(len(t.conns)) * connSize,
		Entries: int64(len(t.entries)) * entrySize,
		Index:   int64(len(t.mem.index)),
		Links:   int64(len(t.mem.links)),
		Counts:  8 * int64(len(t.endpoints)+len(t.services)+len(t.failed)),
	}
	if t.records != nil {
		m.Counts += int64(len(t.conns)) * recordBytes
	}
	m.Header = int64(len(t.mem.shared)) - m.Cursors - m.Conns - m.Entries
	return m
}

// MemoryBytes returns the size of the table, file and private memory.
func (t *Table) MemoryBytes() int64 {
	m := t.MemoryUse()
	return m.Total()
}

// Shape returns the table's shape. It does not change after Open.
func (t *Table) Shape() Shape {
	p := planFor(int64(len(t.conns)))
	return Shape{
		Seed: t.seed, Buckets: uint32(len(t.index.buckets)),
		Conns: p.conns, Entries: p.entries, Epoch: t.head.Epoch,
	}
}
