package conntrack

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// Count is how many packets of a direction of a connection have arrived, and their bytes from the
// IP header on. Packets that were dropped are among them.
type Count struct{ Packets, Bytes uint64 }

// Cause is why a connection left the table.
type Cause uint8

// Causes of an end; CauseNone is that of a beginning.
const (
	CauseNone     Cause = iota
	CauseExpired        // silent for the timeout of its state
	CauseEvicted        // it made room for another
	CausePort           // another connection got its SNAT port
	CauseReplaced       // the client has begun anew
	CauseDeleted        // the caller has deleted it
)

// Record is the beginning or the end of a connection.
type Record struct {
	// Client is the tuple of the client's packets as received, Endpoint that as sent on: in a mode
	// without translation the addresses of the outer header, see [Table.NewTuple].
	Client, Endpoint Key
	Counts           [2]Count // from the client, from the endpoint; of a beginning 0
	// EndpointID and ServiceID are the caller's numbers, see [Conn].
	EndpointID, ServiceID uint32
	Created, LastSeen     uint32 // ticks
	Word                  uint32 // the last state word, see package flowstate
	Mode                  Mode
	Cause                 Cause
}

// RecordStats counts connections and their records.
type RecordStats struct {
	Written uint64 // records
	Lost    uint64 // records for which there was no room, as nobody read in time
	Skipped uint64 // connections that were left out: more began than Config.RecordsPerSecond
}

// records are what the handles of a table have in common to record connections. A reader takes
// the records out; no handle waits for it.
type records struct {
	counts []Count // by entry
	// skipped has the connections without a record of their beginning, which get none of their end.
	// Those that an earlier process has begun get that.
	skipped []bool
	control sync.Mutex // of the handles of control goroutines, which share a ring

	reading sync.Mutex
	rings   []*recordRing // of each worker, and of the control goroutines
	first   int           // the worker that is read first: of too many records all lose some
}

// recordRing has the records of a writer. It writes head, the reader tail.
type recordRing struct {
	slots []Record // a power of two
	share uint32   // beginnings per second
	_     [64]byte
	stats struct{ lost, skipped atomic.Uint64 }
	head  atomic.Uint64
	// Of the choice of beginnings: see keep.
	tick, seen, before, allowance uint32
	_                             [64]byte
	tail                          atomic.Uint64
	_                             [64]byte
}

// recordBytes is the memory of a connection for its records.
const recordBytes = 2*int64(unsafe.Sizeof(Count{})) + 1

// recordMemory is the memory that the records of so many connections need beside the rings.
func (c *Config) recordMemory(maxFlows int64) int64 {
	if c.RecordsPerSecond == 0 {
		return 0
	}
	return maxFlows * recordBytes
}

// recordSlots is the room of a ring: a tenth of a second with 80,000 records per second.
const recordSlots = 1 << 13

// recorder is a handle's side of records.
type recorder struct {
	*records
	ring   *recordRing
	shared bool // with the handles of other control goroutines
}

// newRecords makes the handles of a table record connections, perSecond beginnings over all workers:
// nil for 0. Preconditions: nobody uses the table yet.
func newRecords(t *Table, perSecond, workers int) *records {
	if perSecond == 0 {
		return nil
	}
	rs := &records{counts: make([]Count, len(t.entries)), skipped: make([]bool, len(t.conns))}
	share := uint32(max(1, perSecond/workers))
	for i := range workers + 1 {
		rs.rings = append(rs.rings, &recordRing{slots: make([]Record, recordSlots), share: share})
		rs.rings[i].allowance = rs.rings[i].mostAllowance()
	}
	for i := range t.workers {
		at := min(i, workers)
		t.workers[i].rec = &recorder{records: rs, ring: rs.rings[at], shared: at == workers}
	}
	return rs
}

// mostAllowance is the allowance that a quiet time leaves: that of a second.
func (g *recordRing) mostAllowance() uint32 { return g.share * TicksPerSecond }

