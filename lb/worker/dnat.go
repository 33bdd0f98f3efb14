package worker

import (
	"net/netip"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// In dnat the endpoint sees the client's address, so that its answer is to the client: it
// returns only through the host veth (see hostveth/returnpath.go), not from an attached
// interface, where the steering program cannot distinguish it from other traffic. A flow
// that cannot have the mode gets nat instead.

// ModeTo is the mode of a new flow to an endpoint by a path. An endpoint behind the kernel
// of this node gets the translated packet even if the Service's mode has no translation: on
// the wire the frontend's address is indistinguishable from the node's.
func ModeTo(
	fe *table.FrontendEntry, ep *table.EndpointEntry, path *route.Path, node *Node,
) conntrack.Mode {
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

// mayKeepClient reports whether the answer to packet p will return to the client's real
// address. p is the first of a flow to an endpoint behind the host veth.
func (w *connMaker) mayKeepClient(p *pkt, ep *table.EndpointEntry, path *route.Path) bool {
	if p.in == w.hostVeth {
		// A client on this node: the kernel drops packets from a local address, and a
		// bridge between two pods would carry the answer past it.
		return false
	}
	if !path.Local || p.Proto != header.ProtoUDP {
		return true
	}
	// A datagram's server on the wildcard address answers from the address
	// that the kernel prefers towards the client: it must be the requested address. The answer
	// comes by no interface.
	back, ok := w.routes.Lookup(&route.Packet{Dst: p.key.Src(), Proto: p.Proto}, uint32(p.hash))
	return ok && back.Source == ep.AddrPort.Addr()
}

// throughHostVeth is the next hop of a path for a mode: for dnat behind the host veth, the
// next hop whose answers the kernel returns.
func throughHostVeth(path *route.Path, mode conntrack.Mode) netip.Addr {
	if mode == conntrack.ModeDNAT && path.Kind == route.Host {
		return path.LocalSource
	}
	return path.NextHop
}
