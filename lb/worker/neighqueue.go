package worker

import (
	"net/netip"
	"slices"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

const (
	neighQueueLen = 256 // packets that may wait on a worker
	// neighQueuePerClass of them are to endpoints and gateways, and as many to clients on the
	// link, whose addresses may be made up. A next hop may take all places of its class. When
	// a class is full, the packet makes room that came when most of its next hop waited; among
	// those within the share of their next hop, packets to silent endpoints and gateways first,
	// and then the oldest: a next hop that exists answers within a millisecond or two.
	neighQueuePerClass = neighQueueLen / 2
	neighQueueShare    = 8 // packets of a next hop
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
	silent  bool   // it has not answered the last resolution that has ended
	excess  int32  // packets of the next hop beyond its share, when the packet came
	order   uint32 // among those that wait
	asked   uint32 // tick of the last request for the next hop
	probes  uint32 // of the adjacency before that request
	came    uint32 // probes of the adjacency when the packet came
	until   uint32 // tick at which waiting ends
}

// queueForNeighbor keeps packet p while the kernel resolves the next hop, and asks for that
// if ask is true. It waits until the kernel has given up. For an endpoint or a gateway that is a
// resolution that began after the packet came: a link may have returned since the last began.
func (w *forwarder) queueForNeighbor(p *pkt, path *route.Path, needed, ask bool) verdict {
	probes, came, silent := uint32(0), uint32(0), false
	if n, ok := w.router.Adjacency(path.Port, path.NextHop); ok {
		adj := &w.adjacencies[n]
		came, silent = adj.Probes(), needed && adj.Silent()
		probes = came
		if s := adj.State(); s != route.Unresolved && s != route.Failed {
			probes-- // no request of this packet's is to be served
		}
	}
	if ask && !w.dryRun {
		w.router.Resolve(w.id, path.Port, path.NextHop, needed)
	}
	same, class, place := 0, 0, 0
	for j := range w.neighQueue {
		h := &w.neighQueue[j]
		if h.nextHop == path.NextHop && int(h.port) == path.Port {
			same++
		}
		if h.needed != needed {
			continue
		}
		if class++; class == 1 || h.yieldsBefore(&w.neighQueue[place]) {
			place = j
		}
	}
	fresh := queuedPacket{frames: p.frames, port: int32(path.Port), nextHop: path.NextHop,
		needed: needed, silent: silent, excess: int32(max(0, same+1-neighQueueShare)), order: w.neighQueueOrder + 1,
		asked: w.tick, probes: probes, came: came, until: w.tick + neighQueueTicks}
	full := class == neighQueuePerClass
	if silent && fresh.excess > 0 || full && fresh.yieldsBefore(&w.neighQueue[place]) {
		return drop(DropNeighborQueueFull)
	}
	if full {
		w.dropFrames(&w.neighQueue[place].frames, DropNeighborQueueFull)
		w.neighQueue = slices.Delete(w.neighQueue, place, place+1) // packets leave in the order of the queue
	}
	w.counts[counter.NeighborQueued]++
	w.neighQueueOrder++
	w.neighQueue = append(w.neighQueue, fresh)
	return queued
}

// yieldsBefore reports whether h makes room sooner than o, of the same class.
func (h *queuedPacket) yieldsBefore(o *queuedPacket) bool {
	if h.excess != o.excess {
		return h.excess > o.excess
	}
	if h.silent != o.silent {
		return h.silent
	}
	return int32(h.order-o.order) < 0
}

// releaseResolved adds queued packets whose next hop has been resolved to an empty batch, and those that
// go elsewhere. It rejects others whose next hop has not answered.
func (w *flows) releaseResolved(b *batch) {
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
		p.data = w.frame(p)
		v := w.unresolved(p, h.until-neighQueueTicks)
		if v == again {
			continue
		}
		b.n--
		w.act(p, v)
	}
	w.neighQueue = keep
}

// unresolved is the verdict on packet p, which has waited since a tick for a next hop that does not
// answer: again where it is to begin its flow at another endpoint.
func (w *flows) unresolved(p *pkt, since uint32) verdict {
	unreachable := rejectICMP(header.HostUnreachable, 0, DropNeighbor)
	if header.Parse(p.data, int(p.size), &p.Packet) != header.OK {
		return unreachable
	}
	ref := w.watch.lost(p, w.tick)
	if ref == 0 || p.Proto != header.ProtoTCP || !opens(&p.Packet) {
		return unreachable
	}
	c := w.conns.Conn(ref)
	if c.State() != flowstate.SynSent || int32(c.Created()-since) > 0 {
		return drop(DropNeighbor) // the SYN that was sent again has gone elsewhere
	}
	if !w.othersMayAnswer(c, ref) {
		return unreachable
	}
	w.conntrack.Delete(ref)
	return again
}

// neighborState reports whether a queued packet can go on now, or never. It asks again for a
// next hop that is not being resolved: the neighbor was flushed meanwhile, possibly with an
// answer that no worker saw, the kernel refused the request, or a resolution has failed that
// began before the packet came.
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
	failed = state == route.Failed && (!h.needed || adj.FailedSince(h.came))
	if state == route.Unresolved || state == route.Failed && !failed {
		w.askAgain(h, probes)
	}
	return state == route.Valid, failed
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
