package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/table"
)

// forwardWithoutFlow sends packet p, of no flow, to an endpoint in a mode without translation.
// The packet is to be dropped for reason where the endpoint is reached by translation alone.
func (w *forwarder) forwardWithoutFlow(
	p *pkt, fe *table.FrontendEntry, ep *table.EndpointEntry, reason Drop,
) verdict {
	if p.TTL <= 1 {
		return drop(DropTTL)
	}
	known, ok := w.routeTo(p, ep, uint32(p.hash))
	path := known.path
	if !ok {
		return noRoute(path.Kind)
	}
	mode := ModeTo(fe, ep, &path, w.node)
	if !mode.DSR() { // translated here, and by a flow alone
		return drop(reason)
	}
	if !w.canReach(&path, mode, ep.AddrPort) {
		return drop(DropNotAdjacent)
	}
	src, ok := w.node.Source(&path, ep, p.hash)
	if !ok && mode != conntrack.ModeL2DSR {
		return drop(DropNoRoute)
	}
	var out egress
	if v := w.egressTo(p, &path, tunnelTo(p.hash, mode, src.Addr, ep.AddrPort.Addr()), &out); v != pass {
		return v
	}
	return w.output(p, &out)
}

// onTableFull handles the first packet of a connection for which the flow table has no
// room. In the DSR modes it goes to the endpoint that follows from the tuple, as do later
// packets: none needs a flow. That replaces the choice of the algorithms random and
// least-conn.
func (w *connMaker) onTableFull(o *pendingConn) verdict {
	p := o.p
	if !o.flow.Mode.DSR() || p.Frag != 0 {
		return drop(DropTableFull)
	}
	v := w.forwardWithoutFlow(p, o.fe, w.pickByTuple(o.fe, &p.key), DropTableFull)
	if v == sent {
		w.counts[counter.Flowless]++
	}
	return v
}
