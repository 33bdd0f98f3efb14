package conntrack

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// Verification is the result of Table.Verify.
type Verification struct {
	Connections int // published ones
	Slots       int // of the index that are in use
	// Faults are violated invariants, at most maxFaults; More counts those beyond.
	Faults []string
	More   int
}

const (
	maxFaults = 100
	// verifyPasses is how often an anomaly must be seen to be a fault, verifyPause apart: a
	// worker may be between two steps. Each pass looks only at those of the pass before.
	verifyPasses = 5
	verifyPause  = 100 * time.Millisecond
)

func (v *Verification) fault(format string, args ...any) {
	if len(v.Faults) == maxFaults {
		v.More++
		return
	}
	v.Faults = append(v.Faults, fmt.Sprintf(format, args...))
}

// Verify checks the invariants of the table while workers go on:
//
//   - each connection is in the index: under the client's tuple unless superseded, under the
//     endpoint's where there is a reverse entry
//   - each slot of the index belongs to a connection, at the place where a look-up finds it;
//     a SNAT port is taken by such a slot and by nothing else
//   - each connection ever used is published, free, in limbo or in a worker's private lists
//   - the number of connections of an endpoint that none begins or ends at is right
//
// It waits for no worker and no worker for it. It takes about 100 ns for each connection, and
// half a second.
func (t *Table) Verify(ctx context.Context) (*Verification, error) {
	vf := &verifier{Table: t}
	suspects, err := vf.verifyIndex(ctx)
	if err != nil {
		return nil, err
	}
	counts := vf.countedWrong(ctx, nil)
	for range verifyPasses - 1 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(verifyPause):
		}
		suspects = slices.DeleteFunc(suspects, func(s slotAt) bool { return !vf.suspect(s) })
		if len(counts) != 0 {
			counts = vf.countedWrong(ctx, counts)
		}
	}
	for _, s := range suspects {
		vf.fault("index: slot %d of bucket %d has entry %d, of no connection or in a wrong place", s.slot, s.bucket, s.word)
	}
	for n, c := range counts {
		vf.fault("endpoint %d counts %d connections and has %d", n, c.counted, c.found)
	}
	vf.verifyFree()
	return &vf.Verification, ctx.Err()
}

// verifier verifies a table.
type verifier struct {
	*Table
	Verification
}

// verifyIndex looks at connections, and at the slots of the index. It returns the slots that
// may be wrong.
func (vf *verifier) verifyIndex(ctx context.Context) (suspects []slotAt, err error) {
	vf.Range(func(r Ref) bool {
		vf.Connections++
		vf.verifyConn(r.Conn())
		return ctx.Err() == nil
	})
	w := vf.acquire()
	if w == nil {
		return nil, nil // closed
	}
	defer vf.yield(w)
	for i := range vf.index.buckets {
		if i%256 == 0 {
			w.Quiesce()
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
		for s := range vf.index.buckets[i].slot {
			word := vf.index.buckets[i].slot[s].Load()
			if word == 0 {
				continue
			}
			vf.Slots++
			if at := (slotAt{uint32(i), uint32(s), word}); vf.misplaced(at) && len(suspects) < maxFaults {
				suspects = append(suspects, at)
			}
		}
	}
	return suspects, ctx.Err()
}

// verifyConn checks that a published connection is found. Its state word is read before and
// after: a connection leaves the index only after the word has changed.
func (vf *verifier) verifyConn(conn uint32) {
	c := &vf.conns[conn]
	before := atomic.LoadUint32(&c.state)
	refs := []Ref{forwardRef(conn), reverseRef(conn)}
	if vf.entries[2*conn].Mode.DSR() {
		refs = refs[:1]
	} else if before&flowstate.Superseded != 0 {
		refs = refs[1:]
	}
	for _, r := range refs {
		e := &vf.entries[r-1]
		key := e.Tuple()
		found := vf.index.find(vf.Hash(&key), &key)
		if after := atomic.LoadUint32(&c.state); found != r && before&flowstate.Published != 0 && (before^after)&(flowstate.Published|flowstate.Superseded) == 0 {
			vf.fault("connection %d: the entry of %s > %s is found as %d in place of %d", conn, key.Src(), key.Dst(), found, r)
		}
	}
}

// slotAt is a slot of the index with the word that it had.
type slotAt struct{ bucket, slot, word uint32 }

// misplaced reports whether a slot is between two states, or has an entry that no
// connection has published or that a look-up does not find there.
func (vf *verifier) misplaced(s slotAt) bool {
	if s.word >= slotPending || uint64(s.word) > uint64(len(vf.entries)) {
		return true
	}
	r := Ref(s.word)
	state := atomic.LoadUint32(&vf.conns[r.Conn()].state)
	if state&flowstate.Published == 0 || r.Forward() && state&flowstate.Superseded != 0 || !r.Forward() && vf.entries[2*r.Conn()].Mode.DSR() {
		return true
	}
	l := vf.index.locate(vf.Hash(&vf.entries[r-1].Key), r)
	return l.ref != r || vf.index.bucketAt(l.hash, l.at.probe) != &vf.index.buckets[s.bucket] || l.at.slot != s.slot
}

// suspect reports whether a slot still is as it was seen.
func (vf *verifier) suspect(s slotAt) bool {
	w := vf.acquire()
	if w == nil {
		return false
	}
	defer vf.yield(w)
	return vf.index.buckets[s.bucket].slot[s.slot].Load() == s.word && vf.misplaced(s)
}

// counted is the number of connections of an endpoint by its counter and in the table.
type counted struct{ counted, found uint32 }

// countedWrong returns the endpoints whose counter is wrong; with only, those of only that
// are wrong in the same manner as before: a busy endpoint's counter changes meanwhile.
func (vf *verifier) countedWrong(ctx context.Context, only map[uint32]counted) map[uint32]counted {
	before := make([]uint32, len(vf.endpoints))
	for n := range vf.endpoints {
		before[n] = uint32(vf.endpoints[n].Load())
	}
	found := make([]uint32, len(vf.endpoints))
	vf.Range(func(r Ref) bool {
		if n := atomic.LoadUint32(&vf.conns[r.Conn()].EndpointID); uint64(n) < uint64(len(found)) {
			found[n]++
		}
		return ctx.Err() == nil
	})
	wrong := map[uint32]counted{}
	for n := range before {
		c := counted{before[n], found[n]}
		if c.counted == c.found || uint32(vf.endpoints[n].Load()) != c.counted {
			continue
		}
		if only == nil || only[uint32(n)] == c {
			wrong[uint32(n)] = c
		}
	}
	return wrong
}

// verifyFree checks that no connection is lost to all lists. The lists change meanwhile, so
// that the least difference of several attempts counts. Each worker may hold some privately.
func (vf *verifier) verifyFree() {
	private := int64(len(vf.workers)) * int64(2*vf.block+uint32(len(Worker{}.spares.conn)))
	least := int64(1) << 62
	for range 100 {
		bound := int64(vf.bound.Load())
		least = min(least, bound-int64(vf.Flows())-vf.free.count.Load()-vf.limboSize())
	}
	if least > private {
		vf.fault("%d connections are neither in use nor free, which workers have at most %d of", least, private)
	}
	if least < -private {
		vf.fault("%d connections are in two lists", -least)
	}
}
