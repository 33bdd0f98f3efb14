package worker

import (
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
)

// A ping in fragments is answered fragment by fragment, with the same identification: a
// reply is the request except for the first fragment's type, and the sender reassembles it.
// Each fragment counts as a ping for the limits.

// ofICMP reports whether a packet's protocol is the ICMP of the address family.
func ofICMP(p *header.Packet) bool {
	return p.Family == 4 && p.Proto == header.ProtoICMP || p.Family == 6 && p.Proto == header.ProtoICMPv6
}

// mayBeEcho reports whether packet p, a fragment, may be of a ping that Weir answers.
func (w *icmpHandler) mayBeEcho(p *pkt) bool {
	if !ofICMP(&p.Packet) {
		return false
	}
	k := addressPair(p.data[p.L3:], p.Family)
	return w.cfg.VIPs.Load().Lookup(k.Dst().Addr())
}

// firstOfEcho handles the first fragment of an ICMP message to such an address.
func (w *icmpHandler) firstOfEcho(p *pkt, d *fragtrack.Datagram) verdict {
	switch header.ICMPMessage(p.data, &p.Packet) {
	case header.MessageEcho:
	case header.MessageMalformed:
		return drop(DropICMPMalformed)
	default:
		return punt(DropUnsupportedProtocol)
	}
	p.key = addressPair(p.data[p.L3:], p.Family)
	if v := w.checkSource(p, nil); v != pass {
		return v
	}
	return w.replyFragment(p, d, true)
}

// replyFragment answers a fragment of a ping.
func (w *icmpHandler) replyFragment(p *pkt, d *fragtrack.Datagram, first bool) verdict {
	f := p.data
	fr := p.Fragment(f)
	if p.Family == 4 && header.IPv4(f[p.L3:]).HeaderLen() != header.IPv4Len ||
		p.Family == 6 && (p.Frag != p.L3+header.IPv6Len || f[p.Frag] != header.ProtoICMPv6) {
		return drop(DropUnsupported)
	}
	if !w.mayReply(p) {
		return drop(DropEchoLimit)
	}
	if v := d.Take(&fr); v != fragtrack.Pass {
		return drop(fragmentDrops[v])
	}
	d.Echo = true
	header.EchoReplyFragment(f, &p.Packet, first)
	w.counts[counter.Fragments]++
	if first {
		w.counts[counter.EchoReplies]++
	}
	if d.Complete() {
		d.Forget()
	}
	return reply
}

// echo answers a ping of an address that serves frontends alone: nobody else
// would. Any other is the kernel's.
func (w *icmpHandler) echo(p *pkt) verdict {
	p.key = addressPair(p.data[p.L3:], p.Family)
	if !w.cfg.VIPs.Load().Lookup(p.key.Dst().Addr()) {
		return punt(DropUnsupportedProtocol)
	}
	if v := w.checkSource(p, nil); v != pass {
		return v
	}
	if p.n > 1 && p.L4-p.L3 > ipLen(p.Family) {
		return drop(DropUnsupported) // the bytes that would be left out continue in other buffers
	}
	if !w.mayReply(p) {
		return drop(DropEchoLimit)
	}
	n := header.EchoReply(p.data, &p.Packet)
	p.desc[0].Len -= uint32(n)
	w.counts[counter.EchoReplies]++
	return reply
}

// mayReply reports whether packet p, a ping or a fragment, may be answered: not if it was sent
// to or by a group of stations, and at a limited rate.
func (w *icmpHandler) mayReply(p *pkt) bool {
	return (p.data[0]|p.data[6])&1 == 0 && w.echoes.Take(w.sourceOf(p.data[p.L3:], p.Family), w.tick)
}

// ipLen is the length of an IP header with nothing added.
func ipLen(family uint8) uint8 {
	if family == 6 {
		return header.IPv6Len
	}
	return header.IPv4Len
}
