//go:build !amd64 || race

package conntrack

import (
	"sync/atomic"
	"unsafe"
)

// Without a prefetch instruction a load does most of the same: the processor goes
// on with the next of the batch while it waits. The race detector needs these too: it
// cannot see an assembly function read memory that another goroutine has published.

func prefetchBuckets(first *bucket, buckets uint64, h *uint64, n int) {
	all := unsafe.Slice(first, buckets)
	for _, h := range unsafe.Slice(h, n) {
		all[bucketIndex(h, buckets)].over.Load()
	}
}

func prefetchEntries(entries *Entry, r *Ref, n int) {
	for _, r := range unsafe.Slice(r, n) {
		if r-1 < slotPending-1 { // that of a live slot
			e := (*Entry)(unsafe.Add(unsafe.Pointer(entries), uintptr(r-1)*unsafe.Sizeof(Entry{})))
			_ = atomic.LoadUint64(&e.Key.W[0])
		}
	}
}

func prefetchOthers(entries *Entry, r *Ref, n int) {
	for _, r := range unsafe.Slice(r, n) {
		if r-1 < slotPending-1 { // that of a live slot
			e := (*Entry)(unsafe.Add(unsafe.Pointer(entries), uintptr((r-1)^1)*unsafe.Sizeof(Entry{})))
			_ = atomic.LoadUint32(&e.seen)
		}
	}
}

func prefetchConn(c *Conn) { _ = atomic.LoadUint32(&c.state) }

func prefetchLink(l *link) { _ = atomic.LoadUint32(&l.next) }

func prefetchFlows(entries *Entry, conns *Conn, r *Ref, n int) {
	for _, r := range unsafe.Slice(r, n) {
		if r-1 < slotPending-1 { // that of a live slot
			e := (*Entry)(unsafe.Add(unsafe.Pointer(entries), uintptr(r-1)*unsafe.Sizeof(Entry{})))
			_ = atomic.LoadUint64(&e.Key.W[0])
			c := (*Conn)(unsafe.Add(unsafe.Pointer(conns), uintptr(r-1)>>1*unsafe.Sizeof(Conn{})))
			_ = atomic.LoadUint32(&c.state)
		}
	}
}

func tagged(b *bucket, tags uint32) (m uint32) {
	for i := range uint32(len(b.slot)) {
		if b.tagAt(i) == uint8(tags) {
			m |= 1 << i
		}
	}
	return m
}

func contenders(b *bucket, tags uint32) (m uint32) {
	for i := range b.slot {
		m |= b.slot[i].Load() >> 31 << i
	}
	return m | tagged(b, tags)
}

func prefetchCursor(c *cursor) { c.at.Load() }

func candidates(first *bucket, buckets uint64, h *uint64, r *Ref, n int) {
	all := unsafe.Slice(first, buckets)
	refs := unsafe.Slice(r, n)
	for i, h := range unsafe.Slice(h, n) {
		refs[i] = all[bucketIndex(h, buckets)].candidate(h)
	}
}
