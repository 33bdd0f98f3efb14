package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

const (
	// batchSize is how many packets go through the stages together. 64 is
	// the point past which larger batches gained nothing in measurements.
	batchSize = 64
	// maxBuffers is how many frames one packet may span: a 9,000-byte packet
	// takes three of 4,096 bytes.
	maxBuffers = 4
)

// frames are the buffers of one packet, and the port by which it came.
type frames struct {
	desc [maxBuffers]xsk.Desc
	size uint32 // the frame's length over all buffers
	in   int32  // the port
	n    uint8  // how many of desc there are
}

// head returns the first buffer, which holds all headers.
func (f *frames) head() *xsk.Desc { return &f.desc[0] }

// bufs returns all buffers.
func (f *frames) bufs() []xsk.Desc { return f.desc[:f.n] }

// the packets a packet on the way through the stages. It is consumed exactly once: sent,
// dropped, queued, handed over or punted.
type pkt struct {
	header.Packet
	state pktState
	// lookups counts the look-ups that found a flow which had just ended.
	lookups uint8
	ref     conntrack.Ref // the flow entry by which the slow path forwards
	frames
	hash uint64 // of key
	key  conntrack.Key
	// datagram is the datagram of a fragment, nil of any other packet.
	datagram *fragtrack.Datagram
}

// pktState is how far a packet has come.
type pktState uint8

const (
	// consumed: nothing is left to do.
	consumed pktState = iota
	// slow: parsed, with a key.
	slow
	// fast: as slow, and it is whole, in one buffer with room for what the fast path
	// touches, and neither begins nor ends a connection, nor its own lifetime.
	fast
)

// batch is a set of packets on their way through the stages.
type batch struct {
	n int
	// received are the descriptors of a reception.
	received [batchSize]xsk.Desc
	pkts     [batchSize]pkt
	// hash and ref are the look-up's: what it is asked and what it finds.
	hash [batchSize]uint64
	ref  [batchSize]conntrack.Ref
}

// add returns the place of another packet, empty but for the frames.
func (b *batch) add(f *frames) *pkt {
	p := &b.pkts[b.n&(batchSize-1)]
	*p = pkt{frames: *f}
	b.n++
	return p
}

// take receives up to batchSize buffers of port in as a batch, and returns how
// many there were. A packet of more than maxBuffers is dropped.
func (w *Worker) take(b *batch, in int32, q Queue) int {
	n := q.Receive(b.received[:])
	w.memory.Prefetch(b.received[:n])
	b.n = 0
	packets, bytes := uint64(0), uint64(0)
	for at := 0; at < n; {
		first, size := at, uint32(0)
		for at < n {
			d := &b.received[at]
			more := d.Options & xsk.Continued
			if d.Options != more { // a store just before the copy below would stall it
				d.Options = more
			}
			size += d.Len
			at++
			if more == 0 {
				break
			}
		}
		packets++
		bytes += uint64(size)
		if at-first > maxBuffers {
			w.freeBuffers(b.received[first:at])
			w.t.drops[DropTooBig]++
			continue
		}
		p := &b.pkts[b.n&(batchSize-1)]
		p.n, p.size, p.in = uint8(at-first), size, in
		p.desc[0] = b.received[first]
		if at-first > 1 {
			copy(p.desc[1:], b.received[first+1:at])
		}
		b.n++
	}
	w.t.rxPackets += packets
	w.t.rxBytes += bytes
	return n
}

// frame is the first buffer of the packet.
func (w *Worker) frame(p *pkt) []byte {
	d := p.head()
	return w.area[d.Addr : d.Addr+uint64(d.Len) : (d.Addr|w.frameMask)+1]
}

// groupSize is how many packets go through one stage at a time: a stage asks for at
// most two cache lines per packet, and processors wait for some 16 at once.
const groupSize = 8

// process runs the stages over the batch, a group at a time, and each stage one group
// behind the one before it: while the lines that one group needs are on their way the
// others are worked on.
//
//  1. parse, key and hash; ask for the bucket of the index
//  2. find the candidate in the bucket; ask for its entry and its connection
//  3. compare the keys; rewrite and enqueue, or whatever else the packet needs
//
// The third goes in the order of arrival.
func (w *Worker) process(b *batch) {
	created := w.t.newFlows
	for at := 0; at < b.n+2*groupSize; at += groupSize {
		if from, to := b.group(at); from < to {
			w.classify(b, from, to)
			w.conntrack.PrefetchBuckets(b.hash[from:to])
		}
		if from, to := b.group(at - groupSize); from < to {
			w.conntrack.Candidates(b.hash[from:to], b.ref[from:to])
		}
		if from, to := b.group(at - 2*groupSize); from < to {
			w.forward(b, from, to, created)
		}
	}
}

