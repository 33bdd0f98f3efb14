package conntrack

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// Range calls f with the forward entry of every connection until f returns false.
// The Ref is good during that call only. Connections that come and go meanwhile
// may be missed; those that stay are seen once. f may call the table's methods.
func (t *Table) Range(f func(Ref) bool) { t.RangePart(0, ^uint32(0), f) }

// RangePart is Range of the connections numbered from up to from+n. It returns the number at
// which to go on, 0 when there are no more. A caller that waits between two parts does not
// keep the numbers of deleted connections from being used again.
func (t *Table) RangePart(from, n uint32, f func(Ref) bool) (next uint32) {
	if t.closing.Load() {
		return 0
	}
	w := t.acquire()
	if w == nil {
		return 0
	}
	defer t.yield(w)
	end := from + min(n, ^uint32(0)-from)
	for conn := from; conn < min(t.bound.Load(), end); conn++ {
		if conn%256 == 0 {
			w.Quiesce()
		}
		if atomic.LoadUint32(&t.conns[conn].state)&flowstate.Published != 0 && !f(forwardRef(conn)) {
			return conn + 1
		}
	}
	if end >= t.bound.Load() {
		return 0
	}
	return end
}
