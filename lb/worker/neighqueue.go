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
	// neighQueueTicks is how long a packet waits. The kernel asks three times, a second
	// apart, and then says that the neighbor failed: a lost request costs no packet.
	neighQueueTicks = 4 * secondTicks
)

// queuedPacket is a packet that waits for the next hop's MAC address, untouched.
type queuedPacket struct {
	frames
	port    int32
	nextHop netip.Addr
	needed  bool   // an endpoint or a gateway is there
	order   uint32 // among those that wait
	asked   uint32 // tick of the last request for the next hop
	probes  uint32 // of the adjacency before that request
	until   uint32 // tick at which waiting ends
}

// queueForNeighbor keeps packet p while the kernel resolves the next hop, and asks for that
// if ask is true. It waits until the kernel has given up.
func (w *forwarder) queueForNeighbor(p *pkt, path *route.Path, needed, ask bool) verdict {
	probes := uint32(0)
	if n, ok := w.router.Adjacency(path.Port, path.NextHop); ok {
		probes = w.adjacencies[n].Probes()
		if w.adjacencies[n].State() != route.Unresolved {
			probes-- // no request of this packet's is to be served
		}
	}
	if ask && !w.dryRun {
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
		w.dropFrames(&w.neighQueue[oldest].frames, DropNeighborQueueFull)
	} else {
		oldest = len(w.neighQueue)
		w.neighQueue = w.neighQueue[:oldest+1]
	}
	w.counts[counter.NeighborQueued]++
	w.neighQueueOrder++
	h := &w.neighQueue[oldest]
	*h = queuedPacket{frames: p.frames, port: int32(path.Port), nextHop: path.NextHop,
		needed: needed, order: w.neighQueueOrder, asked: w.tick, probes: probes, until: w.tick + neighQueueTicks}
	return queued
}

// releaseQueued sends queued packets whose next hop has been resolved through the stages
// again, and rejects those whose next hop has not answered.
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

// neighborState reports whether a queued packet can go on now, or never. It asks again for a
// next hop that is not being resolved: the neighbor was flushed meanwhile, possibly with an
// answer that no worker saw, or the kernel refused the request.
func (w *forwarder) neighborState(h *queuedPacket) (ready, failed bool) {
	n, ok := w.router.Adjacency(int(h.port), h.nextHop)
	if !ok {
		if h.needed { // of clients' there may be any number
			w.askAgain(h, h.probes)
		}
		return false, false
	}
	adj := &w.adjacencies[n]
	probes := adj.Probes() // before the state, so that no loss goes unnoticed
	state := adj.State()
	if state == route.Unresolved {
		w.askAgain(h, probes)
	}
	return state == route.Valid, state == route.Failed
}

// askAgain asks for the next hop of a queued packet, unless the last request is still to be
// served: at once after another probe, otherwise once per tick.
func (w *forwarder) askAgain(h *queuedPacket, probes uint32) {
	if h.asked == w.tick && h.probes == probes {
		return
	}
	h.asked, h.probes = w.tick, probes
	w.router.Resolve(w.id, int(h.port), h.nextHop, h.needed)
}
