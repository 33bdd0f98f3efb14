package worker

import "github.com/weirlb/weir/conntrack"

// settling are the flows of the round that the kernel is to forward from now on, where it
// reads the flow table.
//
// A packet that the kernel forwards overtakes all packets of the flow that the worker still
// has. So a flow is settled after the round's packets have been sent, and only if no others
// wait to be received. A worker that is never done would keep all flows to itself: after
// maxBusySettles rounds it settles them nevertheless, and some packets are overtaken.
type settling struct {
	n    int
	busy int // rounds in a row that have left packets
	list [2 * batchSize]settlement
}

// settlement is a direction of a flow, and the word for its next hop.
type settlement struct {
	ref     conntrack.Ref
	nextHop uint64
}

// maxBusySettles is about a millisecond of full batches.
const maxBusySettles = 32

// settle lets later packets of the flow of ref, in that direction, leave by the word nextHop
// without the slow path. A flow that is left out, because there are too many in the round,
// asks again with its next packet.
func (w *flows) settle(ref conntrack.Ref, nextHop uint64) {
	if !w.conns.IsShared() {
		w.conns.Settle(ref, nextHop)
		return
	}
	if s := &w.settling; s.n < len(s.list) {
		s.list[s.n] = settlement{ref, nextHop}
		s.n++
	}
}

// settleSent settles the flows of the round. Preconditions: the packets are sent, and the
// worker has not quiesced since.
func (w *flows) settleSent() {
	s := &w.settling
	if s.n == 0 {
		return
	}
	list := s.list[:s.n]
	s.n = 0
	if w.receivesMore() && s.busy < maxBusySettles {
		s.busy++
		return
	}
	s.busy = 0
	for i := range list {
		w.conns.Settle(list[i].ref, list[i].nextHop)
	}
}

// receivesMore reports whether packets wait to be received.
func (w *portIO) receivesMore() bool {
	for i := range w.ports {
		if q := w.ports[i].Queue; q != nil && q.Pending() {
			return true
		}
	}
	return false
}
