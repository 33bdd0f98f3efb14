package xsk

import "sync/atomic"

// The rings of a socket. Each type names producer and consumer; the numbers in the
// comments are those of the orderings in the package comment.
//
// All fields but the shared indices belong to the goroutine that owns the
// socket.

// indices are the common part of every ring.
type indices struct {
	producer *uint32 // shared, written by the producer
	consumer *uint32 // shared, written by the consumer
	flags    *uint32 // shared, written by the kernel: XDP_RING_NEED_WAKEUP

	// cachedProducer and cachedConsumer: the index that is Weir's own, as
	// published or about to be, and the kernel's as it was last seen.
	cachedProducer uint32
	cachedConsumer uint32

	size uint32 // entries, a power of two
	mask uint32 // size-1

	// rejected counts invalid indices and descriptors of the kernel; shared by the rings of
	// a socket.
	rejected *atomic.Uint64
}

// needWakeup reports whether the kernel asks to be woken for this ring.
func (r *indices) needWakeup() bool {
	return atomic.LoadUint32(r.flags)&ringNeedWakeup != 0
}

// resume goes on where the last owner of the ring has stopped, and reports whether that may be
// so: a ring of another size than it is said to have has other contents.
func (r *indices) resume() bool {
	r.cachedProducer = atomic.LoadUint32(r.producer)
	r.cachedConsumer = atomic.LoadUint32(r.consumer)
	return r.cachedProducer-r.cachedConsumer <= r.size
}

// free returns how many entries the producer may write, up to want. It loads
// the consumer's index only when the cached copy does not suffice.
func (r *indices) free(want uint32) uint32 {
	n := r.size - (r.cachedProducer - r.cachedConsumer)
	if n < want {
		r.refresh()
		n = r.size - (r.cachedProducer - r.cachedConsumer)
	}
	return min(n, want)
}

// refresh loads the consumer's index. An index that is ahead of the producer, or has gone
// back by more than the ring, is rejected.
func (r *indices) refresh() {
	c := atomic.LoadUint32(r.consumer) // ordering 3
	if r.cachedProducer-c > r.size {
		r.rejected.Add(1)
		return
	}
	r.cachedConsumer = c
}

// submit publishes n entries that were written from cachedProducer on.
func (r *indices) submit(n uint32) {
	if n == 0 {
		return
	}
	r.cachedProducer += n
	atomic.StoreUint32(r.producer, r.cachedProducer) // ordering 4
}

// available returns how many entries the consumer may read, up to want.
func (r *indices) available(want uint32) uint32 {
	n := r.cachedProducer - r.cachedConsumer
	if n < want {
		p := atomic.LoadUint32(r.producer) // ordering 1
		if p-r.cachedConsumer > r.size {
			r.rejected.Add(1) // more than the ring holds: not believed
			return min(n, want)
		}
		r.cachedProducer = p
		n = r.cachedProducer - r.cachedConsumer
	}
	return min(n, want)
}

// release gives n entries that were read from cachedConsumer on back to the
// producer.
func (r *indices) release(n uint32) {
	if n == 0 {
		return
	}
	r.cachedConsumer += n
	atomic.StoreUint32(r.consumer, r.cachedConsumer) // ordering 2
}

// addrProducer is the fill ring: Weir writes addresses of free frames.
type addrProducer struct {
	indices
	entries []uint64
}

// put writes as many of addrs as fit and returns how many those were.
func (r *addrProducer) put(addrs []uint64) int {
	n := r.free(uint32(len(addrs)))
	for i := range n {
		r.entries[(r.cachedProducer+i)&r.mask] = addrs[i]
	}
	r.submit(n)
	return int(n)
}

// addrConsumer is the completion ring: Weir reads addresses of sent frames.
type addrConsumer struct {
	indices
	entries []uint64
}

// take moves up to len(out) addresses into out, masked, and returns how many.
func (r *addrConsumer) take(out []uint64, mask uint64) int {
	n := r.available(uint32(len(out)))
	for i := range n {
		out[i] = r.entries[(r.cachedConsumer+i)&r.mask] & mask
	}
	r.release(n)
	return int(n)
}

// descProducer is the transmit ring: Weir writes descriptors.
type descProducer struct {
	indices
	entries []Desc
}

// put writes as many of d as fit, whole packets only, and returns how many
// descriptors those were.
func (r *descProducer) put(d []Desc) int {
	n := r.free(uint32(len(d)))
	// A packet of several buffers is published whole or not at all.
	for n > 0 && d[n-1].Options&Continued != 0 {
		n--
	}
	for i := range n {
		r.entries[(r.cachedProducer+i)&r.mask] = d[i]
	}
	r.submit(n)
	return int(n)
}

// outstanding returns how many descriptors the kernel has not taken yet.
func (r *descProducer) outstanding() uint32 {
	r.refresh()
	return r.cachedProducer - r.cachedConsumer
}

// descConsumer is the receive ring: Weir reads descriptors.
type descConsumer struct {
	indices
	entries []Desc
	// skipping: inside a packet without an end where it must have ended.
	skipping bool
}

// take moves up to len(out) descriptors into out and returns how many. It
// never ends inside a packet: descriptors of a packet whose end does not fit
// into out, or is not there yet, stay on the ring, unreleased, and come first
// next time. A packet of more than MaxBuffers is taken in pieces of length 0.
func (r *descConsumer) take(out []Desc) int {
	got := r.available(uint32(len(out)))
	for i := range got {
		out[i] = r.entries[(r.cachedConsumer+i)&r.mask]
	}
	n := got
	for n > 0 && out[n-1].Options&Continued != 0 {
		n--
	}
	if r.skipping || n == 0 && got > MaxBuffers {
		n = r.skip(out[:got])
	}
	r.release(n)
	return int(n)
}

// skip empties the descriptors up to the end of the packet that has none in
// sight, and returns how many it has dealt with.
func (r *descConsumer) skip(out []Desc) uint32 {
	if !r.skipping {
		r.rejected.Add(1)
	}
	for i := range out {
		d := &out[i]
		d.Len = 0
		if r.skipping = d.Options&Continued != 0; !r.skipping {
			return uint32(i + 1)
		}
	}
	if n := len(out); n > 0 {
		r.skipping = true
		out[n-1].Options &^= Continued
	}
	return uint32(len(out))
}