// keep reports whether a connection that begins at a tick is recorded. While more begin than
// there may be records, it takes every nth, by the number that began in the tick before, so that
// what comes first in a tick is not all.
func (g *recordRing) keep(tick uint32) bool {
	if tick != g.tick {
		// A tick adds share to the allowance, a record takes TicksPerSecond from it.
		ticks := min(tick-g.tick, TicksPerSecond)
		g.before = g.seen
		if ticks > 1 {
			g.before = 0
		}
		g.allowance = min(g.mostAllowance(), g.allowance+ticks*g.share)
		g.tick, g.seen = tick, 0
	}
	g.seen++
	every := uint32(1)
	if g.allowance < g.share { // the allowance of quiet times is spent
		every += g.before * TicksPerSecond / g.share
	}
	if g.seen%every != 0 || g.allowance < TicksPerSecond {
		g.stats.skipped.Store(g.stats.skipped.Load() + 1)
		return false
	}
	g.allowance -= TicksPerSecond
	return true
}

// begin makes ready for a connection that is not yet visible.
func (rc *recorder) begin(conn, tick uint32) {
	rc.counts[2*conn], rc.counts[2*conn+1] = Count{}, Count{}
	rc.skipped[conn] = !rc.ring.keep(tick)
}

// put writes a record of connection conn, in state word s.
func (rc *recorder) put(t *Table, conn, s uint32, cause Cause) {
	if rc.skipped[conn] {
		return
	}
	if rc.shared {
		rc.control.Lock()
		defer rc.control.Unlock()
	}
	g := rc.ring
	n := g.head.Load()
	if n-g.tail.Load() == uint64(len(g.slots)) {
		g.stats.lost.Store(g.stats.lost.Load() + 1)
		return
	}
	c, fw := &t.conns[conn], forwardRef(conn)
	r := &g.slots[n&uint64(len(g.slots)-1)]
	r.Client, r.Endpoint, r.Mode = t.Entry(fw).Tuple(), t.NewTuple(fw), t.Entry(fw).Mode
	r.EndpointID, r.ServiceID = atomic.LoadUint32(&c.EndpointID), atomic.LoadUint32(&c.ServiceID)
	r.Created, r.LastSeen, r.Word, r.Cause = c.Created(), c.LastSeen(), s, cause
	for dir := range r.Counts {
		from := &rc.counts[2*conn+uint32(dir)]
		r.Counts[dir] = Count{atomic.LoadUint64(&from.Packets), atomic.LoadUint64(&from.Bytes)}
	}
	g.head.Store(n + 1)
}

// count counts a packet of entry r, of n bytes.
func (rc *recorder) count(r Ref, n uint32) {
	c := &rc.counts[r-1]
	atomic.AddUint64(&c.Packets, 1)
	atomic.AddUint64(&c.Bytes, uint64(n))
}

// ReadRecords moves records that are there to out, of each worker in the order of events, and returns
// how many.
func (rs *records) ReadRecords(out []Record) (n int) {
	if rs == nil {
		return 0
	}
	rs.reading.Lock()
	defer rs.reading.Unlock()
	workers := len(rs.rings) - 1
	rs.first = (rs.first + 1) % workers
	for i := range rs.rings {
		g := rs.rings[workers] // last: what control goroutines end, workers have begun
		if i < workers {
			g = rs.rings[(rs.first+i)%workers]
		}
		at, end := g.tail.Load(), g.head.Load()
		for ; at != end && n < len(out); at++ {
			out[n] = g.slots[at&uint64(len(g.slots)-1)]
			n++
		}
		g.tail.Store(at)
	}
	return n
}

// Counts are the counts of packets by entry, nil where nothing is recorded.
func (rs *records) Counts() []Count {
	if rs == nil {
		return nil
	}
	return rs.counts
}

// SetCounts replaces the memory of [Table.Counts], by as much that others than the workers count in
// too, atomically. Preconditions: no worker has begun, and connections are recorded.
func (rs *records) SetCounts(c []Count) { rs.counts = c }

// RecordStats are the counts of records since the table was opened, 0 where nothing is recorded.
func (rs *records) RecordStats() (s RecordStats) {
	if rs == nil {
		return s
	}
	for _, g := range rs.rings {
		s.Written += g.head.Load()
		s.Lost += g.stats.lost.Load()
		s.Skipped += g.stats.skipped.Load()
	}
	return s
}
