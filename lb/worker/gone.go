package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// orphaned deals with a packet of a flow whose endpoint is gone, if it is not to
// go on all the same; false means that nothing has been done. It is asked only
// while an endpoint is gone that flows may still name.
func (w *Worker) orphaned(p *pkt, ref conntrack.Ref) bool {
	c := w.conns.Conn(ref)
	if !w.endpointGone(c) {
		return false
	}
	if p.Proto == header.ProtoUDP {
		if !ref.Forward() {
			return false
		}
		// A datagram has no connection to keep: select anew. Only here: the
		// snapshot of this round may still offer the endpoint that is gone.
		w.conntrack.Delete(ref)
		w.miss(p)
		return true
	}
	policy := w.removalOf(c)
	if ref.Forward() && opens(&p.Packet) {
		return w.beginsAnew(p, ref, c, policy)
	}
	tcp := p.Proto == header.ProtoTCP
	switch {
	case policy == table.DropFlows:
		w.drop(p, DropEndpointGone)
	case policy == table.ResetFlows && tcp:
		w.abort(p, ref)
	case policy == table.ResetFlows:
		w.refuseSCTP(p, DropEndpointGone)
	case tcp && ref.Forward() && w.answersChallenge(p):
		w.clientIsGone(p, ref)
	default:
		return false
	}
	return true
}

// abort ends a connection for whoever speaks, with a RST that has the number that
// he has acknowledged. The flow stays as one that was reset, so that the other side
// is told as well when it speaks, and is forgotten soon after the last word.
func (w *Worker) abort(p *pkt, ref conntrack.Ref) {
	w.conns.Abort(ref, w.tick)
	w.reset(p, DropEndpointGone)
}

// endpointGone says whether the flow's endpoint has been absent from the
// tables for longer than the configured grace.
func (w *Worker) endpointGone(c *conntrack.Conn) bool {
	since, gone := w.frontends.Gone(atomic.LoadUint32(&c.Endpoint))
	// Signed: it may have gone after this round began.
	return gone && int32(w.tick-since) >= int32(w.goneTicks)
}