// group is the part of the batch that begins at a packet, empty outside the batch.
func (b *batch) group(at int) (from, to int) {
	if at < 0 {
		return 0, 0
	}
	return at, min(at+groupSize, b.n, batchSize)
}

// forward is the last stage. created is how many flows there were before the batch.
func (w *Worker) forward(b *batch, from, to int, created uint64) {
	w.openings.collect = true
	for i := from; i < to; i++ {
		p := &b.pkts[i&(batchSize-1)]
		ref := w.conntrack.Confirmed(p.hash, &p.key, b.ref[i&(batchSize-1)])
		if ref != 0 && p.state == fast && w.established(p, ref) || p.state == consumed {
			continue
		}
		if ref == 0 && w.openings.n != 0 && w.openings.has(p.hash) {
			w.openAll()
		}
		if ref == 0 && w.t.newFlows != created {
			ref = w.conntrack.Lookup(p.hash, &p.key) // made by this very batch
		}
		if ref != 0 {
			w.flow(p, ref)
		} else {
			w.miss(p)
		}
	}
	if w.openings.n != 0 {
		w.openAll()
	}
	w.openings.collect = false
}

// classify parses packets and makes their keys; what is not a TCP, UDP or SCTP the packets
// dealt with here.
func (w *Worker) classify(b *batch, from, to int) {
	for i := from; i < to; i++ {
		p := &b.pkts[i&(batchSize-1)]
		d := p.head()
		p.lookups = 0
		addrs, ports, ok := header.Plain4(w.area[d.Addr:d.Addr+uint64(d.Len)], int(p.size), &p.Packet)
		if !ok {
			w.classifyOther(p)
			b.hash[i&(batchSize-1)] = p.hash
			continue
		}
		p.state = w.stateOf(p)
		w4 := uint64(ports) | uint64(p.Proto)<<32 | 4<<40
		p.key.W = [5]uint64{0: addrs, 4: w4}
		p.hash = w.conns.Hash4(addrs, w4)
		b.hash[i&(batchSize-1)] = p.hash
	}
}

// stateOf returns fast or slow for a packet that [header.Plain] took.
func (w *Worker) stateOf(p *pkt) pktState {
	if !p.Partial && p.TTL > 1 && p.Flags&(header.SYN|header.FIN|header.RST) == 0 &&
		p.n == 1 && p.desc[0].Addr&w.frameMask+uint64(p.L3)+plainLen <= w.frameMask {
		return fast
	}
	return slow
}

// classifyOther is classify of a packet that is not untagged and plain IPv4.
func (w *Worker) classifyOther(p *pkt) {
	f := w.frame(p)
	if header.PlainElse(f, int(p.size), &p.Packet) {
		p.state = w.stateOf(p)
	} else if problem := header.Parse(f, int(p.size), &p.Packet); problem != header.OK {
		p.state = consumed
		p.key = conntrack.Key{}
		p.hash = 0
		w.refuse(p, problem)
		return
	} else {
		p.state = slow
	}
	k := &p.key
	ip := f[p.L3:]
	if p.Family == 4 {
		k.W = [5]uint64{0: binary.LittleEndian.Uint64(ip[12:])}
	} else {
		_ = ip[39]
		k.W[0] = binary.LittleEndian.Uint64(ip[8:])
		k.W[1] = binary.LittleEndian.Uint64(ip[16:])
		k.W[2] = binary.LittleEndian.Uint64(ip[24:])
		k.W[3] = binary.LittleEndian.Uint64(ip[32:])
	}
	k.W[4] = uint64(binary.LittleEndian.Uint32(f[p.L4:])) | uint64(p.Proto)<<32 | uint64(p.Family)<<40
	p.hash = w.conns.Hash(k)
}

