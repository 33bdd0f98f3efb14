package lb

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
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

// batch is a set of packets on their way through the stages. Every packet in
// it is consumed exactly once: sent, dropped, held, handed over or given back.
type batch struct {
	n int
	// desc are the packets' buffers, those of one packet next to each other.
	desc  [batchSize * maxBuffers]xsk.Desc
	first [batchSize]uint8  // where in desc a packet begins
	bufs  [batchSize]uint8  // how many of desc it has
	size  [batchSize]uint32 // the frame's length over all buffers
	in    [batchSize]int32  // the port that it came from
	pkt   [batchSize]header.Packet
	key   [batchSize]conntrack.Key
	hash  [batchSize]uint64
	ref   [batchSize]conntrack.Ref
	ok    [batchSize]bool // still to be looked up
	// plain packets are whole, in one buffer with room for what established
	// touches, and neither begin nor end a connection, nor their own way.
	plain [batchSize]bool
	// tries is how often the flow that was found had just been ended.
	tries [batchSize]uint8
}

// head is packet i's first buffer, which holds all headers.
func (b *batch) head(i int) *xsk.Desc { return &b.desc[b.first[i]] }

// buffers are all of packet i's buffers.
func (b *batch) buffers(i int) []xsk.Desc {
	from := int(b.first[i])
	return b.desc[from : from+int(b.bufs[i])]
}

// take receives up to batchSize buffers of port in as a batch, and returns how
// many there were. A packet of more than maxBuffers is dropped.
func (w *worker) take(b *batch, in int32, q Queue) int {
	n := q.Receive(b.desc[:batchSize])
	b.n = 0
	packets, bytes := uint64(0), uint64(0)
	for at := 0; at < n; {
		i, first, size := b.n, at, uint32(0)
		for at < n {
			d := &b.desc[at]
			more := d.Options & xsk.Continued
			d.Options = more
			size += d.Len
			at++
			if more == 0 {
				break
			}
		}
		bufs := at - first
		packets++
		bytes += uint64(size)
		if bufs > maxBuffers {
			w.freeBuffers(b.desc[first:at])
			w.t.drops[DropTooBig]++
			continue
		}
		b.first[i], b.bufs[i], b.size[i], b.in[i] = uint8(first), uint8(bufs), size, in
		b.n++
	}
	w.t.rxPackets += packets
	w.t.rxBytes += bytes
	return n
}

