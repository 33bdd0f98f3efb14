package worker

import (
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
)

// A ping in fragments is answered fragment by fragment, with the same identification: a
// reply is the request but for the first fragment's type, and the sender reassembles it.
// Each fragment counts as a ping for the limits.

// ofICMP reports whether a packet's protocol is the ICMP of the address family.
func ofICMP(p *header.Packet) bool {
	return p.Family == 4 && p.Proto == header.ProtoICMP || p.Family == 6 && p.Proto == header.ProtoICMPv6
}

// mayBeEcho says whether packet p, a fragment, may be of a ping that Weir answers.
func (w *icmpHandler) mayBeEcho(p *pkt) bool {
	if !ofICMP(&p.Packet) {
		return false
	}
	k := addressPair(p.data[p.L3:], p.Family)
	return w.cfg.VIPs.Load().Lookup(k.Dst().Addr())
}

// firstOfEcho deals with the first fragment of an ICMP message to such an address.
func (w *icmpHandler) firstOfEcho(p *pkt, d *fragtrack.Datagram) {
	f := p.data
	switch header.ICMPMessage(f, &p.Packet) {
	case header.MessageEcho:
	case header.MessageMalformed:
		w.drop(p, DropICMPMalformed)
		return
	default:
		w.punt(p, DropUnsupportedProtocol)
		return
	}
	p.key = addressPair(f[p.L3:], p.Family)
	if !w.checkSource(p, nil) {
		return
	}
	d.Echo = w.replyFragment(p, d, true)
}

// replyFragment answers a fragment of a ping; false when it has been dropped.
func (w *icmpHandler) replyFragment(p *pkt, d *fragtrack.Datagram, first bool) bool {
	f := p.data
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
	w.counts[counter.Fragments]++
	if first {
		w.counts[counter.EchoReplies]++
	}
	if d.Complete() {
		d.Forget()
	}
	w.outputBack(p)
	return true
}

// echo answers a ping of an address that serves frontends alone: nobody else
// would. Any other is the kernel's.
func (w *icmpHandler) echo(p *pkt) {
	f := p.data
	p.key = addressPair(f[p.L3:], p.Family)
	if !w.cfg.VIPs.Load().Lookup(p.key.Dst().Addr()) {
		w.punt(p, DropUnsupportedProtocol)
		return
	}
	if !w.checkSource(p, nil) {
		return
	}
	if p.n > 1 && p.L4-p.L3 > ipLen(p.Family) {
		w.drop(p, DropUnsupported) // the bytes that would be left out continue in other buffers
		return
	}
	if (f[0]|f[6])&1 != 0 || !w.echoes.Take(w.source(p), w.tick) {
		w.drop(p, DropEchoLimit)
		return
	}
	n := header.EchoReply(f, &p.Packet)
	p.desc[0].Len -= uint32(n)
	w.counts[counter.EchoReplies]++
	w.outputBack(p)
}

// ipLen is the length of an IP header with nothing added.
func ipLen(family uint8) uint8 {
	if family == 6 {
		return header.IPv6Len
	}
	return header.IPv4Len
}
