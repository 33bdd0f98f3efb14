package worker

import (
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/xsk"
)

// Queue is a queue of an interface as the worker uses it, implemented by *xsk.Socket and
// lbtest.Memory. All frames are parts of the same umem: a descriptor's address is an offset
// into it. A worker calls a Queue once per
// batch, never per packet. Only the worker that owns it may call it.
type Queue interface {
	// Receive takes up to len(out) descriptors of received frames; it never
	// ends inside a packet of several buffers.
	Receive(out []xsk.Desc) int
	// Pending returns how many descriptors wait for Receive.
	Pending() int
	// Fill gives the queue frames to receive into, and returns how many it
	// had room for.
	Fill(addrs []uint64) int
	// Transmit puts descriptors on the TX ring, and returns how many fitted: always whole
	// packets.
	Transmit(descs []xsk.Desc) int
	// Kick makes the kernel send the descriptors of the TX ring.
	Kick() error
	// Complete takes back frames that have been sent.
	Complete(out []uint64) int
}

// txQueueLen is how many descriptors a port may gather between two flushes:
// every packet of a batch may leave by the same port, in several buffers.
const txQueueLen = 4 * batchSize

// Port is an attached interface, or the host veth, as a worker is to see it.
type Port struct {
	Queue Queue // nil: the worker owns no queue of the interface
	Ring  int   // descriptors of the queue's fill ring
	Owner int32 // the worker to hand packets to when Queue is nil
	// Tag and Under are of a VLAN's port, which has no queue: packets leave by port Under
	// with this EtherType and number. Tag is 0 for any other port.
	Tag   uint32
	Under int32
	// Interface is the kernel index of the interface under which routes know the port.
	Interface int32
	// Metadata is true when the transmit side completes partial checksums.
	Metadata bool
	// FullChecksums is true when packets that come by the port have no partial checksums: a
	// device has received them from a wire.
	FullChecksums bool
}

// port is a Port with the worker's state of it.
type port struct {
	Port
	filled  int // frames in the kernel's hands for receiving
	fill    fillDepth
	sending int // frames in the kernel's hands for sending
	// received counts descriptors, and waiting are those on the ring at the last look.
	received, waiting uint32
	txn               int
	tx                [txQueueLen]xsk.Desc
}

// portIO is frames in and out: the ports, the other workers, and the counters of both.
// Packets are sent, handed off, punted and dropped here.
type portIO struct {
	frameMemory
	cfg     Config
	id      int
	tick    uint32 // as of the beginning of the round
	ports   []port
	links   []*link // by worker; nil for itself
	sendMax int     // frames in transmission that a port may have
	done    [256]uint64

	hostVeth     int32     // -1: none
	hostVethMACs [2]uint64 // destination and source, as route.MACWord

	counts    counter.Values
	drops     dropCounts
	published *publishedCounts
	samples   *[dropReasons]samples
	obs       *observation // of this round; nil without a tap
	services  countChunks  // the worker's counters per Service
}

// freeList is a LIFO of free frames: the frame used last is the warmest in cache.
type freeList struct {
	addr []uint64
}

func (f *freeList) push(a uint64) { f.addr = append(f.addr, a) }

// grow is push of n frames that the caller writes.
func (f *freeList) grow(n int) []uint64 {
	have := len(f.addr)
	f.addr = f.addr[:have+n]
	return f.addr[have:]
}

func (f *freeList) pop() (uint64, bool) {
	n := len(f.addr)
	if n == 0 {
		return 0, false
	}
	a := f.addr[n-1]
	f.addr = f.addr[:n-1]
	return a, true
}

// Refill hands free frames to every port's fill ring.
func (w *portIO) Refill() {
	for i := range w.ports {
		p := &w.ports[i]
		if p.Queue == nil {
			continue
		}
		level := p.fill.level(p.Ring)
		want := min(level-p.filled, len(w.free.addr))
		if want < batchSize/2 && p.filled > level/2 {
			continue // not worth a store to the shared index
		}
		if want <= 0 {
			continue
		}
		from := len(w.free.addr) - want
		n := p.Queue.Fill(w.free.addr[from:])
		// Fill takes from the front: keep the rest.
		left := copy(w.free.addr[from:], w.free.addr[from+n:])
		w.free.addr = w.free.addr[:from+left]
		p.filled += n
	}
}

