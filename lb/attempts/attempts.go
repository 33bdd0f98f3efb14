// Package attempts counts how new connections to each endpoint fare: answered, refused, or
// without an answer. Packets of established flows are not seen here.
//
// An attempt is a TCP handshake or a UDP flow:
//
//   - answered: the SYN-ACK has come, or the first datagram of the endpoint. In the modes
//     without translation answers do not pass Weir: then the client's ACK shows that the
//     endpoint has answered.
//   - refused: the endpoint has answered the SYN with a RST, or a datagram or SYN with ICMP port
//     unreachable.
//   - unanswered: the client has sent its SYN again, because no answer came within a second; or
//     the next hop to the endpoint did not answer, or no route leads there. A flow that begins at another
//     endpoint for that is no attempt.
//
// Each is counted at most once per TCP connection. Of UDP every ICMP error counts. Of a range of ports
// what is refused or unanswered counts at the port with which the endpoint is listed alone.
package attempts

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
)

// Records are kept in chunks that come into being when an endpoint number is assigned.
const (
	chunkBits = 9
	chunkSize = 1 << chunkBits
)

// record is written by workers: rarely, and by several at a time.
type record struct {
	answered, refused, unanswered atomic.Uint64
	// failing is the number of failures since the last answer in the upper half, and the tick
	// of the last failure in the lower.
	failing atomic.Uint64
}

// Table has the counts per endpoint number. A nil Table counts nothing. All methods but Assign
// may be called by any goroutine; none takes a lock.
type Table struct {
	chunks []atomic.Pointer[[chunkSize]record]
	shown  bool // it is that of a View
}

// View is the table for who only reads it: what fails and succeeds there is not counted.
func (t *Table) View() *Table {
	if t == nil {
		return nil
	}
	return &Table{t.chunks, true}
}

// Counts are those of an endpoint number since it was assigned.
type Counts struct {
	Answered, Refused, Unanswered uint64
	// InARow is how many attempts have failed since the last answer.
	InARow uint32
	// LastFailure is the tick of the last failure, of the flow table's clock; valid if there
	// was one.
	LastFailure uint32
}

// Failed is the number of attempts that failed.
func (c *Counts) Failed() uint64 { return c.Refused + c.Unanswered }

// New makes a table for endpoint numbers up to most.
func New(most int) *Table {
	return &Table{chunks: make([]atomic.Pointer[[chunkSize]record], most>>chunkBits+1)}
}

// Assign begins the counts of number n anew: it becomes the number of another endpoint. The
// caller makes one call at a time, before a worker knows of the endpoint.
func (t *Table) Assign(n uint32) {
	if t == nil || int(n>>chunkBits) >= len(t.chunks) {
		return
	}
	if r := t.of(n); r != nil {
		r.answered.Store(0)
		r.refused.Store(0)
		r.unanswered.Store(0)
		r.failing.Store(0)
		return
	}
	t.chunks[n>>chunkBits].Store(new([chunkSize]record))
}

// of returns the record of number n, nil if it has none.
func (t *Table) of(n uint32) *record {
	if t == nil || int(n>>chunkBits) >= len(t.chunks) {
		return nil
	}
	chunk := t.chunks[n>>chunkBits].Load()
	if chunk == nil {
		return nil
	}
	return &chunk[n%chunkSize]
}

// Answered counts an attempt that endpoint number n has answered.
func (t *Table) Answered(n uint32) {
	r := t.of(n)
	if r == nil || t.shown {
		return
	}
	r.answered.Add(1)
	if v := r.failing.Load(); v>>32 != 0 {
		r.failing.CompareAndSwap(v, v&math.MaxUint32)
	}
}

// Refused counts an attempt that endpoint number n has refused.
func (t *Table) Refused(n, tick uint32) {
	if r := t.of(n); r != nil && !t.shown {
		r.refused.Add(1)
		r.failed(tick)
	}
}

// Unanswered counts an attempt that endpoint number n has not answered in time.
func (t *Table) Unanswered(n, tick uint32) {
	if r := t.of(n); r != nil && !t.shown {
		r.unanswered.Add(1)
		r.failed(tick)
	}
}

func (r *record) failed(tick uint32) {
	for {
		v := r.failing.Load()
		if r.failing.CompareAndSwap(v, min(v>>32+1, math.MaxUint32)<<32|uint64(tick)) {
			return
		}
	}
}

// Of returns the counts of number n.
func (t *Table) Of(n uint32) Counts {
	r := t.of(n)
	if r == nil {
		return Counts{}
	}
	failing := r.failing.Load()
	return Counts{
		Answered: r.answered.Load(), Refused: r.refused.Load(), Unanswered: r.unanswered.Load(),
		InARow: uint32(failing >> 32), LastFailure: uint32(failing),
	}
}

// Numbered are the counts of an endpoint number.
type Numbered struct {
	Number uint32
	Counts
}

// Failing returns the numbers of which at least so many attempts in a row have failed. It looks at every
// number that was assigned, some nanoseconds each.
func (t *Table) Failing(inARow uint32) (out []Numbered) {
	for i := range t.chunks {
		chunk := t.chunks[i].Load()
		if chunk == nil {
			continue
		}
		for j := range chunk {
			if uint32(chunk[j].failing.Load()>>32) >= inARow {
				n := uint32(i<<chunkBits + j)
				out = append(out, Numbered{n, t.Of(n)})
			}
		}
	}
	return out
}

// Worst returns the numbers with the most failures, at most limit, the worst first. It looks at
// every number that was assigned, some nanoseconds each.
func (t *Table) Worst(limit int) []Numbered {
	var worst []Numbered
	least := uint64(1)
	for i := range t.chunks {
		chunk := t.chunks[i].Load()
		if chunk == nil {
			continue
		}
		for j := range chunk {
			if chunk[j].refused.Load()+chunk[j].unanswered.Load() < least {
				continue
			}
			n := uint32(i<<chunkBits + j)
			worst = append(worst, Numbered{n, t.Of(n)})
			if len(worst) == 2*limit {
				worst = worst[:sortWorst(worst, limit)]
				least = worst[limit-1].Failed() + 1
			}
		}
	}
	return worst[:sortWorst(worst, limit)]
}

func sortWorst(list []Numbered, limit int) int {
	slices.SortFunc(list, func(a, b Numbered) int {
		return cmp.Or(cmp.Compare(b.Failed(), a.Failed()), cmp.Compare(a.Number, b.Number))
	})
	return min(len(list), limit)
}
