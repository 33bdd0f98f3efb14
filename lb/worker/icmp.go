package worker

import (
	"encoding/binary"
	"math/bits"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// icmpHandler answers pings, and forwards errors to the sender of the packet that they
// quote.
type icmpHandler struct{ flows }

// icmp handles packet p, an ICMP or ICMPv6 message.
func (w *icmpHandler) icmp(p *pkt) verdict {
	switch header.ICMPMessage(p.data, &p.Packet) {
	case header.MessageError:
		return w.icmpError(p)
	case header.MessageEcho:
		return w.echo(p)
	case header.MessageMalformed:
		return drop(DropICMPMalformed)
	}
	return punt(DropUnsupportedProtocol)
}

// icmpError handles an ICMP error. It belongs to the flow of which it quotes
// a packet that Weir sent: the other end's packets have that tuple reversed.
// An error opens no flow, keeps none alive and is not answered.
func (w *icmpHandler) icmpError(p *pkt) verdict {
	var q header.Quote
	problem := header.ParseQuote(p.data, &p.Packet, &q)
	if problem == header.OK || problem == header.NotTransport {
		if v := w.onTunnelTooBig(p, &q); v != pass {
			return v
		}
	}
	switch problem {
	case header.OK:
	case header.IsFragment, header.NotTransport: // of no flow of Weir's
		return punt(DropICMPNoFlow)
	default:
		return drop(DropICMPMalformed)
	}
	quoted := quotedKey(p.data, p.Family, &q)
	if !sentToSource(p.data, &p.Packet, &quoted) {
		return drop(DropICMPMalformed)
	}
	p.key = quoted.Reverse()
	p.hash = w.conns.Hash(&p.key)
	ref := w.conntrack.Lookup(p.hash, &p.key)
	if ref == 0 {
		return w.onUnmatchedError(p)
	}
	return w.forwardError(p, &q, ref)
}

// quotedKey is the tuple of the packet that an error quotes.
func quotedKey(f []byte, family uint8, q *header.Quote) conntrack.Key {
	k := addressPair(f[q.L3:], family)
	k.W[4] = uint64(binary.LittleEndian.Uint32(f[q.L4:])) | uint64(q.Proto)<<32 | uint64(family)<<40
	return k
}

// addressPair is a key with the addresses of an IP header only.
func addressPair(ip []byte, family uint8) conntrack.Key {
	var k conntrack.Key
	k.W[4] = uint64(family) << 40
	if family == 4 {
		k.W[0] = binary.LittleEndian.Uint64(ip[12:])
		return k
	}
	for j := range 4 {
		k.W[j] = binary.LittleEndian.Uint64(ip[8+8*j:])
	}
	return k
}

// sentToSource reports whether an error goes to the sender of the quoted packet. Otherwise
// it is forged (RFC 5927 section 4).
func sentToSource(f []byte, p *header.Packet, quoted *conntrack.Key) bool {
	outer := addressPair(f[p.L3:], p.Family)
	if p.Family == 4 {
		return uint32(outer.W[0]>>32) == uint32(quoted.W[0])
	}
	return outer.W[2] == quoted.W[0] && outer.W[3] == quoted.W[1]
}

// forwardError forwards an error about a packet of the flow to the original sender: ref is
// the entry of the packets that go there.
func (w *icmpHandler) forwardError(p *pkt, q *header.Quote, ref conntrack.Ref) verdict {
	e, c := w.conns.Entry(ref), w.conns.Conn(ref)
	if c.State() == flowstate.None {
		return drop(DropICMPNoFlow)
	}
	if p.TTL <= 1 {
		return drop(DropTTL)
	}
	var out egress
	if v := w.egressOf(p, ref, &out); v != pass {
		return v
	}
	w.noteUnreachable(p, c, ref)
	if !ref.Forward() && q.Proto == header.ProtoTCP && header.DestinationUnreachable(p.data, &p.Packet) && w.othersMayAnswer(c, ref) {
		w.noteFailed(c)
		return drop(DropRefused)
	}
	if !out.dsr {
		if ref.Forward() && e.Mode == conntrack.ModeNAT && !w.floorMTU(p) {
			return drop(DropReplyLimit)
		}
		var t header.ErrorTranslation
		w.errorTranslation(&t, p, ref)
		header.TranslateError(p.data, &p.Packet, q, &t)
	}
	w.counts[counter.ICMPForwarded]++
	return w.output(p, &out)
}

// floorMTU raises the MTU in an error to an endpoint to the configured minimum; false when
// the sender of the error has reached the rate limit. In nat an endpoint sees all clients
// under Weir's address, and stores a single path MTU for it (ten minutes in Linux): an
// error of a single client lowers the path MTU of all others. RFC 1191 section 3
// leaves the minimum to the host, and Linux takes no less than 552 (ip_rt_min_pmtu); IPv6
// has no link below 1,280 (RFC 8201 section 4); RFC 5927 section 7 is about the attack.
func (w *icmpHandler) floorMTU(p *pkt) bool {
	f := p.data
	mtu, ok := header.TooBigMTU(f, &p.Packet)
	if !ok {
		return true
	}
	if !w.pathMTUs.Take(w.sourceOf(p.data[p.L3:], p.Family), w.tick) {
		return false
	}
	least := w.cfg.MinPathMTU
	if p.Family == 6 {
		least = max(least, minMTU6)
	}
	if mtu < uint32(least) {
		header.RaiseMTU(f, &p.Packet, least)
	}
	return true
}

// errorTranslation is the translation of error p by an entry. The quoted packet gets back
// the form in which it came to Weir. The error itself gets the new source and destination
// of the entry's packets, whichever router made it: as with Linux' NAT and RFC 5508,
// requirement 5, a host sees no address that it does not know and may not reach. Where the
// entry keeps the source, so does the error.
func (w *icmpHandler) errorTranslation(t *header.ErrorTranslation, p *pkt, ref conntrack.Ref) {
	f, e := p.data, w.conns.Entry(ref)
	t.Ports = bits.RotateLeft32(e.NewPorts, 16)
	if p.Family == 4 {
		t.Quoted[0] = bits.RotateLeft64(e.Addr4, 32)
		t.Outer[0] = e.Addr4
		if uint32(e.Addr4) == uint32(e.Key.W[0]) {
			own := addressPair(f[p.L3:], 4)
			t.Outer[0] = e.Addr4>>32<<32 | own.W[0]&0xffffffff
		}
		return
	}
	src, dst := w.conns.NewAddrs6(ref)
	t.Quoted = [4]uint64{dst[0], dst[1], src[0], src[1]}
	if src[0] == e.Key.W[0] && src[1] == e.Key.W[1] {
		own := addressPair(f[p.L3:], 6)
		src[0], src[1] = own.W[0], own.W[1]
	}
	t.Outer = [4]uint64{src[0], src[1], dst[0], dst[1]}
}
