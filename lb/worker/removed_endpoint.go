package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// endpointRemoved deals with a packet of a flow whose endpoint was removed, if it is not to
// go on all the same; false means that nothing has been done. It is asked only
// while an endpoint is gone that flows may still name.
func (w *flows) endpointRemoved(p *pkt, ref conntrack.Ref) bool {
	c := w.conns.Conn(ref)
	if !w.isEndpointRemoved(c) {
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
	policy := w.removalPolicy(c)
	if ref.Forward() && opens(&p.Packet) {
		return w.reuseRemoved(p, ref, c, policy)
	}
	tcp := p.Proto == header.ProtoTCP
	switch {
	case policy == table.DropFlows:
		w.drop(p, DropEndpointRemoved)
	case policy == table.ResetFlows && tcp:
		w.resetConn(p, ref)
	case policy == table.ResetFlows:
		w.rejectSCTP(p, DropEndpointRemoved)
	case tcp && ref.Forward() && w.answersChallenge(p):
		w.forgetChallenged(p, ref)
	default:
		return false
	}
	return true
}

// resetConn ends a connection with a RST to the sender of packet p, with the acknowledged
// number. The flow stays in state CLOSE, so that the next packet of the other side is
// answered by a RST too, and is forgotten soon after the last packet.
func (w *flows) resetConn(p *pkt, ref conntrack.Ref) {
	w.conns.Abort(ref, w.tick)
	w.rejectTCP(p, DropEndpointRemoved)
}

// isEndpointRemoved says whether the flow's endpoint has been absent from the
// tables for longer than the configured grace.
func (w *flows) isEndpointRemoved(c *conntrack.Conn) bool {
	since, gone := w.frontends.EndpointRemoved(atomic.LoadUint32(&c.EndpointID))
	// Signed: it may have gone after this round began.
	return gone && int32(w.tick-since) >= int32(w.removalGraceTicks)
}
