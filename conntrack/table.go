package conntrack

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// Table is the flow table. Methods may be called from any goroutine.
type Table struct {
	// Fixed after Open.
	seed      [4]uint64
	timeouts  [flowstate.Count]uint32
	conns     []Conn
	entries   []Entry // 2 per connection: forward, reverse
	links     []link  // 1 per connection
	cursors   []cursor
	shortages *[shortageSets][shortageWays]shortage
	buckets   []bucket
	endpoints flowCounts
	services  flowCounts
	failed    flowCounts // handshakes per Service, see ServiceFailed
	head      *header
	mem       *mapping
	nextHops  uint64 // those of Config if the table is in Config.Memory
	block     uint32 // connections that move between lists at once
	reserve   uint32 // below that many free ones connections are evicted
	look      uint32 // connections that an eviction looks at
	restored  Restoration
	base      time.Time // when Tick was baseTick
	baseTick  uint32

	_               [64]byte
	epoch           atomic.Uint64 // starts at 1
	_               [56]byte
	bound           atomic.Uint32 // connections at and above it were never used
	_               [60]byte
	hand            atomic.Uint32 // where the next eviction looks
	lookedSinceFind atomic.Uint32 // connections that evictions passed since one was found
	pausedUntil     atomic.Uint32 // tick before which nothing is evicted; 0 = none
	// shortUntil is the tick until which a group may be without ports to look at.
	shortUntil atomic.Uint32
	// unsettled counts the clearings of next-hop words, see steady.go.
	unsettled atomic.Uint32
	_         [44]byte
	free      stack
	limbo     [3]stack // by epoch modulo 3
	parts     []participant

	progress sweepProgress

	workers     []Worker // the caller's, then the control goroutines'
	control     chan *Worker
	sweepMu     sync.Mutex
	sweeper     *Worker                        // guarded by sweepMu
	stateCounts [flowstate.Count]atomic.Uint32 // of the last whole sweep
	closing     atomic.Bool
	closed      bool // guarded by sweepMu
}

// Worker is a goroutine's handle of the table.
type Worker struct {
	t       *Table
	part    *participant
	local   uint64 // copy of part.local
	cache   chain  // free connections
	spares  spares // free connections that were taken from cache
	pending chain  // retired, not yet in limbo
	count   counters
	chunk   sweepChunk
	// evictedAt is the number of connections that the worker had made or refused at the
	// last eviction, in tick evictTick.
	evictedAt uint64
	evictTick uint32
	// leftover is of the last SNAT port taken over, for the connection conn-1: see
	// Leftover. conn 0 is none.
	leftover struct{ conn, seq uint32 }
	_        [64]byte
}

// controlHandles is how many control goroutines may be inside the table at once;
// more wait for each other.
const controlHandles = 16

// Worker returns the handle of worker i (0 <= i < Config.Workers). It is offline until the
// first Online or Quiesce.
func (t *Table) Worker(i int) *Worker { return &t.workers[i] }

// acquire lends a control goroutine a handle, online; nil once the table is closed.
func (t *Table) acquire() *Worker {
	w := <-t.control
	if w != nil {
		w.Online()
	}
	return w
}

// yield takes the handle back. Retired connections stay with the handle until there is a
// block, or the next Sweep. Otherwise many deletions would make as many lists of a single
// connection.
func (t *Table) yield(w *Worker) {
	w.leave()
	t.control <- w
}

// Entry returns the entry that r names. It must not be written.
func (t *Table) Entry(r Ref) *Entry { return &t.entries[r-1] }

// Entries returns all entries, that of a Ref at the Ref less 1. They must not be written,
// and only an entry that a look-up has returned may be read.
func (t *Table) Entries() []Entry { return t.entries }

// Conn returns the changing words of the connection that r belongs to, with the packets
// on the fast path noted.
func (t *Table) Conn(r Ref) *Conn { return t.current(r.Conn()) }

// Changing is [Table.Conn] without that note.
func (t *Table) Changing(r Ref) *Conn { return &t.conns[r.Conn()] }

// Seed returns the seed of Hash. It is random per table and survives restoration.
func (t *Table) Seed() [4]uint64 { return t.seed }

// MaxFlows returns the number of connections that the table can hold.
func (t *Table) MaxFlows() int { return len(t.conns) }

// Tick returns the coarse time now, in 1/TicksPerSecond seconds since the table
// was first made; it carries on over restoration. Workers call it once per batch.
func (t *Table) Tick() uint32 {
	return t.baseTick + uint32(time.Since(t.base)*TicksPerSecond/time.Second)
}

