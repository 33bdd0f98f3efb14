package worker

import (
	"github.com/weirlb/weir/lb/table"
)

// onUnmatchedError deals with an error about a packet of no flow that is known; the key
// is that of the packets that would have led to it. In the one-way modes the flow
// may be another node's: routers that spread traffic over several Weirs choose one
// for an error by its own addresses. Any of them knows the endpoint all the same,
// where it follows from the tuple. Else, for some time after start, it may be
// about a connection that kube-proxy began.
func (w *Worker) onUnmatchedError(p *pkt) {
	k := table.DestinationKey(&p.key.W)
	fe := w.snapshot.Lookup(&k)
	switch {
	case fe == nil && !w.node.OwnsTuple(&p.key):
		w.punt(p, DropNotOurs)
	case fe != nil && fe.Mode.DSR():
		w.forwardECMPError(p, fe)
	case fe != nil && w.tick < w.takeoverUntil:
		w.punt(p, DropICMPNoFlow)
	default:
		w.drop(p, DropICMPNoFlow)
	}
}

// forwardECMPError sends an error about what an endpoint has answered past Weir
// to the endpoint that every node chooses for the flow. No flow is made of it.
func (w *Worker) forwardECMPError(p *pkt, fe *table.FrontendEntry) {
	if !w.sourceAllowed(p, fe) {
		return
	}
	ep := w.consistentPick(fe, &p.key)
	if ep == nil {
		w.drop(p, DropICMPNoFlow)
		return
	}
	if w.forwardWithoutFlow(p, fe, ep, DropICMPNoFlow) {
		w.counts.icmpPassed++
	}
}
