package conntrack

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
)

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
	rec      *recorder // nil: nothing is recorded
	_        [64]byte
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
			if w.unlinkIn(conn, s, CauseReplaced) {
				w.count.deleted.Add(1)
				return true
			}
		case atomic.CompareAndSwapUint32(&c.state, s, s|flowstate.Superseded):
			t.unlist(forwardRef(conn))
			return true
		}
	}
}

// Records reports whether connections are recorded, and so whether CountPacket does anything.
func (w *Worker) Records() bool { return w.rec != nil }

// CountPacket counts a packet of entry r, of n bytes from the IP header on.
func (w *Worker) CountPacket(r Ref, n uint32) {
	if w.rec != nil {
		w.rec.count(r, n)
	}
}

// unlink claims a published connection, removes both entries and retires it.
func (w *Worker) unlink(conn uint32) bool {
	c := &w.t.conns[conn]
	for {
		s := atomic.LoadUint32(&c.state)
		if s&flowstate.Published == 0 {
			return false
		}
		if w.unlinkIn(conn, s, CauseDeleted) {
			return true
		}
	}
}

// unlinkIn is unlink of a connection that must still be in state word s.
func (w *Worker) unlinkIn(conn, s uint32, cause Cause) bool {
	if s&flowstate.Published == 0 || !w.t.changeState(&w.t.conns[conn], s, 0) {
		return false
	}
	if w.rec != nil {
		w.t.noteSeen(conn)
		w.rec.put(w.t, conn, s, cause)
	}
	w.dispose(conn, s)
	return true
}

// unlist takes live entry r out of the index.
func (t *Table) unlist(r Ref) { t.index.remove(t.Hash(&t.entries[r-1].Key), r) }

// dispose takes a connection that was claimed in state word s out of the index and
// the counters.
func (w *Worker) dispose(conn, s uint32) {
	t, c := w.t, &w.t.conns[conn]
	t.unlist(forwardRef(conn))
	if !t.entries[2*conn].Mode.DSR() {
		t.unlist(reverseRef(conn))
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
