package worker

import (
	"math/bits"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// groupSize is the number of packets that go through a stage at a time: a stage asks for at
// most two cache lines per packet, and processors wait for some 16 at once.
const groupSize = 8

// process runs the stages over the batch, a group at a time, and each stage a group behind
// the previous stage: while the lines of a group are fetched the other groups are
// processed.
//
//  1. parse, key and hash; ask for the bucket of the index
//  2. find the candidate in the bucket; ask for the entry
//  3. compare the keys; rewrite and enqueue, or whatever else the packet needs
//
// The third goes in the order of arrival.
func (w *Worker) process(b *batch) {
	if w.obs != nil {
		w.obs.batch(b, w.tick, b == &w.requeued)
	}
	created := w.counts[counter.NewFlows]
	w.watch.clock.beginBatch()
	for at := 0; at < b.n+2*groupSize; at += groupSize {
		if from, to := b.group(at); from < to {
			w.classify(b, from, to)
			w.conntrack.PrefetchBuckets(b.hash[from:to])
		}
		if from, to := b.group(at - groupSize); from < to {
			w.conntrack.Candidates(b.hash[from:to], b.ref[from:to])
			if b.lanes6 != 0 {
				w.conntrack.PrefetchOthers(b.ref[from:to])
			}
		}
		if from, to := b.group(at - 2*groupSize); from < to {
			w.dispatch(b, from, to, created)
		}
	}
	w.noteSamples(w.tcpSamples.n)
	w.sampler.count(b)
	if w.conntrack.Records() && b != &w.requeued { // what waited was counted before
		w.countPackets(b)
	}
}

// group is the part of the batch that begins at a packet, empty outside the batch.
func (b *batch) group(at int) (from, to int) {
	if at < 0 {
		return 0, 0
	}
	return at, min(at+groupSize, b.n, batchSize)
}

// dispatch is the last stage. created is how many flows there were before the batch.
func (w *Worker) dispatch(b *batch, from, to int, created uint64) {
	w.pending.collect = true
	before, watch, asked, askedFlows := w.tcpSamples.n, w.removed.watched(), false, false
	for i := from; i < to; i++ {
		if b.ref[i&(batchSize-1)] != 0 {
			if i = w.takeLanes(b, i, to, watch); i == to {
				break
			}
			if w.mayGoOn(b, i, watch) && w.takeLanes(b, i, i+1, 0) != i {
				continue
			}
		}
		if !asked { // the lines of the headers, for those that the fast path does not take
			w.memory.Prefetch(b.first[i&(batchSize-1) : to])
			asked = true
		}
		if b.ref[i&(batchSize-1)] != 0 && !askedFlows { // and those of the flows
			w.conntrack.PrefetchFlows(b.ref[i&(batchSize-1) : to])
			askedFlows = true
		}
		if b.ref[i&(batchSize-1)] == 0 && w.pending.n == 0 && w.counts[counter.NewFlows] == created && w.dropLane(b, i) {
			continue
		}
		w.dispatchOther(b, i, created)
	}
	if w.pending.n != 0 {
		w.createPending()
	}
	w.pending.collect = false
	before = min(before, w.tcpSamples.n)
	w.tcpSamples.prefetch(w.conns, before)
	w.noteSamples(before)
}

// consume handles a packet that is not a whole TCP, UDP or SCTP packet. It may be the first
// fragment of a connection: those that began earlier are made first, and this one at once.
func (w *Worker) consume(p *pkt) {
	w.noteSamples(w.tcpSamples.n)
	if w.pending.n != 0 {
		w.createPending()
	}
	w.pending.collect = false
	w.conclude(p, w.handleUnparsed(p))
	w.pending.collect = true
}

// mayGoOn reports whether packet i, at which takeLanes has stopped, may take the fast path
// all the same: Candidates has found another key, or the endpoint that may have been
// removed is still there.
func (w *fastPath) mayGoOn(b *batch, i int, watch protocols) bool {
	i &= batchSize - 1
	ref := b.ref[i]
	if ref == 0 || b.lanes()>>i&1 == 0 {
		return false
	}
	key := b.laneKey(i)
	b.ref[i] = w.conntrack.Confirmed(b.hash[i], &key, ref)
	switch {
	case b.ref[i] == 0:
		return false
	case watch.has(key.Proto()):
		return !w.removed.has(w.conns.Conn(b.ref[i]), w.tick)
	}
	return b.ref[i] != ref
}

// dispatchOther deals with packet i, which does not take the fast path of lanes.
func (w *Worker) dispatchOther(b *batch, i int, created uint64) {
	i &= batchSize - 1
	p := &b.pkts[i]
	if b.lanes()>>i&1 != 0 {
		p = w.leaveLane(b, i)
	}
	if p.state == unparsed {
		b.ref[i] = 0
		w.consume(p)
		return
	}
	p.arrived = p.Len
	ref := b.ref[i]
	if ref != 0 {
		ref = w.conntrack.Confirmed(p.hash, &p.key, ref)
		b.ref[i] = ref // of Candidates it may name no entry at all
	}
	if ref != 0 && p.state == fast && w.forwardFast(p, ref) {
		return
	}
	if w.tcpSamples.n != 0 {
		w.noteSamples(w.tcpSamples.n)
	}
	if ref == 0 && w.pending.n != 0 && w.pending.has(p.hash) {
		w.createPending()
	}
	if ref == 0 && w.counts[counter.NewFlows] != created {
		ref = w.conntrack.Lookup(p.hash, &p.key) // made by this very batch
		b.ref[i] = ref
	}
	w.slowPath(p, ref)
}

// countPackets counts the packets of batch b for their flows. Those that begin a flow, and fragments,
// are counted where their flow is found.
func (w *Worker) countPackets(b *batch) {
	for i := range min(b.n, batchSize) {
		if r := b.ref[i]; r != 0 {
			if n := b.lengthOf(i); n != 0 {
				w.conntrack.CountPacket(r, n)
			}
		}
	}
}

// lengthOf is the length of packet i as it arrived, from the IP header on, after the last stage; 0 for a packet
// that began its flow.
func (b *batch) lengthOf(i int) uint32 {
	i &= batchSize - 1
	switch h, p := &b.head[i], &b.pkts[i]; {
	case b.lanes4>>i&1 != 0:
		return uint32(bits.ReverseBytes16(uint16(h.ip)))
	case b.lanes6>>i&1 != 0:
		return header.IPv6Len + uint32(bits.ReverseBytes16(uint16(h.ip>>32)))
	case p.began:
		return 0
	default:
		return uint32(p.arrived)
	}
}
