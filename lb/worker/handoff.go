package worker

import (
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/handoff"
	"github.com/weirlb/weir/lb/xsk"
)

// handOff passes the packet to another worker, the owner of the egress port or of the
// datagram: a worker never writes to another worker's ring.
func (w *portIO) handOff(p *pkt, owner, tag int32) verdict {
	h := w.links[owner]
	if w.obs != nil && h != nil && h.out.Free() >= int(p.n) { // the frames are soon the other worker's
		w.obs.handedOff(p.desc[:p.n], tag, w.tick)
	}
	if h == nil || !h.out.Put(tag, p.desc[:p.n]...) {
		return drop(DropHandoffFull)
	}
	h.wake = true
	w.counts[counter.Handoff]++
	return sent
}

// receiveHandoffs queues frames that other workers have handed off to ports of this worker.
// It takes fragments of this worker through the stages, and takes back the frames that are
// owed to it.
func (w *Worker) receiveHandoffs() int {
	work := 0
	b := &w.requeued
	b.reset(0)
	for _, p := range w.links {
		if p == nil {
			continue
		}
		whole := true // no packet is begun
		for n := 0; n < 4*batchSize || !whole; n++ {
			s, ok := p.in.Take()
			if !ok {
				break
			}
			work++
			if s.Tag == returned {
				w.free.push(s.Desc.Addr)
				continue
			}
			if s.Tag <= arrived {
				whole = w.addHandoff(b, &s)
				p.owed++
				continue
			}
			out := &w.ports[s.Tag]
			if out.Queue == nil {
				whole = s.Desc.Options&xsk.Continued == 0
				w.portGone(&s.Desc)
				p.owed++
				continue
			}
			if whole && out.txn+maxBuffers > txQueueLen {
				w.transmit(out)
			}
			whole = s.Desc.Options&xsk.Continued == 0
			out.tx[out.txn] = s.Desc
			out.txn++
			p.owed++
		}
		w.processHandoffs(b)
	}
	return work
}

// giveFramesBack returns as many frames as were taken from other workers:
// any frame will do, all are of the same umem.
func (w *portIO) giveFramesBack() {
	for _, p := range w.links {
		if p == nil {
			continue
		}
		for p.owed > 0 && p.out.Free() > batchSize {
			a, ok := w.free.pop()
			if !ok {
				return
			}
			p.out.Put(returned, xsk.Desc{Addr: a})
			p.owed--
			p.wake = true
		}
	}
}

// link is the connection of a worker with another worker.
type link struct {
	out  *handoff.Ring // to it
	in   *handoff.Ring // from it
	to   *Worker
	owed int  // frames taken from it that are to be given back
	wake bool // something was put on out in this round
}

// handoffSize is the number of frames that may be in flight between two workers.
const handoffSize = 4096

// Connect connects every two workers by hand-off rings.
func Connect(workers []*Worker) {
	n := len(workers)
	rings := make([][]*handoff.Ring, n)
	for from := range rings {
		rings[from] = make([]*handoff.Ring, n)
		for to := range rings[from] {
			if from != to {
				rings[from][to] = handoff.New(handoffSize)
			}
		}
	}
	for id, w := range workers {
		w.links = make([]*link, n)
		for other := range n {
			if other != id {
				w.links[other] = &link{out: rings[id][other], in: rings[other][id], to: workers[other]}
			}
		}
	}
}

// addHandoff adds a frame of such a packet to a batch, which is processed when it
// is full; whole reports whether the packet is complete with it.
func (w *Worker) addHandoff(b *batch, s *handoff.Slot) (whole bool) {
	w.arriving.in = arrived - s.Tag
	w.arriving.desc[w.arriving.n] = s.Desc
	w.arriving.n++
	w.arriving.size += s.Desc.Len
	if s.Desc.Options&xsk.Continued != 0 {
		return false
	}
	b.add(&w.arriving)
	w.arriving = frames{}
	if b.n == batchSize {
		w.processHandoffs(b)
	}
	return true
}

// processHandoffs runs the stages over packets handed off by other workers.
func (w *Worker) processHandoffs(b *batch) {
	if b.n > 0 {
		w.process(b)
	}
	b.reset(0)
}

// portGone frees a buffer that was handed off to leave by a port whose queue
// the worker has let go since.
func (w *portIO) portGone(d *xsk.Desc) {
	if d.Options&xsk.Continued == 0 {
		w.drops[DropHandoffFull]++
	}
	w.free.push(d.Addr &^ w.frameMask)
}
