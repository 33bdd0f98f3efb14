//go:build !amd64

package conntrack

import "sync/atomic"

// Without a prefetch instruction a load does most of the same: the processor goes
// on with the next of the batch while it waits.

func prefetch(b *bucket) { b.over.Load() }

func prefetchFlow(e *Entry, c *Conn) {
	_ = atomic.LoadUint64(&e.Key.W[0])
	_ = atomic.LoadUint32(&c.state)
}
