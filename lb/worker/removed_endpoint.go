package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// removals are the endpoints that were removed, as of the beginning of the round.
type removals struct {
	frontends  *table.Table
	any        bool // an endpoint is gone that a flow may name
	act        bool // and a Service does not keep TCP flows to such an endpoint
	graceTicks uint32
}

// read begins a round.
func (r *removals) read() {
	r.any = r.frontends.AnyEndpointRemoved()
	r.act = r.any && r.frontends.AnyRemoval()
}

// watched returns the protocols of flows that must not take the fast path if their endpoint
// was removed.
func (r *removals) watched() protocols {
	switch {
	case !r.any:
		return 0
	case r.act:
		return 1<<header.ProtoTCP | 1<<header.ProtoUDP
	}
	return 1 << header.ProtoUDP
}

// has reports whether at a tick the flow's endpoint has been absent from the tables for longer
// than the configured grace.
func (r *removals) has(c *conntrack.Conn, tick uint32) bool {
	since, gone := r.frontends.EndpointRemoved(atomic.LoadUint32(&c.EndpointID))
	// Signed: it may have gone after this round began.
	return gone && int32(tick-since) >= int32(r.graceTicks)
}

// policy is the Service's policy for flows of removed endpoints.
func (r *removals) policy(c *conntrack.Conn) table.Removal {
	return r.frontends.Removal(atomic.LoadUint32(&c.ServiceID))
}

// endpointRemoved handles a packet of a flow whose endpoint was removed, and passes it if it is
// to be forwarded nevertheless. It is asked only while an endpoint is gone that flows may still
// name.
func (w *endings) endpointRemoved(p *pkt, ref conntrack.Ref) verdict {
	c := w.via.conns.Conn(ref)
	if !w.via.removed.has(c, w.via.tick) {
		return pass
	}
	if p.Proto == header.ProtoUDP {
		if !ref.Forward() {
			return pass
		}
		// A datagram has no connection to keep: select anew. Only here: the
		// snapshot of this round may still offer the endpoint that is gone.
		w.via.conntrack.Delete(ref)
		return again
	}
	policy := w.via.removed.policy(c)
	if ref.Forward() && opens(&p.Packet) {
		return w.reuseRemoved(p, ref, c, policy)
	}
	switch {
	case policy == table.DropFlows:
		return drop(DropEndpointRemoved)
	case policy == table.ResetFlows:
		return w.endConn(p, ref, DropEndpointRemoved)
	case p.Proto == header.ProtoTCP && ref.Forward() && answersChallenge(p, w.via.tick):
		w.via.conntrack.Delete(ref)
		return drop(DropEndpointRemoved)
	}
	return pass
}

// reuseRemoved handles packet p, a SYN or INIT of a flow whose endpoint is gone, and passes it
// if TrackTCP is to decide.
func (w *endings) reuseRemoved(
	p *pkt, ref conntrack.Ref, c *conntrack.Conn, policy table.Removal,
) verdict {
	if policy == table.Keep {
		switch c.State() {
		case flowstate.SynSent, flowstate.SCTPInit: // the endpoint was never heard
		case flowstate.TimeWait, flowstate.Close: // over: TrackTCP knows more
			return pass
		case flowstate.SCTPCookieEchoed, flowstate.SCTPEstablished, flowstate.SCTPShutdown:
			if c.Idle(w.via.tick) <= sctpSilence {
				return drop(DropEndpointRemoved)
			}
		default:
			tick := w.via.tick
			if tick-w.via.challenged.since(p.hash, c.LastSeen(), tick) < challengeSilence {
				return challenge(c.LastSeen(), DropEndpointRemoved)
			}
		}
	}
	w.via.conntrack.Delete(ref)
	return again
}
