package worker

import (
	"net/netip"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// In dnat the endpoint sees the client's address, so that its answer is to the
// client: it comes back only where the host port brings it back (see
// hostveth/returnpath.go), not from an attached interface, where the steering
// program could not tell it from other traffic. A flow that cannot have the
// mode gets nat in its place.

// ModeTo is the mode of a new flow to an endpoint by a path. An endpoint
// behind the kernel of this very node gets the translated packet also where
// the Service's mode is one without translation: there is no wire on which the
// frontend's address could be told from the node's.
func ModeTo(fe *table.FrontendEntry, ep *table.EndpointEntry, path *route.Path, node *Node) conntrack.Mode {
	switch {
	case fe.Mode == conntrack.ModeDNAT && path.Kind == route.Host,
		fe.Mode.DSR() && path.Kind == route.Host && (path.Local || ep.Local):
		if node.ReturnPath {
			return conntrack.ModeDNAT
		}
		return conntrack.ModeNAT
	case fe.Mode == conntrack.ModeDNAT, fe.Mode.DSR() && path.Kind == route.Host:
		return conntrack.ModeNAT
	}
	return max(fe.Mode, conntrack.ModeNAT)
}

// mayKeepClient says whether the answer to packet p, the first of a flow to an
// endpoint behind the host port, will come back to its client's own address.
func (w *Worker) mayKeepClient(p *pkt, ep *table.EndpointEntry, path *route.Path) bool {
	if p.in == w.hostVeth {
		// A client on this node: the kernel drops what comes from an address of
		// its own, and a bridge between two pods would carry the answer past it.
		return false
	}
	if !path.Local || p.Proto != header.ProtoUDP {
		return true
	}
	// A datagram's server on the wildcard address answers from the address
	// that the kernel prefers towards the client: it must be the one asked.
	back, ok := w.routes.Lookup(p.key.Src().Addr(), uint32(p.hash))
	return ok && back.Source == ep.AddrPort.Addr()
}

// throughHostVeth is the next hop of a path for a mode: behind the host port
// the one whose packets' answers the kernel brings back, for dnat.
func throughHostVeth(path *route.Path, mode conntrack.Mode) netip.Addr {
	if mode == conntrack.ModeDNAT && path.Kind == route.Host {
		return path.LocalSource
	}
	return path.NextHop
}
