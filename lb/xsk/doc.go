// Package xsk speaks AF_XDP: sockets that share one umem, the packet memory, with
// the kernel and pass packets by frame address, without a copy on Weir's side.
//
// # Model
//
// A [Umem] is the packet memory of the whole process, cut into frames of equal size.
// A [Socket] is bound to a queue of an interface and has four rings, each with a single
// producer and a single consumer:
//
//	fill        Weir -> kernel   addresses of free frames, to receive into
//	receive     kernel -> Weir   descriptors (address, length, options) of packets
//	transmit    Weir -> kernel   descriptors of packets to send
//	completion  kernel -> Weir   addresses of frames whose sending is done
//
// A frame has a single owner at any time: Weir's free list, a fill ring, a receive
// ring, the worker that holds the packet, a transmit ring, or a completion
// ring. Forwarding moves a descriptor from the receive ring of one socket to
// the transmit ring of another; no byte is copied. The frame then comes back
// on the completion ring of the socket that sent it, which need not be the receiving
// socket: a worker keeps a common free list for all sockets.
//
// The kernel binds a registration of the umem (XDP_UMEM_REG) to the mode of the
// first socket, and later sockets that share it (XDP_SHARED_UMEM) inherit the mode.
// Zero copy and copy mode, with and without multi-buffer, thus each have a group of
// sockets, and the same memory is registered once per group. Every socket has a
// separate fill ring and completion ring.
//
// # Concurrency
//
// A socket belongs to a single goroutine. None of the methods that touch a ring
// (Receive, Fill, Complete, Transmit, Kick, WakeRx) takes a lock, allocates or
// blocks. Statistics may be called from anywhere. Close may be called once,
// after the owner has stopped. Any goroutine may read and write a Umem; access to a frame
// follows from the ownership above.
//
// # Memory ordering
//
// The rings are single producer, single consumer queues in memory shared with
// the kernel; the two indices of a ring run freely and wrap at 2^32. Four
// orderings make them correct, and they are the four loads and stores that go
// through sync/atomic here:
//
//  1. As consumer (receive, completion) load the producer index with acquire
//     before reading entries: the entries are seen as the kernel wrote them.
//  2. As consumer store the consumer index with release after reading entries:
//     the kernel does not overwrite an entry that is still being read.
//  3. As producer (fill, transmit) load the consumer index with acquire before
//     writing entries: the kernel has finished reading the entries that are
//     about to be overwritten.
//  4. As producer store the producer index with release after writing entries
//     (and the packet, and its metadata): the kernel sees them complete.
//
// Go's atomics are sequentially consistent, which is stronger than needed and
// costs a locked store per batch on amd64. The race detector cannot see the
// kernel: the ring code is tested against a second goroutine in its place.
//
// Reserving never moves an index; only submit and release do, and with a count
// of zero they touch nothing. The other side's index is loaded only when the
// cached copy of it does not suffice.
//
// The interface is described in the kernel's Documentation/networking/af_xdp.rst
// and xsk-tx-metadata.rst.
package xsk
