package worker

import (
	"net/netip"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

const (
	neighQueueLen        = 256 // packets that may wait on a worker
	neighQueuePerNextHop = 8   // of them, for a next hop
	// neighQueuePerClass of them are to endpoints and gateways, and as many to clients on the
	// link, whose addresses may be made up. When a class is full the oldest packet makes
	// room: a next hop that exists answers within a millisecond or two.
	neighQueuePerClass = neighQueueLen / 2
)

// queuedPacket is a packet that waits for the next hop's MAC address, untouched.
type queuedPacket struct {
	frames
	port    int32
	nextHop netip.Addr
	needed  bool   // an endpoint or a gateway is there
	order   uint32 // among those that wait
	until   uint32 // tick at which waiting ends
}

// queueForNeighbor keeps packet p while the kernel resolves the next hop, and asks for that
// if ask is true. Packets wait for a second at most.
func (w *forwarder) queueForNeighbor(p *pkt, path *route.Path, needed, ask bool) verdict {
	if ask {
		w.router.Resolve(w.id, path.Port, path.NextHop, needed)
	}
	same, class, oldest := 0, 0, 0
	for j := range w.neighQueue {
		h := &w.neighQueue[j]
		if h.nextHop == path.NextHop && int(h.port) == path.Port {
			same++
		}
		if h.needed != needed {
			continue
		}
		if class++; class == 1 || int32(h.order-w.neighQueue[oldest].order) < 0 {
			oldest = j
		}
	}
	if same >= neighQueuePerNextHop {
		return drop(DropNeighborQueueFull)
	}
	if class == neighQueuePerClass {
		w.drops[DropNeighborQueueFull]++
		h := &w.neighQueue[oldest]
		w.freeBuffers(h.desc[:h.n])
	} else {
		oldest = len(w.neighQueue)
		w.neighQueue = w.neighQueue[:oldest+1]
	}
	w.counts[counter.NeighborQueued]++
	w.neighQueueOrder++
	h := &w.neighQueue[oldest]
	*h = queuedPacket{frames: p.frames, port: int32(path.Port), nextHop: path.NextHop,
		needed: needed, order: w.neighQueueOrder, until: w.tick + secondTicks}
	return queued
}

// releaseQueued sends queued packets whose next hop has been resolved through the
// stages again, and answers for those that waited in vain.
func (w *Worker) releaseQueued() {
	w.releaseFragments()
	if len(w.neighQueue) == 0 {
		return
	}
	b := &w.requeued
	b.reset(0)
	keep := w.neighQueue[:0]
	for j := range w.neighQueue {
		h := &w.neighQueue[j]
		ready, failed := w.neighborState(h)
		if !ready && !failed && int32(w.tick-h.until) < 0 || b.n == batchSize {
			keep = append(keep, *h)
			continue
		}
		p := b.add(&h.frames)
		if ready {
			continue
		}
		b.n--
		p.data = w.frame(p)
		header.Parse(p.data, int(p.size), &p.Packet)
		w.act(p, rejectICMP(header.HostUnreachable, 0, DropNeighbor))
	}
	w.neighQueue = keep
	if b.n > 0 {
		w.process(b)
	}
}

// neighborState reports whether a queued packet can go on now, or never.
func (w *forwarder) neighborState(h *queuedPacket) (ready, failed bool) {
	n, ok := w.router.Adjacency(int(h.port), h.nextHop)
	if !ok {
		return false, false
	}
	s := w.adjacencies[n].State()
	return s == route.Valid, s == route.Failed
}
