package worker

import (
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
)

// A ping in fragments is answered piece by piece, with its own identification: a
// reply is the request but for the first piece's type, and who asked puts it
// together. Each piece counts as a ping for the limits.

// ofICMP says whether a packet's protocol is its family's ICMP.
func ofICMP(p *header.Packet) bool {
	return p.Family == 4 && p.Proto == header.ProtoICMP || p.Family == 6 && p.Proto == header.ProtoICMPv6
}

// mayBeEcho says whether packet p, a fragment, may be of a ping that Weir answers.
func (w *Worker) mayBeEcho(p *pkt) bool {
	if !ofICMP(&p.Packet) {
		return false
	}
	k := addressPair(w.frame(p)[p.L3:], p.Family)
	return w.cfg.VIPs.Load().Lookup(k.Dst().Addr())
}

// firstOfEcho deals with the first fragment of an ICMP message to such an address.
func (w *Worker) firstOfEcho(p *pkt, d *fragtrack.Datagram) {
	f := w.frame(p)
	switch header.ICMPMessage(f, &p.Packet) {
	case header.MessageEcho:
	case header.MessageMalformed:
		w.drop(p, DropICMPMalformed)
		return
	default:
		w.giveBack(p, DropNotTransport)
		return
	}
	p.key = addressPair(f[p.L3:], p.Family)
	if !w.validSource(p, nil) {
		return
	}
	d.Echo = w.replyFragment(p, d, true)
}

// replyFragment answers a fragment of a ping; false when it has been dropped.
func (w *Worker) replyFragment(p *pkt, d *fragtrack.Datagram, first bool) bool {
	f := w.frame(p)
	fr := p.Fragment(f)
	if p.Family == 4 && header.IPv4(f[p.L3:]).HeaderLen() != header.IPv4Len ||
		p.Family == 6 && (p.Frag != p.L3+header.IPv6Len || f[p.Frag] != header.ProtoICMPv6) {
		w.drop(p, DropUnsupported)
		return false
	}
	if (f[0]|f[6])&1 != 0 || !w.echoes.Take(w.source(p), w.tick) {
		w.drop(p, DropEchoLimit)
		return false
	}
	if v := d.Take(&fr); v != fragtrack.Pass {
		w.drop(p, fragmentDrops[v])
		return false
	}
	header.EchoReplyFragment(f, &p.Packet, first)
	w.t.fragments++
	if first {
		w.t.echoes++
	}
	if d.Complete() {
		d.Forget()
	}
	w.sendBack(p)
	return true
}