// Delete removes the connection that r belongs to. It reports false when another
// has done so already. Both directions are unknown at once; r stays readable
// until the worker's next Quiesce.
func (w *Worker) Delete(r Ref) bool {
	if !w.unlink(r.Conn()) {
		return false
	}
	w.count.deleted.Add(1)
	return true
}

// Supersede makes room for a new connection with the client's tuple of r, whose
// connection is over. The client's side is forgotten at once. The SNAT port stays taken
// while the endpoint may hold TIME_WAIT for it: as long as the connection would have lived,
// or until Create finds that it suits another SYN. The endpoint would answer any SYN from
// it with a challenge ACK, and cost that client a second. It reports false when another
// worker was quicker.
func (w *Worker) Supersede(r Ref) bool {
	t, conn := w.t, r.Conn()
	c := &t.conns[conn]
	for {
		s := atomic.LoadUint32(&c.state)
		switch {
		case s&flowstate.Published == 0 || s&flowstate.Superseded != 0 || !flowstate.SYNBeginsAnew(s) && !flowstate.SYNReopens(s):
			return false
		case flowstate.Of(s) == flowstate.Close || t.entries[2*conn].Mode.DSR():
			if w.unlinkIn(conn, s) {
				w.count.deleted.Add(1)
				return true
			}
		case atomic.CompareAndSwapUint32(&c.state, s, s|flowstate.Superseded):
			t.remove(forwardRef(conn))
			return true
		}
	}
}

// Delete is Worker.Delete for control goroutines, usually from inside Range.
func (t *Table) Delete(r Ref) bool {
	w := t.acquire()
	if w == nil {
		return false
	}
	defer t.yield(w)
	return w.Delete(r)
}

// unlink claims a published connection, removes both entries and retires it.
func (w *Worker) unlink(conn uint32) bool {
	c := &w.t.conns[conn]
	for {
		s := atomic.LoadUint32(&c.state)
		if s&flowstate.Published == 0 {
			return false
		}
		if w.unlinkIn(conn, s) {
			return true
		}
	}
}

// unlinkIn is unlink of a connection that must still be in state word s.
func (w *Worker) unlinkIn(conn, s uint32) bool {
	if s&flowstate.Published == 0 || !w.t.changeState(&w.t.conns[conn], s, 0) {
		return false
	}
	w.dispose(conn, s)
	return true
}

// dispose takes a connection that was claimed in state word s out of the index and
// the counters.
func (w *Worker) dispose(conn, s uint32) {
	t, c := w.t, &w.t.conns[conn]
	t.remove(forwardRef(conn))
	if !t.entries[2*conn].Mode.DSR() {
		t.remove(reverseRef(conn))
	}
	t.endpoints.add(atomic.SwapUint32(&c.EndpointID, freedID), -endpointCounts(s))
	service := atomic.SwapUint32(&c.ServiceID, freedID)
	t.services.add(service, -serviceCounts(s))
	if flowstate.InHandshake(s) {
		t.failed.add(service, 1)
	}
	w.count.gone.Add(1)
	w.retire(conn)
}

// SetIDs gives the connection that r belongs to another endpoint's and Service's
// numbers, and moves the counters: the numbers of a restored table are those of another
// process, and a Service's UDP flows may follow it. For a single control goroutine,
// from inside Range: beside packets for a UDP flow, else only while no packet changes
// the connection's state.
func (t *Table) SetIDs(r Ref, endpoint, service uint32) {
	c := t.Conn(r)
	s := atomic.LoadUint32(&c.state)
	if t.entries[r-1].Key.Proto() == ProtoUDP {
		s = c.renumbering(true)
		defer c.renumbering(false)
	}
	t.services.move(&c.ServiceID, service, serviceCounts(s))
	t.endpoints.move(&c.EndpointID, endpoint, endpointCounts(s))
}

// renumbering keeps the state of a UDP flow, and so the counters, as they are until it is
// called again: see TrackUDP. It returns the state word.
func (c *Conn) renumbering(begins bool) uint32 {
	for {
		s := atomic.LoadUint32(&c.state)
		if s&flowstate.Published == 0 {
			return s // deleted
		}
		n := s&^flowstate.SinceMask | (s+1<<flowstate.SinceShift)&flowstate.SinceMask
		if begins {
			n |= flowstate.Renumbered
		} else {
			n &^= flowstate.Renumbered
		}
		if atomic.CompareAndSwapUint32(&c.state, s, n) {
			return n
		}
	}
}

// EndpointAddr returns the endpoint that a connection was sent to.
func (t *Table) EndpointAddr(r Ref) netip.AddrPort {
	return t.NewDst(forwardRef(r.Conn()))
}
