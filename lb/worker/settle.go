package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/xsk"
)

// settling are the flows that the kernel is to forward from now on, where it reads the flow table.
//
// A packet that the kernel forwards overtakes all packets of the flow that the worker still has. So
// a flow is settled after the round's packets have been sent, and after those that then wait at the
// port have been sent too. Only what comes in the meantime, at a worker that is never done, is
// overtaken.
type settling struct {
	conns     *conntrack.Table
	conntrack *conntrack.Worker

	asked      int
	list       [2 * batchSize]settlement // of the round
	head, tail uint32                    // of waiting
	waiting    [maxWaiting]waitingSettlement
}

// settlement is a direction of a flow, and the word for its next hop.
type settlement struct {
	ref     conntrack.Ref
	port    int32 // by which its packets come
	nextHop uint64
}

// waitingSettlement is a settlement that outlasts its round: the flow may end meanwhile, and another
// have its place.
type waitingSettlement struct {
	settlement
	generation uint16
	until      uint32 // descriptors that the port has received
	hash       uint64
	key        conntrack.Key
}

// maxWaiting is a power of two: of the flows that wait. Each packet of a full ring asks once.
const maxWaiting = xsk.DefaultRingSize

// ask lets later packets of the flow of p, in the direction of ref, leave by the word nextHop
// without the slow path. A flow that is left out, because there are too many, asks again with its
// next packet.
func (s *settling) ask(p *pkt, ref conntrack.Ref, nextHop uint64) {
	if nextHop>>32 != 0 && s.asked < len(s.list) && s.conns.Conn(ref).Settles(uint32(ref-1)) {
		s.list[s.asked] = settlement{ref, p.in, nextHop}
		s.asked++
	}
}

// sent settles the flows whose packets have been sent by the ports. Preconditions: the packets of the round
// are sent, and the worker has not quiesced since.
func (s *settling) sent(ports []port) {
	for ; s.head != s.tail; s.head++ {
		at := &s.waiting[s.head%maxWaiting]
		if int32(ports[at.port].received-at.until) < 0 {
			break
		}
		at.settle(s.conns, s.conntrack)
	}
	if s.asked == 0 {
		return
	}
	list := s.list[:s.asked]
	s.asked = 0
	lookWaiting(ports)
	for i := range list {
		at := &list[i]
		if p := &ports[at.port]; p.waiting == 0 {
			s.conns.Settle(at.ref, at.nextHop)
		} else if s.tail-s.head < maxWaiting {
			e := s.conns.Entry(at.ref)
			key := e.Tuple()
			s.waiting[s.tail%maxWaiting] = waitingSettlement{
				*at, e.Generation(), p.received + p.waiting, s.conns.Hash(&key), key,
			}
			s.tail++
		}
	}
}

// settle settles a flow that asked in an earlier round, if it is still there. While the worker does
// not quiesce nobody takes an entry away that a look-up finds.
func (at *waitingSettlement) settle(t *conntrack.Table, w *conntrack.Worker) {
	if w.Lookup(at.hash, &at.key) == at.ref && t.Entry(at.ref).Generation() == at.generation {
		t.Settle(at.ref, at.nextHop)
	}
}

// lookWaiting notes how many descriptors wait at each port.
func lookWaiting(ports []port) {
	for i := range ports {
		if p := &ports[i]; p.Queue != nil {
			p.waiting = uint32(p.Queue.Pending())
		}
	}
}
