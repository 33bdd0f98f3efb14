package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
)

// Fragments are not reassembled. The first fragment of a datagram has the ports: it is
// forwarded as any packet of the flow, and noted under (source, destination,
// identification, protocol). The later fragments get the flow entry of these ports.
// Fragments that come before the first wait.
//
// All fragments of a datagram are handled by the same worker, chosen by a hash of their
// common fields, so that no state is shared: NICs spread
// first and later fragments over different queues when they hash the ports of
// those that have some. A fragment that arrives elsewhere is handed off by the rings.
//
// Where addresses are translated the identification is too: datagrams of two clients with
// the same identification would else be merged at an endpoint that sees both under the same
// address. The new identification comes from a counter per pair of new addresses (RFC 7739
// section 5.3), of which every worker has a share. The kernel numbers the node's own
// datagrams from such an address: these may still collide, as those of any two senders
// behind the same address can.
//
// A ping in fragments is answered fragment by fragment, with the same identification: a
// reply is the request except for the first fragment's type, and the sender reassembles it.
// Each fragment counts as a ping for the limits.

// fragmentHandler forwards fragments by the flow of the first of their datagram.
type fragmentHandler struct {
	icmpHandler
	fragQueue fragQueue
}

// onFragment handles packet p, a fragment of an IP datagram.
func (w *fragmentHandler) onFragment(p *pkt) verdict {
	p.datagram = nil
	fr := p.Fragment(p.data)
	if !mayHavePorts(&p.Packet, fr.Offset) && !w.mayBeEcho(p) {
		return punt(DropUnsupportedProtocol)
	}
	k := datagramKey(p.data, &p.Packet, fr.ID)
	h := w.conns.Hash(&k)
	if owner := int(h >> 32 % uint64(len(w.links))); owner != w.id {
		return w.handOff(p, int32(owner), arrived-p.in)
	}
	d := w.datagrams.Find(h, &k, w.tick)
	if fr.Offset > 0 {
		return w.laterFragment(p, d, &k)
	}
	return w.firstFragment(p, d, h, &k)
}

// mayHavePorts reports whether a fragment's datagram is of TCP, UDP or SCTP, as far as
// the fragment shows: in IPv6 extension headers may come first.
func mayHavePorts(p *header.Packet, offset int) bool {
	switch p.Proto {
	case header.ProtoTCP, header.ProtoUDP, header.ProtoSCTP:
		return true
	case header.ProtoICMP, header.ProtoICMPv6:
		return false
	}
	return p.Family == 6 && offset > 0
}

// ofICMP reports whether a packet's protocol is the ICMP of the address family.
func ofICMP(p *header.Packet) bool {
	return p.Family == 4 && p.Proto == header.ProtoICMP || p.Family == 6 && p.Proto == header.ProtoICMPv6
}

// mayBeEcho reports whether packet p, a fragment, may be of a ping that Weir answers.
func (w *fragmentHandler) mayBeEcho(p *pkt) bool {
	if !ofICMP(&p.Packet) {
		return false
	}
	k := addressPair(p.data[p.L3:], p.Family)
	return w.cfg.VIPs.Load().Lookup(k.Dst().Addr())
}

// datagramKey has the common fields of a datagram's fragments. In IPv6 the protocol is not
// among them (RFC 8200 section 4.5).
func datagramKey(f []byte, p *header.Packet, id uint32) conntrack.Key {
	k := addressPair(f[p.L3:], p.Family)
	k.W[4] = uint64(id) | uint64(p.Family)<<40
	if p.Family == 4 {
		k.W[4] |= uint64(p.Proto) << 32
	}
	return k
}

// firstFragment forwards a first fragment as any packet, and then the fragments that were
// waiting for it.
func (w *fragmentHandler) firstFragment(
	p *pkt, d *fragtrack.Datagram, h uint64, k *conntrack.Key,
) verdict {
	switch {
	case d == nil:
		d = w.datagrams.Add(h, k, w.tick)
	case !d.Begun():
	case d.Repeats(w.tick):
		return drop(DropFragmentOverlap)
	default:
		d.Restart(w.tick)
	}
	d.Touch(w.tick)
	d.Proto, d.Punted, d.Echo = p.Proto, false, false
	p.datagram = d
	w.fragQueue.markReady(k)
	if ofICMP(&p.Packet) {
		return w.firstOfEcho(p, d)
	}
	d.Ports = binary.LittleEndian.Uint32(p.data[p.L4:])

	p.state = slow
	w.setFragmentKey(p, k)
	return again // it has ports now
}

// setFragmentKey gives fragment p the key of the datagram's flow.
func (w *fragmentHandler) setFragmentKey(p *pkt, k *conntrack.Key) {
	p.key = *k
	p.key.W[4] = uint64(p.datagram.Ports) | uint64(p.Proto)<<32 | uint64(p.Family)<<40
	p.hash = w.conns.Hash(&p.key)
}

// laterFragment sends any other fragment after the first.
func (w *fragmentHandler) laterFragment(p *pkt, d *fragtrack.Datagram, k *conntrack.Key) verdict {
	switch {
	case d == nil:
		return w.queueFragment(p, k)
	case d.Punted:
		return punt(DropPuntLoop)
	case ofICMP(&p.Packet) != d.Echo:
		return drop(DropOrphanFragment)
	}
	d.Touch(w.tick)
	p.datagram = d
	if d.Echo {
		return w.replyFragment(p, d, false)
	}
	p.Proto = d.Proto
	w.setFragmentKey(p, k)
	ref := w.conntrack.Lookup(p.hash, &p.key)
	if ref == 0 || w.conns.Conn(ref).State() == flowstate.None {
		return drop(DropOrphanFragment)
	}
	p.state = untracked
	return w.forwardSlow(p, ref)
}

// firstOfEcho handles the first fragment of an ICMP message to such an address.
func (w *fragmentHandler) firstOfEcho(p *pkt, d *fragtrack.Datagram) verdict {
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
func (w *fragmentHandler) replyFragment(p *pkt, d *fragtrack.Datagram, first bool) verdict {
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

// fragmentDrops are the reasons to drop a fragment that the tracker refuses.
var fragmentDrops = [fragtrack.Verdicts]Drop{
	fragtrack.Overlap: DropFragmentOverlap,
	fragtrack.TooMany: DropFragmentLimit,
}
