package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/table"
)

// forwardWithoutFlow sends packet p, of no flow, to an endpoint in a mode without translation.
// It reports whether it did; else it has dealt with the packet: dropped for reason
// where the endpoint is reached by translation alone.
func (w *forwarder) forwardWithoutFlow(
	p *pkt, fe *table.FrontendEntry, ep *table.EndpointEntry, reason Drop,
) bool {
	if p.TTL <= 1 {
		w.drop(p, DropTTL)
		return false
	}
	path, ok := w.routes.Lookup(ep.AddrPort.Addr(), uint32(p.hash))
	if !ok {
		w.onNoRoute(p, path.Kind)
		return false
	}
	mode := ModeTo(fe, ep, &path, w.node)
	if !mode.DSR() { // translated here, and by a flow alone
		w.drop(p, reason)
		return false
	}
	if !w.canReach(&path, mode, ep.AddrPort) {
		w.drop(p, DropNotAdjacent)
		return false
	}
	src, ok := w.node.Source(&path, ep, p.hash)
	if !ok && mode != conntrack.ModeL2DSR {
		w.drop(p, DropNoRoute)
		return false
	}
	var out egress
	out.adj, out.mac, _ = w.resolveNextHop(p, &path, true)
	if out.adj == nil {
		return false // queued, or dropped
	}
	out.mtu = min(out.adj.MTU(), path.MTU)
	out.into(w.tunnelTo(p, mode, src.Addr, ep.AddrPort.Addr()))
	if w.tooBig(p, &out) {
		return false
	}
	w.output(p, &out)
	return true
}

// onTableFull handles the first packet of a connection for which the flow table has no
// room. In the DSR modes it goes to the endpoint that follows from the tuple, as do later
// packets: none needs a flow. That replaces the choice of the algorithms random and
// least-conn.
func (w *flows) onTableFull(o *pendingConn) {
	p := o.p
	if !o.flow.Mode.DSR() || p.Frag != 0 {
		w.drop(p, DropTableFull)
		return
	}
	if ep := w.pickByTuple(o.fe, &p.key); w.forwardWithoutFlow(p, o.fe, ep, DropTableFull) {
		w.counts[counter.Flowless]++
	}
}
