package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
)

// flows finds, makes, follows and ends flows, and forwards their packets.
type flows struct {
	forwarder
	conntrack         *conntrack.Worker
	pending           pendingConns
	tcpSamples        tcpSamples
	datagrams         fragtrack.Tracker
	exhausted         exhaustion // endpoints without an SNAT port left
	failedTries       failedTries
	anyRemoved        bool // an endpoint is gone that a flow may name
	removalActs       bool // and a Service does not keep TCP flows to such an endpoint
	removalGraceTicks uint32
}

// slowPath takes packet p, which the fast path left, to an outcome. ref is the flow entry, 0
// if there is none.
func (w *flows) slowPath(p *pkt, ref conntrack.Ref) {
	p.data = w.frame(p)
	if ref == 0 {
		w.conclude(p, w.miss(p))
		return
	}
	w.conclude(p, w.onFlow(p, ref))
}

// onFlow handles packet p of a flow.
func (w *flows) onFlow(p *pkt, ref conntrack.Ref) verdict {
	if v := w.checkTCPSum(p); v != pass {
		return v
	}
	if w.anyRemoved {
		if v := w.endpointRemoved(p, ref); v != pass {
			return v
		}
	}
	return w.forwardSlow(p, ref)
}

// conclude takes packet p to its outcome, also after the flow by which it was to go on ended.
func (w *flows) conclude(p *pkt, v verdict) {
	for v == again {
		v = w.lookUpAgain(p)
	}
	w.act(p, v)
}

// maxLookups bounds how often a packet is looked up again: a worker that ends a flow may be
// preempted between the two steps, and workers do not wait.
const maxLookups = 8

// lookUpAgain handles a packet whose flow went away after it was looked up: ended by another
// worker, by ageing, or by a packet of this very batch.
func (w *flows) lookUpAgain(p *pkt) verdict {
	if p.lookups++; p.lookups > maxLookups {
		return drop(DropNoConntrackEntry)
	}
	if ref := w.conntrack.Lookup(p.hash, &p.key); ref != 0 {
		return w.forwardSlow(p, ref)
	}
	return w.miss(p)
}

// forwardSlow sends packet p on by the flow entry that it belongs to.
func (w *flows) forwardSlow(p *pkt, ref conntrack.Ref) verdict {
	if p.TTL <= 1 {
		return rejectICMP(header.TimeExceeded, 0, DropTTL)
	}
	var out egress
	if v := w.egressOf(p, ref, &out); v != pass {
		return v
	}
	if v := w.track(p, ref); v != pass {
		return v
	}
	e := w.conns.Entry(ref)
	if p.Frag != 0 {
		if v := w.acceptFragment(p, e); v != pass {
			return v
		}
	}
	if !out.dsr {
		w.translate(p, e)
	}
	w.conns.Settle(ref)
	return w.output(p, &out)
}

// track follows packet p of an entry's flow by its protocol.
func (w *flows) track(p *pkt, ref conntrack.Ref) verdict {
	c := w.conns.Conn(ref)
	switch p.Proto {
	case header.ProtoTCP:
		return w.trackTCP(p, c, ref)
	case header.ProtoSCTP:
		return w.trackSCTP(p, ref)
	}
	if c.State() == conntrack.StateNone {
		return again
	}
	if v := w.mayOpen(p, c, ref); v != pass {
		return v
	}
	w.conns.TrackUDP(ref, w.tick)
	if e := w.conns.Entry(ref); e.Flags&conntrack.FlagWatched != 0 && !e.Mode.DSR() {
		w.learnCID(p, c, ref)
	}
	return pass
}
