package worker

import (
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/table"
)

// onUnmatchedError handles an error about a packet of no known flow; the key is that of the
// packets that would have caused it. In the DSR modes the flow may be another node's: ECMP
// routers choose the node of an error by the error's addresses. Any node can find the
// endpoint, if it follows from the tuple. Else it may be about a connection of the kernel: at
// a port of a shared address at any time, at a frontend for some time after the start.
func (w *icmpHandler) onUnmatchedError(p *pkt) verdict {
	k := table.DestinationKey(&p.key.W)
	fe := w.snapshot.Lookup(&k)
	owned, shared := w.node.Owns(&k)
	switch {
	case fe == nil && (!owned || shared):
		return punt(DropPuntLoop)
	case fe != nil && fe.Mode.DSR():
		return w.forwardECMPError(p, fe)
	case fe != nil && w.tick < w.takeoverUntil:
		return punt(DropICMPNoFlow)
	}
	return drop(DropICMPNoFlow)
}

// forwardECMPError sends an error about an endpoint's direct answer to the endpoint that
// every node chooses for the flow. It makes no flow.
func (w *icmpHandler) forwardECMPError(p *pkt, fe *table.FrontendEntry) verdict {
	if v := w.mayUse(p, fe); v != pass {
		return v
	}
	ep := w.consistentPick(fe, &p.key)
	if ep == nil {
		return drop(DropICMPNoFlow)
	}
	v := w.forwardWithoutFlow(p, fe, ep, DropICMPNoFlow)
	if v == sent {
		w.counts[counter.ICMPForwarded]++
	}
	return v
}