// hasWork reports whether a packet has come, or another worker has handed
// something over.
func (w *portIO) hasWork() bool {
	for i := range w.ports {
		if q := w.ports[i].Queue; q != nil && q.Pending() > 0 {
			return true
		}
	}
	for _, p := range w.links {
		if p != nil && !p.in.Empty() {
			return true
		}
	}
	return false
}

// complete takes back the frames that the kernel has sent.
func (w *portIO) complete() {
	for i := range w.ports {
		p := &w.ports[i]
		for p.sending > 0 {
			n := p.Queue.Complete(w.done[:])
			free := w.free.grow(n)
			for i, a := range w.done[:n] {
				free[i] = a &^ w.frameMask
			}
			p.sending -= n
			if n < len(w.done) {
				break
			}
		}
	}
}

// flush puts the gathered packets on the rings and wakes the kernel. Packets that do not
// fit are dropped and counted: a full ring is the next hop's congestion.
func (w *portIO) flush() {
	for i := range w.ports {
		p := &w.ports[i]
		if p.txn > 0 {
			w.transmit(p)
		}
		if p.sending > 0 {
			w.kick(p)
		}
	}
}

// kick makes the kernel send. After an error, of an interface that is down or gone, packets
// stay on the ring and are retried every round.
func (w *portIO) kick(p *port) {
	if p.Queue.Kick() != nil {
		w.counts[counter.TxErrors]++
	}
}

// transmitFrom gives the kernel the gathered packets from number from on, as far as there
// is room, and returns how many descriptors it took. A port has no more than a fixed share
// of the frames in transmission: ports of stuck devices would take all in the end, and
// leave the others none to receive into.
func (w *portIO) transmitFrom(p *port, from int) int {
	n := p.Queue.Transmit(p.tx[from:min(p.txn, from+max(0, w.sendMax-p.sending))])
	p.sending += n
	return n
}

// transmit sends the packets gathered at a port.
func (w *portIO) transmit(p *port) {
	n := w.transmitFrom(p, 0)
	if n < p.txn {
		// Make room once; copy mode sends only after a kick.
		w.kick(p)
		w.complete()
		n += w.transmitFrom(p, n)
	}
	if w.obs != nil {
		w.obs.transmitted(p.tx[:n], w.numberOf(p), w.tick)
	}
	bytes, continued := uint64(0), uint64(0)
	for i := range p.tx[:n] {
		d := &p.tx[i]
		bytes += uint64(d.Len)
		continued += uint64(d.Options & xsk.Continued)
	}
	w.counts[counter.TxBytes] += bytes
	w.counts[counter.TxPackets] += uint64(n) - continued/xsk.Continued
	w.dropGathered(p.tx[n:p.txn], DropTxFull)
	p.txn = 0
}

// numberOf is the number of a port.
func (w *portIO) numberOf(p *port) int32 {
	for i := range w.ports {
		if &w.ports[i] == p {
			return int32(i)
		}
	}
	return -1
}

// take receives up to batchSize buffers of port in as a batch, and returns how
// many there were.
func (w *portIO) take(b *batch, in int32, q Queue) int {
	n := q.Receive(b.first[:])
	w.memory.Prefetch(b.first[:n])
	b.reset(in)
	b.partial = !w.ports[in].FullChecksums
	sum := uint64(0)
	for i := range b.first[:n] {
		d := &b.first[i]
		sum += uint64(d.Options)<<32 | uint64(d.Len)
	}
	if sum>>32 != 0 {
		w.takeBuffers(b, n)
		return n
	}
	b.n = n
	w.counts[counter.RxPackets] += uint64(n)
	w.counts[counter.RxBytes] += sum
	return n
}

// takeBuffers makes packets of the n buffers in b.first, some of which have options. A
// packet of more than maxBuffers is dropped.
func (w *portIO) takeBuffers(b *batch, n int) {
	var f frames
	buffers := 0
	for i := range b.first[:n] {
		d := &b.first[i]
		d.Options &= xsk.Continued
		f.size += d.Len
		if buffers < maxBuffers {
			f.desc[buffers] = *d
		}
		if buffers++; d.Options != 0 && i+1 < n {
			continue
		}
		w.counts[counter.RxPackets]++
		w.counts[counter.RxBytes] += uint64(f.size)
		switch {
		case buffers > maxBuffers:
			w.freeBuffers(b.first[i+1-buffers : i+1])
			w.drops[DropTooBig]++
		case buffers == 1:
			b.first[b.n&(batchSize-1)] = *d
			b.n++
		default:
			f.n, f.in = uint8(buffers), b.in
			b.add(&f)
		}
		f, buffers = frames{}, 0
	}
}
