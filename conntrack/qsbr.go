package conntrack

import (
	"sync/atomic"
)

// participant is a worker's part in reclamation, on separate cache lines.
type participant struct {
	_ [64]byte
	// local is the epoch at the worker's last Quiesce, 0 while it is offline.
	local atomic.Uint64
	_     [56]byte
}

// stack is a lock-free stack of blocks of connections. head is a count of changes
// <<32 | number + 1 of the top block's first connection; the count keeps a slow
// pop from mistaking a block that came back for the one that it saw.
type stack struct {
	_     [64]byte
	head  atomic.Uint64
	count atomic.Int64 // connections in it
	_     [48]byte
}

// link is a connection's part in lists. It is not in the Conn: a worker may still write that
// while the connection is in limbo.
type link struct {
	next uint32 // number + 1 of the next connection of the block
	// block is, of the first connection, the same of the next block in the stack, of the
	// second the number of connections in the block.
	block uint32
}

// pool has the numbers of connections. Those at and above bound were never used; of the others each
// is in use, in a worker's private list, free, or in limbo.
type pool struct {
	links []link
	block uint32 // connections that move between lists at once
	parts []participant

	_     [64]byte
	epoch atomic.Uint64 // starts at 1
	_     [56]byte
	bound atomic.Uint32
	_     [60]byte
	free  stack
	limbo [3]stack // by epoch modulo 3
	_     [64]byte
}

// push puts a chain on the stack as a block.
func (p *pool) push(s *stack, l chain) {
	first := &p.links[l.first-1]
	if second := atomic.LoadUint32(&first.next); second != 0 {
		atomic.StoreUint32(&p.links[second-1].block, l.n)
	}
	for {
		h := s.head.Load()
		atomic.StoreUint32(&first.block, uint32(h))
		if s.head.CompareAndSwap(h, (h>>32+1)<<32|uint64(l.first)) {
			s.count.Add(int64(l.n))
			return
		}
	}
}

// pop returns the top block, which is empty if the stack is.
func (p *pool) pop(s *stack) chain {
	for {
		h := s.head.Load()
		if uint32(h) == 0 {
			return chain{}
		}
		l := chain{first: uint32(h), n: 1}
		first := &p.links[l.first-1]
		below := atomic.LoadUint32(&first.block)
		if s.head.CompareAndSwap(h, (h>>32+1)<<32|uint64(below)) {
			if second := atomic.LoadUint32(&first.next); second != 0 {
				l.n = atomic.LoadUint32(&p.links[second-1].block)
			}
			s.count.Add(-int64(l.n))
			return l
		}
	}
}

// Quiesce says that the worker holds no Ref from before: call it once per batch.
// It costs one load unless connections were deleted since.
func (w *Worker) Quiesce() {
	if w.pending.n != 0 && !w.ageing() { // else there may be more to go with them
		w.flush()
	}
	if e := w.t.epoch.Load(); e != w.local {
		w.local = e
		w.part.local.Store(e)
	}
	if w.t.limboSize() != 0 {
		w.reclaim(quiesceBlocks, false)
	}
}

// quiesceBlocks bounds what a worker frees for all in one Quiesce.
const quiesceBlocks = 8

// Offline takes the worker out of the count while it sleeps: it holds no Ref and
// calls nothing until Online. A worker starts offline.
func (w *Worker) Offline() {
	w.flush()
	w.leave()
}

func (w *Worker) leave() {
	w.local = 0
	w.part.local.Store(0)
}

// Online ends Offline.
func (w *Worker) Online() {
	w.local = w.t.epoch.Load()
	w.part.local.Store(w.local)
}

// chain is a private list of connections.
type chain struct {
	first uint32 // number + 1
	n     uint32
}

func (p *pool) chainPush(l *chain, conn uint32) {
	storeRelaxed(&p.links[conn].next, l.first)
	l.first = conn + 1
	l.n++
}

func (p *pool) chainPop(l *chain) uint32 {
	conn := l.first - 1
	l.first = atomic.LoadUint32(&p.links[conn].next)
	l.n--
	return conn
}

// retire gives up a connection that others may still be reading.
func (w *Worker) retire(conn uint32) {
	w.t.raise(conn)
	w.t.chainPush(&w.pending, conn)
	if w.pending.n >= w.t.block {
		w.flush()
	}
}

