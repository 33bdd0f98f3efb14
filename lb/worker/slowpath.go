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

// slowPath deals with packet p, for which the flow entry was found.
func (w *flows) slowPath(p *pkt, ref conntrack.Ref) {
	p.data = w.frame(p)
	if !w.checkTCPSum(p) {
		return
	}
	if w.anyRemoved && w.endpointRemoved(p, ref) {
		return
	}
	w.forwardSlow(p, ref)
}

// forwardSlow sends packet p on by the flow entry that it belongs to.
func (w *flows) forwardSlow(p *pkt, ref conntrack.Ref) {
	c := w.conns.Conn(ref)
	if p.TTL <= 1 {
		w.rejectICMP(p, header.TimeExceeded, 0, DropTTL)
		return
	}
	var out egress
	if !w.egressOf(p, ref, &out) {
		return
	}
	e := w.conns.Entry(ref)
	if p.Proto == header.ProtoTCP {
		if !w.trackTCP(p, c, ref) {
			return
		}
	} else if p.Proto == header.ProtoSCTP {
		if !w.trackSCTP(p, ref) {
			return
		}
	} else {
		if c.State() == conntrack.StateNone {
			w.lookUpAgain(p)
			return
		}
		if !w.mayOpen(p, c, ref) {
			return
		}
		w.conns.TrackUDP(ref, w.tick)
		if e.Flags&conntrack.FlagWatched != 0 && !e.Mode.DSR() {
			w.learnCID(p, c, ref)
		}
	}
	if p.Frag != 0 && !w.acceptFragment(p, e) {
		return
	}
	if !out.dsr {
		w.translate(p, e)
	}
	w.conns.Settle(ref)
	w.output(p, &out)
}

// maxLookups bounds how often a packet is looked up again: a worker that ends a flow may be
// preempted between the two steps, and workers do not wait.
const maxLookups = 8

// lookUpAgain deals with a packet whose flow went away after it was looked up:
// ended by another worker, by ageing, or by a packet of this very batch.
func (w *flows) lookUpAgain(p *pkt) {
	if p.lookups++; p.lookups > maxLookups {
		w.drop(p, DropNoConntrackEntry)
		return
	}
	if ref := w.conntrack.Lookup(p.hash, &p.key); ref != 0 {
		w.forwardSlow(p, ref)
		return
	}
	w.miss(p)
}
