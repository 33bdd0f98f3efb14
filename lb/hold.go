package lb

import (
	"net/netip"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/xsk"
)

const (
	heldMax        = 256 // packets that may wait on one worker
	heldPerNextHop = 8   // of them, for one next hop
)

// held is a packet that waits for its next hop's MAC address, untouched.
type held struct {
	desc    [maxBuffers]xsk.Desc
	bufs    uint8
	size    uint32
	in      int32
	port    int32      // with nextHop, when the next hop has no adjacency yet
	nextHop netip.Addr // invalid: adjacency says which
	adj     uint32
	until   uint32 // tick at which waiting ends
}

// hold keeps packet i while the kernel resolves its next hop, and asks for
// that. Packets wait for a second at most.
func (w *worker) hold(b *batch, i int, port int32, nextHop netip.Addr, adj uint32) {
	if nextHop.IsValid() {
		w.router.Resolve(w.id, int(port), nextHop)
	} else {
		w.adjacencies[adj].Touch(w.tick)
	}
	same := 0
	for j := range w.held {
		h := &w.held[j]
		if h.adj == adj && h.port == port && h.nextHop == nextHop {
			same++
		}
	}
	if same >= heldPerNextHop || len(w.held) == heldMax {
		w.drop(b, i, DropHoldFull)
		return
	}
	w.t.held++
	w.held = append(w.held, held{bufs: b.bufs[i], size: b.size[i], in: b.in[i],
		port: port, nextHop: nextHop, adj: adj, until: w.tick + secondTicks})
	copy(w.held[len(w.held)-1].desc[:], b.buffers(i))
}

// release sends held packets whose next hop has been resolved through the
// stages again, and answers for those that waited in vain.
func (w *worker) release() {
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
		i := b.n
		first := i * maxBuffers
		b.first[i], b.bufs[i], b.size[i], b.in[i] = uint8(first), h.bufs, h.size, h.in
		copy(b.desc[first:], h.desc[:h.bufs])
		if ready {
			b.n++
			continue
		}
		f := w.frame(b, i)
		b.ok[i] = header.Parse(f, int(b.size[i]), &b.pkt[i]) == header.OK
		w.reply(b, i, header.HostUnreachable, 0, DropNeighbour)
	}
	w.held = keep
	if b.n > 0 {
		w.process(b)
	}
}

// resolved says whether a held packet can go on now, or never.
func (w *worker) resolved(h *held) (ready, failed bool) {
	n := h.adj
	if h.nextHop.IsValid() {
		var ok bool
		if n, ok = w.router.Adjacency(int(h.port), h.nextHop); !ok {
			return false, false
		}
	}
	s := w.adjacencies[n].State()
	return s == route.Valid, s == route.Failed
}
