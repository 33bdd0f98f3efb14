package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// A router on the path to an endpoint may find a tunnel packet too big. Only the client can
// send smaller packets: it gets an error, as from Linux' ip6_tnl, with the quoted part of
// its packet. By RFC 1812 and RFC 4443 routers quote as much as fits. A quotation of 8
// bytes, as in RFC 792, says nothing about the inner packet, and the error is punted.
//
// Only clients store the path MTU, each for itself. If Weir stored an MTU per endpoint, a
// client that knows the addresses behind it could forge an error, and lower the path MTU of
// all others.

// onTunnelTooBig handles an error if it is about a tunnel packet of Weir's that was too big;
// any other passes.
func (w *icmpHandler) onTunnelTooBig(p *pkt, q *header.Quote) verdict {
	f := p.data
	mtu, ok := header.TooBigMTU(f, &p.Packet)
	if !ok {
		return pass
	}
	var in header.Quote
	family, problem := q.Inner(f, &in)
	if problem != header.OK {
		return pass
	}
	p.key = quotedKey(f, family, &in)
	p.hash = w.conns.Hash(&p.key)
	ref := w.conntrack.Lookup(p.hash, &p.key)
	if ref == 0 || !w.mayTunnel(ref) {
		return pass
	}
	t := w.tunnelOf(p.hash, w.conns.Entry(ref), ref)
	if !w.quotesOuter(p, &t.outer, q) {
		return pass
	}
	mtu = t.innerMTU(mtu)
	size := in.PacketLen(f)
	if mtu >= size || mtu < minMTU4 || family == 4 && !header.IPv4(f[in.L3:]).DontFragment() {
		return drop(DropICMPMalformed)
	}
	if family == 6 && mtu < minMTU6 {
		if size <= minMTU6 { // nobody would believe less
			return drop(DropTooBig)
		}
		mtu = minMTU6
	}
	return w.forwardTunnelPMTU(p, family, &in, mtu)
}

// minMTU4 is the least MTU of IPv4 (RFC 791).
const minMTU4 = 68

// mayTunnel reports whether packets of the entry go through a tunnel.
func (w *icmpHandler) mayTunnel(ref conntrack.Ref) bool {
	e := w.conns.Entry(ref)
	return e.Mode.DSR() && e.Mode != conntrack.ModeL2DSR && w.conns.Conn(ref).State() != flowstate.None
}

// quotesOuter reports whether the quoted packet has the outer header, and the error is to
// the sender of it.
func (w *icmpHandler) quotesOuter(p *pkt, o *header.Encap, q *header.Quote) bool {
	f := p.data
	quoted := addressPair(f[q.L3:], p.Family)
	if o.V6 != (p.Family == 6) || o.GUE != (q.Proto == header.ProtoUDP) || !sentToSource(f, &p.Packet, &quoted) {
		return false
	}
	if o.V6 {
		return [4]uint64(quoted.W[:4]) == o.Addr6
	}
	return quoted.W[0] == o.Addr4
}

// forwardTunnelPMTU turns error p into an error about the client's packet, in, and sends it
// to the client.
func (w *icmpHandler) forwardTunnelPMTU(
	p *pkt, family uint8, in *header.Quote, mtu uint32,
) verdict {
	path, ok := w.routes.Lookup(&route.Packet{
		Src: p.key.Dst(), Dst: p.key.Src(), Proto: p.key.Proto(), In: arrivalInterface(w.ports, p.in, p.data[:p.L3]),
	}, uint32(p.hash))
	if !ok {
		return drop(DropNoRoute)
	}
	var out egress
	if _, v := w.resolveNextHop(p, &path, path.NextHop != p.key.Src().Addr(), &out); v != pass {
		return v
	}
	f := p.data
	if !w.errors.Take(w.sourceOf(f[in.L3:], family), w.tick) {
		return drop(DropReplyLimit)
	}
	w.counts[counter.ICMPForwarded]++
	w.shrinkTo(p, header.TunnelTooBig(f[:cap(f)], &p.Packet, in, int(mtu)))
	return w.outputTo(p, out.adj, out.mac)
}