// refuse deals with a packet that is not a whole TCP, UDP or SCTP packet: what may
// well be the kernel's business goes back to it, the malformed is dropped.
func (w *Worker) refuse(p *pkt, problem header.Problem) {
	switch problem {
	case header.NotIP:
		w.giveBack(p, DropNotIP)
	case header.IsFragment:
		w.fragment(p)
	case header.NotTransport:
		if proto := p.Proto; proto == header.ProtoICMP || proto == header.ProtoICMPv6 {
			w.icmp(p)
			return
		}
		w.giveBack(p, DropNotTransport)
	case header.Truncated:
		w.drop(p, DropTruncated)
	case header.BadIPHeader:
		w.drop(p, DropBadIPHeader)
	case header.Martian:
		w.drop(p, DropMartian)
	case header.BadExtension:
		w.drop(p, DropExtension)
	case header.SourceRouted:
		w.drop(p, DropSourceRoute)
	case header.BadFragment:
		w.drop(p, DropBadFragment)
	case header.TinyFragment:
		w.drop(p, DropTinyFragment)
	default:
		w.drop(p, DropBadTransport)
	}
}

// drop counts the packet under its reason and frees its frames.
func (w *Worker) drop(p *pkt, reason Drop) {
	w.t.drops[reason]++
	w.sampleDrop(p, reason)
	w.recycle(p)
}

func (w *Worker) recycle(p *pkt) { w.freeBuffers(p.bufs()) }

func (w *Worker) freeBuffers(descs []xsk.Desc) {
	for j := range descs {
		w.free.push(descs[j].Addr &^ w.frameMask)
	}
}

// send puts the packet on its way out of a port, or hands it to the worker
// that owns the port's queue.
func (w *Worker) send(p *pkt, out int32) {
	port := &w.ports[out]
	if port.Queue == nil {
		w.sendElsewhere(p, out)
		return
	}
	if port.txn+int(p.n) > txQueueLen {
		w.transmit(port)
	}
	port.txn += copy(port.tx[port.txn:], p.bufs())
}

// sendElsewhere sends the packet by a port that has no queue of this worker.
func (w *Worker) sendElsewhere(p *pkt, out int32) {
	if port := &w.ports[out]; port.Tag != 0 {
		w.pushTag(p, port.Tag)
		w.send(p, port.Under)
		return
	}
	w.handOver(p, out)
}

// pushTag puts a VLAN tag on the packet, behind the MAC addresses.
func (w *Worker) pushTag(p *pkt, tag uint32) {
	w.memory.Prepend(p.head(), header.TagLen)
	f := w.frame(p)
	copy(f, f[header.TagLen:header.TagLen+12])
	binary.BigEndian.PutUint32(f[12:], tag)
	p.L3, p.L4 = p.L3+header.TagLen, p.L4+header.TagLen
	p.size += header.TagLen
}

// handOver passes the packet to the worker that owns the way out: never is a
// packet put on another worker's ring.
func (w *Worker) handOver(p *pkt, out int32) {
	h := w.links[w.ports[out].Owner]
	if h == nil || !h.out.Put(out, p.bufs()...) {
		w.drop(p, DropHandoffFull)
		return
	}
	h.wake = true
	w.t.handedOver++
}

// untag takes the VLAN tag off the packet. It names a network on the way in: on the way
// out the port says which tag its packets get.
func (w *Worker) untag(p *pkt) {
	f := w.frame(p)
	n := p.L3 - header.EthernetLen
	copy(f[n:], f[:12])
	d := p.head()
	d.Addr, d.Len = d.Addr+uint64(n), d.Len-uint32(n)
	p.size -= uint32(n)
	p.L3, p.L4 = p.L3-n, p.L4-n
}

// giveBack passes a packet that is not Weir's to the kernel, through the host
// port and unchanged but for the MAC addresses. One that came from the host
// port is dropped under the reason given: no loop.
func (w *Worker) giveBack(p *pkt, reason Drop) {
	if p.Frag != 0 && p.datagram != nil {
		p.datagram.Punted = true
	}
	if w.hostPort < 0 || p.in == w.hostPort {
		w.drop(p, reason)
		return
	}
	f := w.frame(p)
	if len(f) < header.EthernetLen {
		w.drop(p, reason)
		return
	}
	if p.L3 != header.EthernetLen {
		w.untag(p)
		f = w.frame(p)
	}
	copy(f[0:6], w.hostMACs[0][:])
	copy(f[6:12], w.hostMACs[1][:])
	if p.state != consumed && p.Partial {
		w.completeChecksum(p, &w.ports[w.hostPort])
	}
	w.t.toKernel++
	w.send(p, w.hostPort)
}
