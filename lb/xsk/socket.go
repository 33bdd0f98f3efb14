package xsk

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Mode says how packets get between the driver and the socket.
type Mode uint8

const (
	// Auto is zero copy where the driver has it, else copy.
	Auto Mode = iota
	// ZeroCopy: the NIC reads and writes the umem itself. Needs a driver that
	// can, and the steering program attached in native mode.
	ZeroCopy
	// Copy: the kernel copies each packet once. Every interface can. To be
	// asked for when the steering program is attached in generic mode.
	Copy
)

func (m Mode) String() string {
	switch m {
	case Auto:
		return "auto"
	case ZeroCopy:
		return "zerocopy"
	case Copy:
		return "copy"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

const (
	// DefaultRingSize is the number of entries of the receive and the transmit
	// ring: 5 ms of packets at 0.8 Mpps, which is how long a worker may be kept
	// from running by the Go scheduler and the kernel's.
	DefaultRingSize = 4096

	// MaxBuffers is the largest number of descriptors that a packet may take
	// (MAX_SKB_FRAGS + 1, at the largest that a kernel can be built with). A
	// slice given to Receive must have room for that many.
	MaxBuffers = 46

	// txBudget is the number of packets that the kernel sends in a call in copy mode
	// (TX_BATCH_SIZE in net/xdp/xsk.c): at least 16, as in Linux 5.10; later
	// kernels send 32.
	txBudget = 16
)

// Config describes the socket to open.
type Config struct {
	IfIndex int // interface, in the network namespace of the calling thread
	Queue   int // queue, from 0

	// RingSize is the number of entries of the receive and of the transmit
	// ring, a power of two; 0 means DefaultRingSize. The fill and the
	// completion ring have twice as many.
	RingSize int

	Mode Mode

	// TxMetadata asks for transmit metadata, that is for SetChecksum. Where it
	// cannot be had the socket opens without; see Granted.
	TxMetadata bool

	// MetadataZeroCopyOnly grants it with zero copy alone. In copy mode the kernel
	// grants it for every driver, and does not act upon it with some.
	MetadataZeroCopyOnly bool

	// MultiBuffer asks for packets larger than a frame (XDP_USE_SG). If it is not available
	// the socket opens without; see Granted. It is preferred to zero copy: a driver with
	// only one of the two runs in copy mode.
	MultiBuffer bool

	// Umem keeps sockets apart that could share a umem: sockets of another number get
	// another umem. It is 0 for all, except in tests.
	Umem int

	// SendOnly says that nobody calls Receive. It matters to Adopt.
	SendOnly bool

	// ShareWith names a socket of the same umem, to share its umem and no
	// other; Mode and MultiBuffer are then those of that socket. nil: Open chooses, as
	// nearly always intended.
	ShareWith *Socket
}

// Socket is an AF_XDP socket bound to a queue.
type Socket struct {
	umem  *Umem
	group *group
	cfg   Config
	fd    int

	fill       addrProducer
	completion addrConsumer
	rx         descConsumer
	tx         descProducer
	maps       [][]byte

	frameMask  uint64
	zeroCopy   bool
	txMetadata bool
	unbound    bool // seen by Unbound

	owner    ownerID // in the umem's owner table
	rejected atomic.Uint64

	kicks Kicks
}

// Kicks counts the calls of a socket that wake the kernel. The owner of the socket writes
// and reads it, without synchronization.
type Kicks struct {
	Sent       uint64 // sendto calls
	Suppressed uint64 // Kick had packets to send and the kernel needed no call
	Unfinished uint64 // Kick gave up with packets left on the ring
	Rx         uint64 // recvfrom calls
}

// Granted reports the features that the kernel granted: zero copy, transmit metadata,
// and packets of several buffers.
func (s *Socket) Granted() (zeroCopy, txMetadata, multiBuffer bool) {
	return s.zeroCopy, s.txMetadata, s.group.multiBuffer
}

// KernelMetadata reports whether the kernel has transmit metadata, whether or not the
// socket was granted it.
func (s *Socket) KernelMetadata() bool { return s.group.metadata }

// UmemID returns the number of the socket's registration of the umem, from 0 in the
// order of registration.
func (s *Socket) UmemID() int { return s.group.number }

// FD returns the file descriptor, for the steering program's socket map and
// for poll.
func (s *Socket) FD() int { return s.fd }

// IfIndex returns the interface that the socket is bound to.
func (s *Socket) IfIndex() int { return s.cfg.IfIndex }

// Queue returns the queue that the socket is bound to.
func (s *Socket) Queue() int { return s.cfg.Queue }

// Unbound reports whether the kernel has taken the socket off the queue for good:
// the interface was deleted, or moved to another network namespace. Not for use by
// two goroutines at once.
func (s *Socket) Unbound() bool {
	if !s.unbound && s.fd >= 0 {
		// xsk_notifier in net/xdp/xsk.c sets it on NETDEV_UNREGISTER, and nothing else.
		errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		s.unbound = err == nil && errno == int(unix.ENETDOWN)
	}
	return s.unbound
}

// Umem returns the packet memory of the socket.
func (s *Socket) Umem() *Umem { return s.umem }

// FillSize returns the number of entries of the fill and the completion ring.
func (s *Socket) FillSize() int { return int(s.fill.size) }

// RingSize returns the number of entries of the receive and the transmit ring.
func (s *Socket) RingSize() int { return int(s.rx.size) }

// Receive moves descriptors of received packets to out and returns how many.
// It never ends inside a packet, whose buffers but the last carry Continued in
// Options. len(out) must be larger than MaxBuffers on a socket with
// multi-buffer. The frames now belong to the caller.
//
// Invalid descriptors are counted (see Rejected) and not delivered; the frames of such a
// packet are, with length 0.
func (s *Socket) Receive(out []Desc) int {
	n := s.rx.take(out)
	for i := range out[:n] {
		if !s.umem.reclaimReceived(&out[i], s.owner) {
			return s.discardInvalid(out[:n], i)
		}
	}
	return n
}

// Pending returns how many descriptors are on the receive ring.
func (s *Socket) Pending() int { return int(s.rx.available(s.rx.size)) }

// Fill gives the kernel frames to receive into and returns how many of addrs
// fitted. Any address inside a frame stands for the frame. The frames belong
// to the kernel until Receive returns them. A driver that had found the ring
// empty, and waits to be woken, is woken.
func (s *Socket) Fill(addrs []uint64) int {
	n := s.fill.put(addrs)
	for _, addr := range addrs[:n] {
		s.umem.give(addr, s.owner)
	}
	if s.zeroCopy && n > 0 {
		_ = s.WakeRx() // an error shows in Kick, and as a ring that stays full
	}
	return n
}

// FillFree returns how many frames Fill would take now, up to want.
func (s *Socket) FillFree(want int) int { return int(s.fill.free(uint32(want))) }

// Transmit puts descriptors on the transmit ring and returns how many fitted,
// always whole packets. The kernel sends them at Kick, or earlier. The frames belong to
// the kernel until Complete returns them; those of descriptors that did not fit still
// belong to the caller. An invalid descriptor (outside of the umem, across frames, empty)
// is counted in Statistics.TxInvalid, and the frame never comes back.
//
// The kernel takes no packet for which the completion ring has no room, so
// Complete has to be called about as often as Transmit.
func (s *Socket) Transmit(d []Desc) int {
	n := s.tx.put(d)
	for i := range d[:n] {
		s.umem.give(d[i].Addr, s.owner|forTransmit)
	}
	return n
}

// Outstanding returns how many descriptors the kernel has not taken off the
// transmit ring yet.
func (s *Socket) Outstanding() int { return int(s.tx.outstanding()) }

// Complete moves frames whose sending is done to out, as addresses of the
// first byte of each frame, and returns how many. They belong to the caller.
// An address that was not being sent is counted (see Rejected) and left out.
func (s *Socket) Complete(out []uint64) int {
	n := s.completion.take(out, s.frameMask)
	kept := 0
	for _, addr := range out[:n] {
		if !s.umem.reclaim(addr, s.owner|forTransmit) {
			s.rejected.Add(1)
			continue
		}
		out[kept] = addr
		kept++
	}
	return kept
}

// Kick makes the kernel send the packets on the transmit ring. In copy mode it
// sends within the call, 16 or 32 packets at a time, so the call is repeated
// until the ring is empty; packets left after a bounded number of calls (a full device
// queue) are sent by the next Kick. With zero copy a single call wakes the driver, and
// only when it asks for that.
//
// An error is a state of the socket or the interface, such as ENETDOWN; packets
// stay on the ring.
func (s *Socket) Kick() error {
	left := s.tx.outstanding()
	if left == 0 {
		return nil
	}
	if s.zeroCopy {
		if !s.tx.needWakeup() {
			s.kicks.Suppressed++
			return nil
		}
		s.kicks.Sent++
		return wakeupError(sendWakeup(s.fd))
	}
	for range left/txBudget + 8 {
		s.kicks.Sent++
		errno := sendWakeup(s.fd)
		// Kernels before 6.18 publish the consumer index lazily, so only
		// success, not the index, says that the ring was drained.
		if errno == 0 {
			return nil
		}
		if err := wakeupError(errno); err != nil {
			return err
		}
		if s.tx.outstanding() == 0 {
			return nil
		}
	}
	s.kicks.Unfinished++
	return nil
}

// wakeupError sorts the results of a wake-up call: an error of the socket, or "busy", after
// which the call must be repeated.
func wakeupError(errno unix.Errno) error {
	switch errno {
	case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.EINTR:
		return nil
	}
	return errno
}

// NeedsRxWakeup reports whether the driver waits for WakeRx before it takes
// frames off the fill ring.
func (s *Socket) NeedsRxWakeup() bool { return s.fill.needWakeup() }

// WakeRx wakes the driver if it asks for it: after it had found the fill ring
// empty. Fill does so by itself. In copy mode the kernel never asks.
func (s *Socket) WakeRx() error {
	if !s.zeroCopy || !s.fill.needWakeup() {
		return nil
	}
	s.kicks.Rx++
	return wakeupError(receiveWakeup(s.fd))
}

// Kicks returns the counts so far. Only for the owner of the socket.
func (s *Socket) Kicks() Kicks { return s.kicks }

// Rejected counts impossible values of the kernel: an index beyond
// the size of a ring, or a descriptor outside of the umem, across the end of a
// frame, or of a frame that it did not have. Not 0 is a fault of the kernel or
// the driver. From any goroutine.
func (s *Socket) Rejected() uint64 { return s.rejected.Load() }

// Statistics are the kernel's counters of a socket, in packets.
type Statistics struct {
	RxDropped   uint64 // for other reasons, among them: too large for a frame
	RxInvalid   uint64 // address on the fill ring outside of the umem
	TxInvalid   uint64 // descriptor on the transmit ring refused
	RxRingFull  uint64 // dropped: the worker did not take packets in time
	RxFillEmpty uint64 // dropped or deferred: no frame on the fill ring
	TxRingEmpty uint64 // the kernel found nothing to send; not a fault
}

// Statistics asks the kernel for the counters. From any goroutine, but not
// after Close.
func (s *Socket) Statistics() (Statistics, error) {
	k, err := statistics(s.fd)
	if err != nil {
		return Statistics{}, fmt.Errorf("statistics of queue %d: %w", s.cfg.Queue, err)
	}
	return Statistics{
		RxDropped: k.Rx_dropped, RxInvalid: k.Rx_invalid_descs, TxInvalid: k.Tx_invalid_descs,
		RxRingFull: k.Rx_ring_full, RxFillEmpty: k.Rx_fill_ring_empty_descs, TxRingEmpty: k.Tx_ring_empty_descs,
	}, nil
}

// Close closes the socket and unmaps the rings. The kernel itself takes the socket out of
// the steering program's socket map. ReclaimAll returns the socket's frames. The queue
// may stay busy for some milliseconds more; Open waits for that.
func (s *Socket) Close() error {
	if s.fd < 0 {
		return nil
	}
	s.umem.detach(s)
	return s.destroy()
}

func (s *Socket) destroy() error {
	var errs []error
	for _, m := range s.maps {
		if err := unix.Munmap(m); err != nil {
			errs = append(errs, fmt.Errorf("unmap ring: %w", err))
		}
	}
	s.maps = nil
	if err := unix.Close(s.fd); err != nil {
		errs = append(errs, fmt.Errorf("close socket: %w", err))
	}
	s.fd = -1
	return errors.Join(errs...)
}
