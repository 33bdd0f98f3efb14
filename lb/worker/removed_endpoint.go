package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// endpointRemoved handles a packet of a flow whose endpoint was removed, and passes it if it is
// to be forwarded nevertheless. It is asked only while an endpoint is gone that flows may still
// name.
func (w *flows) endpointRemoved(p *pkt, ref conntrack.Ref) verdict {
	c := w.conns.Conn(ref)
	if !w.isEndpointRemoved(c) {
		return pass
	}
	if p.Proto == header.ProtoUDP {
		if !ref.Forward() {
			return pass
		}
		// A datagram has no connection to keep: select anew. Only here: the
		// snapshot of this round may still offer the endpoint that is gone.
		w.conntrack.Delete(ref)
		return again
	}
	policy := w.removalPolicy(c)
	if ref.Forward() && opens(&p.Packet) {
		return w.reuseRemoved(p, ref, c, policy)
	}
	switch {
	case policy == table.DropFlows:
		return drop(DropEndpointRemoved)
	case policy == table.ResetFlows:
		return w.endConn(p, ref, DropEndpointRemoved)
	case p.Proto == header.ProtoTCP && ref.Forward() && w.answersChallenge(p):
		w.conntrack.Delete(ref)
		return drop(DropEndpointRemoved)
	}
	return pass
}

// reuseRemoved handles packet p, a SYN or INIT of a flow whose endpoint is gone, and passes it
// if TrackTCP is to decide.
func (w *flows) reuseRemoved(
	p *pkt, ref conntrack.Ref, c *conntrack.Conn, policy table.Removal,
) verdict {
	if policy == table.Keep {
		switch c.State() {
		case flowstate.SynSent, flowstate.SCTPInit: // the endpoint was never heard
		case flowstate.TimeWait, flowstate.Close: // over: TrackTCP knows more
			return pass
		case flowstate.SCTPCookieEchoed, flowstate.SCTPEstablished, flowstate.SCTPShutdown:
			if c.Idle(w.tick) <= sctpSilence {
				return drop(DropEndpointRemoved)
			}
		default:
			if w.tick-w.challenged.since(p.hash, c.LastSeen(), w.tick) < challengeSilence {
				return challenge(c.LastSeen(), DropEndpointRemoved)
			}
		}
	}
	w.conntrack.Delete(ref)
	return again
}

// isEndpointRemoved reports whether the flow's endpoint has been absent from the
// tables for longer than the configured grace.
func (w *flows) isEndpointRemoved(c *conntrack.Conn) bool {
	since, gone := w.frontends.EndpointRemoved(atomic.LoadUint32(&c.EndpointID))
	// Signed: it may have gone after this round began.
	return gone && int32(w.tick-since) >= int32(w.removalGraceTicks)
}
