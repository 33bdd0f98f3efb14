package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
)

// tryElsewhere has the connection of packet p begin anew, at another endpoint of the pool, if p is a SYN
// that the client sends again and the endpoint of entry ref has not answered at all. It passes any other
// packet. A SYN-ACK of the first endpoint that comes late finds no flow: the kernel answers it with a RST,
// in mode dnat that of the client. Where endpoints answer past Weir, that they are silent is not known.
func tryElsewhere(w *flows, p *pkt, ref conntrack.Ref) verdict {
	if p.Proto != header.ProtoTCP || !ref.Forward() || !opens(&p.Packet) || w.dryRun || w.node.Draining || w.conns.Entry(ref).Mode.DSR() {
		return pass
	}
	c := w.conns.Conn(ref)
	if c.State() != flowstate.SynSent || w.tick-c.Created() < answerTicks {
		return pass
	}
	if fe := w.frontendOf(ref); fe == nil || fe.Pool.PickOther(0, atomic.LoadUint32(&c.EndpointID)) == nil {
		return pass
	}
	p.silent = atomic.LoadUint32(&c.EndpointID)
	if w.attemptOf(c).silent {
		w.attempts.Unanswered(p.silent, w.tick)
	}
	w.countResent(c, p.Flags)
	w.conntrack.Delete(ref)
	return again
}
