package conntrack

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// newTable makes a table without memory.
func newTable(cfg Config) (*Table, error) {
	if cfg.Workers < 1 {
		return nil, fmt.Errorf("%d workers: want at least 1", cfg.Workers)
	}
	if cfg.MaxFlows < 0 || cfg.MaxFlows > mostFlows {
		return nil, fmt.Errorf("%d flows: want 1 to %d, or 0 for automatic", cfg.MaxFlows, mostFlows)
	}
	if cfg.MaxEndpoints < 0 {
		return nil, fmt.Errorf("%d endpoints: want at least 1, or 0 for the default", cfg.MaxEndpoints)
	}
	t := &Table{}
	var err error
	if t.timeouts, err = cfg.Timeouts.Ticks(); err != nil {
		return nil, err
	}
	t.epoch.Store(1)
	t.endpoints = make(flowCounts, maxEndpoints(cfg))
	t.services, t.failed = make(flowCounts, maxServices), make(flowCounts, maxServices)
	t.parts = make([]participant, cfg.Workers+controlHandles+1)
	t.workers = make([]Worker, len(t.parts))
	for i := range t.workers {
		t.workers[i].t, t.workers[i].part = t, &t.parts[i]
	}
	t.control = make(chan *Worker, controlHandles)
	for i := range controlHandles {
		t.control <- &t.workers[cfg.Workers+i]
	}
	t.sweeper = &t.workers[len(t.workers)-1]
	return t, nil
}

// size sets the fields that follow from the number of connections.
func (o *opener) size() {
	n := uint32(len(o.conns))
	o.ports.shortages = new([shortageSets][shortageWays]shortage)
	// A worker's private block must not be a large part of a small table.
	o.block = max(1, min(64, n/uint32(8*o.cfg.Workers)))
	// The connections that workers can create between an eviction and the end of the batch
	// in which all have passed it.
	o.reserve = max(1, n/16)
	// An eviction, one per block of new connections, looks at so many that the hand
	// goes round the table twice while the reserve lasts: at most 2048, 128 kB read
	// in order.
	o.look = uint32(2 * uint64(n) * uint64(o.block) / uint64(o.reserve))
	o.records = newRecords(o.Table, o.cfg.RecordsPerSecond, o.cfg.Workers)
}

// restorer restores the connections of an earlier process, which are in the table's memory.
type restorer struct{ *Table }

// restore restores the connections in the file. Transient parts are made anew: the index,
// the free lists, the endpoints' counters. A repetition makes the same changes, so the
// process may be killed at any moment.
//
// In borrowed memory the next-hop words of steady flows stay: the program of the process
// before goes by them until it is replaced. For this process they are words of the slow path,
// as its next hops have other stamps.
func (rs *restorer) restore() error {
	if err := rs.resumeClock(); err != nil {
		return err
	}
	if err := describe(rs.head, int64(len(rs.conns))); err != nil { // of a release without schemas, or damaged
		return err
	}
	rs.seed = rs.head.Shape.Seed
	rs.restored.Restored = true
	now := rs.Tick()
	rs.bound.Store(uint32(rs.restoreConns(now)))
	rs.progress.at.Store(uint64(now) << 32)
	rs.rebuildFree()
	return nil
}

const (
	// restoreStep is the number of connections that are restored in a row.
	restoreStep = 4096
	// restoreAlone is the number of connections from which on others help: about 3 ms. For fewer
	// the caller would wait for the threads of others longer than they save on a busy machine.
	restoreAlone = 1 << 14
)

// restoreConns restores the connections, many on all CPUs: packets wait for it. It returns the
// number behind the last.
func (rs *restorer) restoreConns(now uint32) (bound int64) {
	var (
		next    atomic.Int64
		running sync.WaitGroup
		mu      sync.Mutex
	)
	all := int64(len(rs.conns))
	restore := func(manyFound func()) {
		var r Restoration
		last := int64(-1)
		for from := next.Add(restoreStep) - restoreStep; from < all; from = next.Add(restoreStep) - restoreStep {
			last = max(last, rs.restorePart(from, min(from+restoreStep, all), now, &r))
			if r.Flows >= restoreAlone && manyFound != nil {
				manyFound()
				manyFound = nil
			}
		}
		mu.Lock()
		defer mu.Unlock()
		bound = max(bound, last+1)
		rs.restored.add(&r)
	}
	restore(func() {
		for range runtime.GOMAXPROCS(0) - 1 {
			running.Go(func() { restore(nil) })
		}
	})
	running.Wait()
	return bound
}

