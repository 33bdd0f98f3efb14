package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/table"
)

// strayError deals with an error about a packet of no flow that is known; the key
// is that of the packets that would have led to it. In the one-way modes the flow
// may be another node's: routers that spread traffic over several Weirs choose one
// for an error by its own addresses. Any of them knows the endpoint all the same,
// where it follows from the tuple. Else, for some time after start, it may be
// about a connection that kube-proxy began.
func (w *Worker) strayError(p *pkt) {
	k := table.DestinationKey(&p.key.W)
	fe := w.snapshot.Lookup(&k)
	switch {
	case fe == nil && !w.node.OwnsTuple(&p.key):
		w.giveBack(p, DropNotOurs)
	case fe != nil && oneWay(fe.Mode):
		w.errorOfAnotherNode(p, fe)
	case fe != nil && w.tick < w.takeoverUntil:
		w.giveBack(p, DropICMPNoFlow)
	default:
		w.drop(p, DropICMPNoFlow)
	}
}

// errorOfAnotherNode sends an error about what an endpoint has answered past Weir
// to the endpoint that every node chooses for the flow. No flow is made of it.
func (w *Worker) errorOfAnotherNode(p *pkt, fe *table.FrontendEntry) {
	if !w.admitted(p, fe) {
		return
	}
	ep := w.agreed(fe, &p.key)
	if ep == nil {
		w.drop(p, DropICMPNoFlow)
		return
	}
	if w.directTo(p, fe, ep, DropICMPNoFlow) {
		w.t.icmpPassed++
	}
}

// directTo sends packet p, of no flow, to an endpoint in a mode without translation.
// It reports whether it did; else it has dealt with the packet: dropped for reason
// where the endpoint is reached by translation alone.
func (w *Worker) directTo(p *pkt, fe *table.FrontendEntry, ep *table.EndpointEntry, reason Drop) bool {
	if p.TTL <= 1 {
		w.drop(p, DropTTL)
		return false
	}
	path, ok := w.routes.Lookup(ep.AddrPort.Addr(), uint32(p.hash))
	if !ok {
		w.noRoute(p, path.Kind)
		return false
	}
	mode := ModeTo(fe, ep, &path, w.node)
	if !oneWay(mode) { // translated here, and by a flow alone
		w.drop(p, reason)
		return false
	}
	if !w.reaches(&path, mode, ep.AddrPort) {
		w.drop(p, DropNotOnLink)
		return false
	}
	src, ok := w.node.Source(&path, ep, p.hash)
	if !ok && mode != conntrack.ModeL2DSR {
		w.drop(p, DropNoRoute)
		return false
	}
	var out egress
	out.adj, out.mac, _ = w.hop(p, &path, true)
	if out.adj == nil {
		return false // held, or dropped
	}
	out.mtu = min(out.adj.MTU(), path.MTU)
	out.into(w.tunnelTo(p, mode, src.Addr, ep.AddrPort.Addr()))
	if w.tooBig(p, &out) {
		return false
	}
	w.output(p, &out)
	return true
}

// agreed is the endpoint that a flow of the tuple has on whichever node it is, as
// far as this one can know; nil where the choice does not follow from the tuple.
func (w *Worker) agreed(fe *table.FrontendEntry, k *conntrack.Key) *table.EndpointEntry {
	pool := fe.Pool
	if seconds := pool.AffinitySeconds(); seconds != 0 {
		return w.pinned(fe, k, uint32(seconds))
	}
	if pool.Algorithm() != table.Maglev {
		return nil
	}
	return pool.Select(&k.W, &w.rng, w.tick)
}
