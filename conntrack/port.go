package conntrack

import (
	"math/bits"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// cursor is the position of port rotation for the groups (SNAT address, endpoint
// address, endpoint port, protocol) that hash to it. Two groups that share a cursor do no
// harm: each skips some ports.
type cursor struct {
	at atomic.Uint32
	_  [3]uint32
}

const cursorCount = 1 << 16

// ports has the port rotation, and the groups that are short of ports.
type ports struct {
	cursors   []cursor
	shortages *[shortageSets][shortageWays]shortage
	_         [64]byte
	// shortUntil is the tick until which a group may be without ports to look at.
	shortUntil atomic.Uint32
	_          [60]byte
}

type linkResult uint8

const (
	linked        linkResult = iota
	linkContended            // lost to another worker; the entry was exposed
	linkAgain                // lost to another worker; nothing was exposed
	linkNoPort
	linkNoSlot // no room in the index; the entry may have been exposed
)

// linkReverse links the reverse entry of a connection. The uniqueness of that entry is the
// allocation of the port.
func (w *Worker) linkReverse(conn uint32, f *NewFlow) linkResult {
	switch {
	case f.Mode.DSR():
		return linked
	case f.Mode == ModeDNAT:
		return w.linkDirect(conn, f)
	}
	t := w.t
	key := &t.entries[2*conn+1].Key
	d := &f.prefetched
	if !d.picked {
		w.PickPort(f)
		if !d.picked {
			return linkNoPort
		}
	}
	d.picked = false
	setDstPort(key, d.port)
	if t.index.find(d.first, key) == 0 {
		return w.linkPort(conn, d.first, f)
	}
	return w.linkUsed(conn, f)
}

// linkUsed is linkReverse when the first port that the rotation offers is in use. It
// looks on for a fresh port, and for a flow whose port may pass to this one (see
// reuseOf and [NewFlow.Keep]).
func (w *Worker) linkUsed(conn uint32, f *NewFlow) linkResult {
	result := w.searchAll(conn, f)
	if result == linkNoPort && f.Keep != KeepNothing {
		w.t.ports.cursor(f.prefetched.group).at.Add(^uint32(0)) // the picked port goes to the next
	}
	return result
}

// searchAll is linkUsed, which keeps the rotation.
func (w *Worker) searchAll(conn uint32, f *NewFlow) linkResult {
	m := w.t.ports.shortageOf(f.prefetched.group)
	if !m.known(f.ports(), f.Tick) {
		return w.searchPort(conn, f, m, f.Keep, false)
	}
	for keep := KeepStreams; keep > f.Keep; keep = keep.less(f.Client.Proto()) {
		if result := w.searchPort(conn, f, m, keep, true); result != linkNoPort {
			return result
		}
	}
	return w.searchPort(conn, f, m, f.Keep, true)
}

// searchPort is linkUsed under one keep. As ports are given in rotation, the first of several
// flows is the oldest. While no fresh port is left, a search that spares flows looks at the oldest
// and then where the last of its kind has ended: all ports come in turn.
func (w *Worker) searchPort(conn uint32, f *NewFlow, m *shortage, keep Keep, known bool) linkResult {
	t := w.t
	key := &t.entries[2*conn+1].Key
	group, n := f.prefetched.group, f.ports()
	rotation := &t.ports.cursor(group).at
	at, limit := rotation, min(n, scanFresh)
	if known {
		if limit = min(n, m.left(keep, n, f.Tick)); limit == 0 {
			return linkNoPort
		}
	}
	best := candidate{class: portInUse}
	looked, moved, behind := uint32(0), uint32(0), uint32(0)
	for port := f.prefetched.port; port != 0; {
		setDstPort(key, port)
		h := t.Hash(key)
		r := t.index.find(h, key)
		if r == 0 {
			m.fresh()
			return w.linkPort(conn, h, f)
		}
		looked++
		if t.consider(&best, r, f) {
			best.port, behind = port, 0
		}
		if looked >= limit || best.settles(keep, known, looked) {
			break
		}
		if looked == looksBefore && known && keep != KeepNothing {
			at.Add(-moved)
			at = &m.hand
		}
		var steps uint32
		port, steps = f.nextPort(group, at)
		moved, behind = moved+steps, behind+steps
	}
	m.noFresh(looked, n, f.Tick, known)
	if best.class > keep.last() {
		m.spend(keep, looked, f.Tick)
		t.ports.shortUntil.Store(f.Tick + 1)
		if keep != KeepNothing && at == rotation && (known || n <= scanFresh) {
			at.Add(-moved)
		}
		return linkNoPort
	}
	at.Add(-behind) // the next look begins behind the taken port
	return w.takeOver(conn, f, &best)
}

// takeOver ends the flow that a candidate names and takes its port for conn.
func (w *Worker) takeOver(conn uint32, f *NewFlow, old *candidate) linkResult {
	t := w.t
	if !w.unlinkIn(old.ref.Conn(), old.state, CausePort) {
		return linkAgain
	}
	if old.class == portEnded {
		w.count.reused.Add(1)
	} else {
		w.count.displaced[old.class].Add(1)
	}
	key := &t.entries[2*conn+1].Key
	setDstPort(key, old.port)
	w.leftover.conn = 0
	if (flowstate.Of(old.state) == flowstate.SynRecv || flowstate.IsAborted(old.state)) && old.state&flowstate.ClientKnown != 0 {
		w.leftover.conn, w.leftover.seq = conn+1, atomic.LoadUint32(&t.Conn(old.ref).clientNext)
	}
	return w.linkPort(conn, t.Hash(key), f)
}

// Leftover returns the sequence number of a RST that ends the endpoint's half-open or aborted TCP
// connection whose SNAT port the flow of r has taken over. ok is false if there is no
// such flow, or if it was asked for before. It is called right after Create.
func (w *Worker) Leftover(r Ref) (seq uint32, ok bool) {
	if w.leftover.conn != r.Conn()+1 {
		return 0, false
	}
	w.leftover.conn = 0
	return w.leftover.seq, true
}

// linkPort links the reverse entry with the port now in the key.
func (w *Worker) linkPort(conn uint32, h uint64, f *NewFlow) linkResult {
	complete(&w.t.entries[2*conn], &w.t.entries[2*conn+1])
	w.t.settleNew(conn, f)
	switch _, result := w.t.index.insert(h, reverseRef(conn), false); result {
	case inserted:
		return linked
	case exists:
		return linkContended
	}
	return linkNoSlot
}

// linkDirect links a reverse entry that keeps the client's address and port.
func (w *Worker) linkDirect(conn uint32, f *NewFlow) linkResult {
	t := w.t
	key := &t.entries[2*conn+1].Key
	h := t.Hash(key)
	if r := t.index.find(h, key); r != 0 {
		s := atomic.LoadUint32(&t.Conn(r).state)
		if !flowstate.PortReusable(s) {
			return linkNoPort
		}
		// The client has given that connection up, or it could not use the port.
		if !w.unlinkIn(r.Conn(), s, CausePort) {
			return linkAgain
		}
	}
	return w.linkPort(conn, h, f)
}

func setDstPort(k *Key, port uint16) {
	k.W[4] = k.W[4]&^(0xffff<<16) | uint64(bits.ReverseBytes16(port))<<16
}
