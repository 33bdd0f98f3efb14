package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// egress is how a packet leaves: its next hop, and the tunnel to its endpoint if the
// flow's answers pass Weir by.
type egress struct {
	adj    *route.Adjacency
	mac    uint64 // of the next hop
	mtu    uint32 // of link and route, less the tunnel's header
	oneWay bool   // not translated: the tunnel is valid
	tunnel tunnel
}

// egressOf sets out to how packet p leaves by the flow entry ref. If it returns false the
// packet cannot leave now and has been dealt with. The result is too large to be returned:
// a copy of words that have just been stored stalls.
func (w *Worker) egressOf(p *pkt, ref conntrack.Ref, out *egress) bool {
	p.ref = ref
	e := w.conns.Entry(ref)
	out.adj, out.mac, out.mtu = w.adjacency(p, w.conns.Conn(ref), e, ref)
	if out.adj == nil {
		return false // held, or answered
	}
	if oneWay(e.Mode) {
		out.into(w.tunnelOf(p, e, ref))
	}
	return !w.tooBig(p, out)
}

// into makes the packet leave through a tunnel.
func (out *egress) into(t tunnel) {
	out.oneWay, out.tunnel = true, t
	out.mtu = t.within(out.mtu)
}

// whole reports whether packet p leaves in a single piece. A translated packet does if
// the link takes it: a router beyond divides it, or the host's kernel if that is behind it.
func (out *egress) whole(p *pkt) bool {
	return uint32(p.Len) <= out.mtu || !out.oneWay && uint32(p.Len) <= out.adj.MTU()
}

// tooBig reports whether packet p is larger than its way out takes and may not be
// divided. Then it has been answered or dropped.
func (w *Worker) tooBig(p *pkt, out *egress) bool {
	mtu := out.mtu
	if uint32(p.Len) <= mtu {
		return false
	}
	if p.Family == 4 && !header.IPv4(w.frame(p)[p.L3:]).DontFragment() {
		if out.whole(p) || w.divisible(&p.Packet, mtu) {
			return false
		}
		w.drop(p, DropTooBig)
		return true
	}
	if p.Family == 6 && out.oneWay && mtu < minMTU6 {
		if p.Len <= minMTU6 { // no host believes less
			w.drop(p, DropTooBig)
			return true
		}
		mtu = minMTU6
	}
	w.reply(p, header.TooBig, int(mtu), DropTooBig)
	return true
}

// output sends packet p, translated unless it goes through a tunnel, on its way out. It
// divides a packet that is larger than the way out takes: see tooBig.
func (w *Worker) output(p *pkt, out *egress) {
	if out.oneWay {
		header.DecrementTTL(w.frame(p)[p.L3:], p.Family)
		if p.Proto == header.ProtoTCP && p.Flags&header.SYN != 0 {
			w.clampMSS(p, out.mtu)
		}
	}
	whole := out.whole(p)
	if p.Partial && (!whole || out.oneWay && !out.tunnel.plain) {
		// In pieces or behind another header nothing will complete it.
		w.sumChecksum(p)
		p.Partial = false
	}
	if whole {
		w.outputWhole(p, out)
		return
	}
	if p.Frag == 0 && !out.oneWay { // a fragment has got its number from fragmentGoes
		p.SetID(w.frame(p), w.nextID(p.ref))
	}
	w.outputFragments(p, out)
}

// outputWhole puts the outer header on packet p, where it gets one, and sends it.
func (w *Worker) outputWhole(p *pkt, out *egress) {
	if out.oneWay && !out.tunnel.plain && !w.encapsulate(p, &out.tunnel.outer) {
		w.drop(p, DropUnsupported)
		return
	}
	w.outputTo(p, out.adj, out.mac)
}

// outputTo sends packet p, as it is, to a next hop with the MAC address mac.
func (w *Worker) outputTo(p *pkt, adj *route.Adjacency, mac uint64) {
	src, port := adj.Src()
	adj.Touch(w.tick)
	if p.L3 != header.EthernetLen {
		w.untag(p)
	}
	route.PutMACs(w.frame(p), mac, src)
	if p.Partial {
		w.completeChecksum(p, &w.ports[port])
	}
	w.send(p, int32(port))
}