// raise gives the entries of an unlinked connection another generation.
func (cs *cells) raise(conn uint32) {
	cs.entries[2*conn].gen++
	cs.entries[2*conn+1].gen++
}

// flush puts the retired connections into limbo. The epoch is read after they were
// unlinked: workers that may still see them are at that epoch or before.
func (w *Worker) flush() {
	if w.pending.n == 0 {
		return
	}
	w.t.push(&w.t.limbo[w.t.epoch.Load()%3], w.pending)
	w.pending = chain{}
}

func (p *pool) limboSize() int64 {
	return p.limbo[0].count.Load() + p.limbo[1].count.Load() + p.limbo[2].count.Load()
}

// reclaim frees up to max blocks of limbo and moves the epoch on if it can. It
// does so only when every online worker, this one too, has reached epoch e: then no worker
// sees connections retired at e-1. As this worker stays at e meanwhile, the
// epoch cannot pass e+1, so nothing is retired into the list that it empties.
// With force the epoch moves also when there is nothing to free.
func (w *Worker) reclaim(max int, force bool) {
	t := w.t
	e := w.local
	if e != t.epoch.Load() {
		return
	}
	for i := range t.parts {
		if l := t.parts[i].local.Load(); l != 0 && l != e {
			return
		}
	}
	old := &t.limbo[(e+2)%3] // e-1
	for ; max > 0; max-- {
		l := t.pop(old)
		if l.n == 0 {
			break
		}
		t.push(&t.free, l)
	}
	if uint32(old.head.Load()) != 0 || !force && uint32(t.limbo[e%3].head.Load()) == 0 {
		return
	}
	t.epoch.CompareAndSwap(e, e+1)
}

// spares are the free connections that are next in turn, first in, first out. Their lines
// are being fetched: a chain alone names the next only.
type spares struct {
	first, n uint32
	conn     [8]uint32
}

// alloc returns a connection that nobody else can see.
func (w *Worker) alloc(tick uint32) (uint32, bool) {
	s := &w.spares
	if w.cache.n == 0 && s.n == 0 && !w.refill(tick) {
		return 0, false
	}
	for n := 0; w.cache.n != 0 && s.n < uint32(len(s.conn)) && n < 2; n++ {
		s.conn[(s.first+s.n)%uint32(len(s.conn))] = w.spare()
		s.n++
	}
	conn := s.conn[s.first%uint32(len(s.conn))]
	s.first++
	s.n--
	return conn, true
}

// spare takes a connection out of the chain of free ones, and asks for its lines and for the
// next one's link.
func (w *Worker) spare() uint32 {
	t := w.t
	conn := t.chainPop(&w.cache)
	r := [2]Ref{forwardRef(conn), reverseRef(conn)}
	prefetchEntries(&t.entries[0], &r[0], len(r))
	prefetchConn(&t.conns[conn])
	if next := w.cache.first; next != 0 {
		prefetchLink(&t.links[next-1])
	}
	return conn
}

// refill gets the next block of free connections: a used block first, else a block that was
// never used. When few are left it evicts, so that there are free connections when these
// are gone.
func (w *Worker) refill(tick uint32) bool {
	t := w.t
	if t.available() < int64(t.reserve) {
		w.evict(tick)
	}
	if w.take() {
		return true
	}
	w.flush()
	w.reclaim(quiesceBlocks, false)
	return w.take()
}

func (w *Worker) take() bool {
	t := w.t
	if l := t.pop(&t.free); l.n != 0 {
		w.cache = l
		return true
	}
	for {
		b := t.bound.Load()
		n := min(t.block, uint32(len(t.conns))-b)
		if n == 0 {
			return false
		}
		if t.bound.CompareAndSwap(b, b+n) {
			for i := n; i > 0; i-- {
				t.chainPush(&w.cache, b+i-1)
			}
			return true
		}
	}
}

// available returns how many connections are free to take, but for the workers'
// private blocks and those in limbo.
func (p *pool) available() int64 {
	return p.free.count.Load() + int64(len(p.links)) - int64(p.bound.Load())
}

// release gives back a connection that was never exposed.
func (w *Worker) release(conn uint32) { w.t.chainPush(&w.cache, conn) }
