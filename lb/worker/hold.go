package worker

import (
	"net/netip"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

const (
	heldMax        = 256 // packets that may wait on one worker
	heldPerNextHop = 8   // of them, for one next hop
	// heldPerClass of them are to endpoints and gateways, and as many to clients on the
	// link, whose addresses may be made up. When a class is full its oldest packet makes
	// room: a next hop that exists answers within a millisecond or two.
	heldPerClass = heldMax / 2
)

// held is a packet that waits for its next hop's MAC address, untouched.
type held struct {
	frames
	port    int32
	nextHop netip.Addr
	needed  bool   // an endpoint or a gateway is there
	order   uint32 // among those that wait
	until   uint32 // tick at which waiting ends
}

// hold keeps packet p while the kernel resolves its next hop, and asks for that
// where ask is true. Packets wait for a second at most.
func (w *Worker) hold(p *pkt, path *route.Path, needed, ask bool) {
	if ask {
		w.router.Resolve(w.id, path.Port, path.NextHop, needed)
	}
	same, class, oldest := 0, 0, 0
	for j := range w.held {
		h := &w.held[j]
		if h.nextHop == path.NextHop && int(h.port) == path.Port {
			same++
		}
		if h.needed != needed {
			continue
		}
		if class++; class == 1 || int32(h.order-w.held[oldest].order) < 0 {
			oldest = j
		}
	}
	if same >= heldPerNextHop {
		w.drop(p, DropHoldFull)
		return
	}
	if class == heldPerClass {
		w.t.drops[DropHoldFull]++
		h := &w.held[oldest]
		w.freeBuffers(h.bufs())
	} else {
		oldest = len(w.held)
		w.held = w.held[:oldest+1]
	}
	w.t.held++
	w.holds++
	h := &w.held[oldest]
	*h = held{frames: p.frames, port: int32(path.Port), nextHop: path.NextHop,
		needed: needed, order: w.holds, until: w.tick + secondTicks}
}

// release sends held packets whose next hop has been resolved through the
// stages again, and answers for those that waited in vain.
func (w *Worker) release() {
	w.releaseFragments()
	if len(w.held) == 0 {
		return
	}
	b := &w.again
	b.n = 0
	keep := w.held[:0]
	for j := range w.held {
		h := &w.held[j]
		ready, failed := w.resolved(h)
		if !ready && !failed && int32(w.tick-h.until) < 0 || b.n == batchSize {
			keep = append(keep, *h)
			continue
		}
		p := b.add(&h.frames)
		if ready {
			continue
		}
		b.n--
		header.Parse(w.frame(p), int(p.size), &p.Packet)
		w.reply(p, header.HostUnreachable, 0, DropNeighbor)
	}
	w.held = keep
	if b.n > 0 {
		w.process(b)
	}
}

// resolved says whether a held packet can go on now, or never.
func (w *Worker) resolved(h *held) (ready, failed bool) {
	n, ok := w.router.Adjacency(int(h.port), h.nextHop)
	if !ok {
		return false, false
	}
	s := w.adjacencies[n].State()
	return s == route.Valid, s == route.Failed
}