// frame is the first buffer of packet i.
func (w *worker) frame(b *batch, i int) []byte {
	d := b.head(i)
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
func (w *worker) process(b *batch) {
	w.memory.Prefetch(b.desc[:b.n])
	created := w.t.newFlows
	for at := 0; at < b.n+2*groupSize; at += groupSize {
		if from, to := b.group(at); from < to {
			w.classify(b, from, to)
			w.ct.PrefetchBuckets(b.hash[from:to])
		}
		if from, to := b.group(at - groupSize); from < to {
			w.ct.Candidates(b.hash[from:to], b.ref[from:to])
		}
		if from, to := b.group(at - 2*groupSize); from < to {
			w.ct.Confirm(b.hash[from:to], b.key[from:to], b.ref[from:to])
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
func (w *worker) forward(b *batch, from, to int, created uint64) {
	for i := from; i < to; i++ {
		ref := b.ref[i]
		if ref != 0 && b.plain[i] && w.established(b, i, ref) || !b.ok[i] {
			continue
		}
		if ref == 0 && w.openings.n != 0 && w.openings.has(b, b.hash[i]) {
			w.openAll(b)
		}
		if ref == 0 && w.t.newFlows != created {
			ref = w.ct.Lookup(b.hash[i], &b.key[i]) // made by this very batch
		}
		if ref != 0 {
			w.flow(b, i, ref)
		} else {
			w.miss(b, i)
		}
	}
	if w.openings.n != 0 {
		w.openAll(b)
	}
}

// classify parses packets and makes their keys; what is not a TCP, UDP or SCTP packet is
// dealt with here.
func (w *worker) classify(b *batch, from, to int) {
	for i := from; i < to; i++ {
		d := b.head(i)
		f := w.area[d.Addr : d.Addr+uint64(d.Len)]
		p := &b.pkt[i]
		b.tries[i] = 0
		addrs, ports, ok := header.Plain4(f, int(b.size[i]), p)
		if !ok {
			w.classifyOther(b, i)
			continue
		}
		b.ok[i] = true
		b.plain[i] = w.isPlain(b, i, p, d)
		k := &b.key[i]
		w4 := uint64(ports) | uint64(p.Proto)<<32 | 4<<40
		k.W = [5]uint64{0: addrs, 4: w4}
		b.hash[i] = w.table.Hash4(addrs, w4)
	}
}

// isPlain says whether a packet that [header.Plain] took is one for established.
func (w *worker) isPlain(b *batch, i int, p *header.Packet, d *xsk.Desc) bool {
	return !p.Partial && p.TTL > 1 && p.Flags&(header.SYN|header.FIN|header.RST) == 0 &&
		b.bufs[i] == 1 && d.Addr&w.frameMask+uint64(p.L3)+plainLen <= w.frameMask
}

// classifyOther is classify of a packet that is not untagged and plain IPv4.
func (w *worker) classifyOther(b *batch, i int) {
	f := w.frame(b, i)
	p := &b.pkt[i]
	b.plain[i] = header.PlainElse(f, int(b.size[i]), p)
	if b.plain[i] {
		b.plain[i] = w.isPlain(b, i, p, b.head(i))
	} else if problem := header.Parse(f, int(b.size[i]), p); problem != header.OK {
		b.ok[i] = false
		b.key[i] = conntrack.Key{}
		b.hash[i] = 0
		w.refuse(b, i, problem)
		return
	}
	b.ok[i] = true
	k := &b.key[i]
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
	b.hash[i] = w.table.Hash(k)
}

// refuse deals with a packet that is not a whole TCP, UDP or SCTP packet: what may
// well be the kernel's business goes back to it, the malformed is dropped.
func (w *worker) refuse(b *batch, i int, problem header.Problem) {
	switch problem {
	case header.NotIP:
		w.giveBack(b, i, DropNotIP)
	case header.IsFragment:
		w.fragment(b, i)
	case header.NotTransport:
		if proto := b.pkt[i].Proto; proto == header.ProtoICMP || proto == header.ProtoICMPv6 {
			w.icmp(b, i)
			return
		}
		w.giveBack(b, i, DropNotTransport)
	case header.Truncated:
		w.drop(b, i, DropTruncated)
	case header.BadIPHeader:
		w.drop(b, i, DropBadIPHeader)
	case header.Martian:
		w.drop(b, i, DropMartian)
	case header.BadExtension:
		w.drop(b, i, DropExtension)
	case header.SourceRouted:
		w.drop(b, i, DropSourceRoute)
	case header.BadFragment:
		w.drop(b, i, DropBadFragment)
	case header.TinyFragment:
		w.drop(b, i, DropTinyFragment)
	default:
		w.drop(b, i, DropBadTransport)
	}
}

// drop counts packet i under its reason and frees its frames.
func (w *worker) drop(b *batch, i int, reason Drop) {
	w.t.drops[reason]++
	w.sampleDrop(b, i, reason)
	w.recycle(b, i)
}

func (w *worker) recycle(b *batch, i int) { w.freeBuffers(b.buffers(i)) }

func (w *worker) freeBuffers(descs []xsk.Desc) {
	for j := range descs {
		w.free.push(descs[j].Addr &^ w.frameMask)
	}
}

// send puts packet i on its way out of a port, or hands it to the worker
// that owns the port's queue.
func (w *worker) send(b *batch, i int, out int32) {
	p := &w.ports[out]
	n := int(b.bufs[i])
	if p.q == nil {
		w.sendElsewhere(b, i, out)
		return
	}
	if p.txn+n > txQueueLen {
		w.transmit(p)
	}
	p.txn += copy(p.tx[p.txn:], b.buffers(i))
}

// sendElsewhere sends packet i by a port that has no queue of this worker.
func (w *worker) sendElsewhere(b *batch, i int, out int32) {
	if p := &w.ports[out]; p.tag != 0 {
		w.pushTag(b, i, p.tag)
		w.send(b, i, p.under)
		return
	}
	w.handOver(b, i, out)
}

// pushTag puts a VLAN tag on packet i, behind the MAC addresses.
func (w *worker) pushTag(b *batch, i int, tag uint32) {
	w.memory.Prepend(b.head(i), header.TagLen)
	f := w.frame(b, i)
	copy(f, f[header.TagLen:header.TagLen+12])
	binary.BigEndian.PutUint32(f[12:], tag)
	p := &b.pkt[i]
	p.L3, p.L4 = p.L3+header.TagLen, p.L4+header.TagLen
	b.size[i] += header.TagLen
}

// handOver passes packet i to the worker that owns the way out: never is a
// packet put on another worker's ring.
func (w *worker) handOver(b *batch, i int, out int32) {
	h := w.peers[w.ports[out].owner]
	if h == nil || !h.out.Put(out, b.buffers(i)...) {
		w.drop(b, i, DropHandoffFull)
		return
	}
	h.wake = true
	w.t.handedOver++
}

// untag takes the VLAN tag off packet i. It names a network on the way in: on the way
// out the port says which tag its packets get.
func (w *worker) untag(b *batch, i int) {
	f := w.frame(b, i)
	p := &b.pkt[i]
	n := p.L3 - header.EthernetLen
	copy(f[n:], f[:12])
	d := b.head(i)
	d.Addr, d.Len = d.Addr+uint64(n), d.Len-uint32(n)
	b.size[i] -= uint32(n)
	p.L3, p.L4 = p.L3-n, p.L4-n
}

// giveBack passes a packet that is not Weir's to the kernel, through the host
// port and unchanged but for the MAC addresses. One that came from the host
// port is dropped under the reason given: no loop.
func (w *worker) giveBack(b *batch, i int, reason Drop) {
	if b.pkt[i].Frag != 0 && w.datagrams.current != nil {
		w.datagrams.current.kernels = true
	}
	if w.hostPort < 0 || b.in[i] == w.hostPort {
		w.drop(b, i, reason)
		return
	}
	f := w.frame(b, i)
	if len(f) < header.EthernetLen {
		w.drop(b, i, reason)
		return
	}
	if b.pkt[i].L3 != header.EthernetLen {
		w.untag(b, i)
		f = w.frame(b, i)
	}
	copy(f[0:6], w.hostMACs[0][:])
	copy(f[6:12], w.hostMACs[1][:])
	if b.ok[i] && b.pkt[i].Partial {
		w.completeChecksum(b, i, &w.ports[w.hostPort])
	}
	w.t.toKernel++
	w.send(b, i, w.hostPort)
}
