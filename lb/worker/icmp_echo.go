package worker

import (
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// echo answers a ping of an address that serves frontends alone, which the kernel does not
// have. The kernel answers all other pings.
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