// add adds the connections of a part.
func (a *Restoration) add(part *Restoration) {
	a.Flows += part.Flows
	for why, n := range part.DiscardedBy {
		for range n {
			a.discard(why)
		}
	}
}

// restorePart restores the connections from from to before end, and notes them in r. It returns
// the last, or -1.
func (rs *restorer) restorePart(from, end int64, now uint32, r *Restoration) (last int64) {
	last = -1
	ahead := from
	for i := from; i < end; i++ {
		for ; ahead < min(i+restoreAhead, end); ahead++ {
			rs.prefetchRestored(uint32(ahead))
		}
		c := &rs.conns[i]
		if atomic.LoadUint32(&c.state)&flowstate.Published == 0 {
			continue
		}
		e := &rs.entries[2*i]
		if !rs.readElsewhere(uint32(i)) {
			rs.forget(uint32(i))
		}
		rs.noteSeen(uint32(i))
		if !rs.relink(uint32(i)) {
			atomic.StoreUint32(&c.state, 0)
			rs.forget(uint32(i))
			rs.raise(uint32(i))
			r.discard(Damaged)
			continue
		}
		c.EndpointID, c.ServiceID = NoID, NoID
		if int32(now-c.lastSeen) < 0 {
			// Or it would not age for years.
			rs.entries[2*i].seen, rs.entries[2*i+1].seen = now, now
			c.lastSeen = now
		}
		unconfirm(c, e)
		r.Flows++
		last = i
	}
	return last
}

// restoreAhead is how many connections ahead of the one that is restored the index is fetched.
const restoreAhead = 8

// prefetchRestored fetches the buckets of a connection that is about to be restored.
func (rs *restorer) prefetchRestored(conn uint32) {
	if atomic.LoadUint32(&rs.conns[conn].state)&flowstate.Published == 0 {
		return
	}
	h := [2]uint64{rs.Hash(&rs.entries[2*conn].Key), rs.Hash(&rs.entries[2*conn+1].Key)}
	prefetchBuckets(&rs.index.buckets[0], uint64(len(rs.index.buckets)), &h[0], len(h))
}

// unconfirm marks an open TCP connection of the process before: while nobody forwarded
// its packets the kernel may have reset it. It is confirmed by the first segment of
// either side. Until then it counts for nothing and goes before a new connection is
// refused. Without a segment it is forgotten two hours and five minutes after the last:
// keepalive comes every two hours. It is not young any more: with that it would leave the state in
// which the program of the process before forwards it, and wait for the next process.
func unconfirm(c *Conn, e *Entry) {
	s := atomic.LoadUint32(&c.state)
	switch {
	case e.Key.Proto() == ProtoUDP:
		atomic.StoreUint32(&c.state, s&^(flowstate.SinceMask|flowstate.Slow)) // the process may have ended in SetIDs
	case e.Key.Proto() == ProtoTCP && flowstate.CountsAsOpen(s):
		atomic.StoreUint32(&c.state, flowstate.Watched(s&^flowstate.Young|flowstate.Unconfirmed))
	}
}

// relink enters a published connection into the index if it is sound: the state exists and
// the recipes are right. The two recipes turn each key into the answer to the other, or the
// checksum of a mode without translation is right.
func (rs *restorer) relink(conn uint32) bool {
	fw, rv := &rs.entries[2*conn], &rs.entries[2*conn+1]
	if s := flowstate.Of(atomic.LoadUint32(&rs.conns[conn].state)); s == flowstate.None || s >= flowstate.Count {
		return false
	}
	if !fw.Key.canonical() {
		return false
	}
	switch fw.Mode {
	case ModeNAT, ModeDNAT:
		if !rv.Key.canonical() || !sound(*fw, *rv) {
			return false
		}
		if _, result := rs.index.insert(rs.Hash(&rv.Key), reverseRef(conn), false); result != inserted {
			return false
		}
	case ModeL2DSR, ModeIPIP, ModeGUE:
		if !soundOuter(fw, rv) {
			return false
		}
	default:
		return false
	}
	if atomic.LoadUint32(&rs.conns[conn].state)&flowstate.Superseded != 0 {
		return !fw.Mode.DSR()
	}
	if _, result := rs.index.insert(rs.Hash(&fw.Key), forwardRef(conn), false); result != inserted {
		if !fw.Mode.DSR() {
			rs.unlist(reverseRef(conn))
		}
		return false
	}
	return true
}

// readElsewhere reports whether the next-hop words of a connection are to stay for the
// program of the process before.
func (rs *restorer) readElsewhere(conn uint32) bool {
	fw := &rs.entries[2*conn]
	if rs.nextHops == 0 || flowstate.IsSteady(atomic.LoadUint32(&rs.conns[conn].state)) == 0 {
		return false
	}
	words := [2]uint64{rs.NextHop(forwardRef(conn))}
	if !fw.Mode.DSR() {
		words[1] = rs.NextHop(reverseRef(conn))
	}
	return words[0]&0xffff < rs.nextHops && words[1]&0xffff < rs.nextHops
}

// sound reports whether the recipes of two entries follow from their keys. The entries are
// copies: a program in the kernel may be reading the table's.
func sound(fw, rv Entry) bool {
	if fw.Key.Family() != 4 {
		fw.Addr4, rv.Addr4 = 0, 0 // the next-hop words
	}
	was := [2]Entry{fw, rv}
	complete(&fw, &rv)
	return was == [2]Entry{fw, rv} && fw.Key.W[4]>>32 == rv.Key.W[4]>>32 &&
		fw.Mode == rv.Mode && fw.Flags == 0 && rv.Flags&^FlagWatched == 0
}

// canonical reports whether the key of an entry has a family, and nothing in the word that
// neither a key of this family nor an entry uses: see [Entry].
func (k *Key) canonical() bool {
	switch k.W[4] >> 40 {
	case 4:
		return k.W[3] == 0
	case 6:
		return true
	}
	return false
}

// soundOuter reports whether the checksum of a connection without translation is right. An
// earlier release has left 0 in its place.
func soundOuter(fw, rv *Entry) bool {
	if fw.NewPorts != uint32(fw.Key.W[4]) || fw.AddrDelta|fw.L4Delta != 0 || rv.Kind() != Kind(fw.Mode) {
		return false
	}
	return rv.NewPorts == 0 || rv.NewPorts == outerSum(fw, &rv.Key)
}

// rebuildFree lists the connections below bound that are free.
func (rs *restorer) rebuildFree() {
	var l chain
	flush := func() {
		if l.n != 0 {
			rs.push(&rs.free, l)
			l = chain{}
		}
	}
	for conn := rs.bound.Load(); conn > 0; conn-- {
		if atomic.LoadUint32(&rs.conns[conn-1].state)&flowstate.Published == 0 {
			rs.chainPush(&l, conn-1)
		}
		if l.n == rs.block {
			flush()
		}
	}
	flush()
}

// resumeClock sets the clock so that ticks go on from those in the file. The monotonic
// clock decides unless it is a different clock (a time namespace). Then the wall clock
// does, which may have been set meanwhile, but never backward.
func (rs *restorer) resumeClock() error {
	now, base, err := bothClocks(monotonic)
	if err != nil {
		return err
	}
	h := rs.head
	const tick = int64(time.Second / TicksPerSecond)
	away := max(0, base.UnixNano()-h.LastWall)
	least := int64(h.LastTick) * tick
	since := now - h.Epoch
	if since < least || since > least+away+int64(flowstate.MaxTimeout) {
		since = least + min(away, int64(flowstate.MaxTimeout))
		atomic.StoreInt64(&h.Epoch, now-since)
	}
	rs.base = base.Add(-time.Duration(since % tick)) // when baseTick began
	rs.baseTick = uint32(since / tick)
	return nil
}
