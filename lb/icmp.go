package lb

import (
	"encoding/binary"
	"math/bits"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// icmp deals with packet i, an ICMP or ICMPv6 message.
func (w *worker) icmp(b *batch, i int) {
	p := &b.pkt[i]
	p.Partial = false // no stack leaves this checksum to the device
	switch header.ICMPMessage(w.frame(b, i), p) {
	case header.MessageError:
		w.icmpError(b, i)
	case header.MessageEcho:
		w.echo(b, i)
	case header.MessageMalformed:
		w.drop(b, i, DropICMPMalformed)
	default:
		w.giveBack(b, i, DropNotTransport)
	}
}

// icmpError deals with an ICMP error. It belongs to the flow of which it quotes
// a packet that Weir sent: the other end's packets have that tuple reversed.
// An error opens no flow, keeps none alive and is not answered.
func (w *worker) icmpError(b *batch, i int) {
	p, f := &b.pkt[i], w.frame(b, i)
	var q header.Quote
	problem := header.ParseQuote(f, p, &q)
	if (problem == header.OK || problem == header.NotTransport) && w.tunnelTooBig(b, i, &q) {
		return
	}
	switch problem {
	case header.OK:
	case header.IsFragment, header.NotTransport: // of no flow of Weir's
		w.giveBack(b, i, DropICMPNoFlow)
		return
	default:
		w.drop(b, i, DropICMPMalformed)
		return
	}
	quoted := quotedKey(f, p.Family, &q)
	if !sentTo(f, p, &quoted) {
		w.drop(b, i, DropICMPMalformed)
		return
	}
	b.key[i] = quoted.Reverse()
	b.hash[i] = w.table.Hash(&b.key[i])
	ref := w.ct.Lookup(b.hash[i], &b.key[i])
	if ref == 0 {
		w.strayError(b, i)
		return
	}
	w.passError(b, i, &q, ref)
}

// quotedKey is the tuple of the packet that an error quotes.
func quotedKey(f []byte, family uint8, q *header.Quote) conntrack.Key {
	k := addressKey(f[q.L3:], family)
	k.W[4] = uint64(binary.LittleEndian.Uint32(f[q.L4:])) | uint64(q.Proto)<<32 | uint64(family)<<40
	return k
}

// addressKey is a key with the addresses of an IP header only.
func addressKey(ip []byte, family uint8) conntrack.Key {
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

// sentTo says whether an error goes to who sent the packet that it quotes. One
// that does not is made up (RFC 5927 section 4).
func sentTo(f []byte, p *header.Packet, quoted *conntrack.Key) bool {
	outer := addressKey(f[p.L3:], p.Family)
	if p.Family == 4 {
		return uint32(outer.W[0]>>32) == uint32(quoted.W[0])
	}
	return outer.W[2] == quoted.W[0] && outer.W[3] == quoted.W[1]
}

// passError sends an error about a packet of the flow on to who sent that
// packet first: ref is the entry of the packets that go there.
func (w *worker) passError(b *batch, i int, q *header.Quote, ref conntrack.Ref) {
	p, e, c := &b.pkt[i], w.table.Entry(ref), w.table.Conn(ref)
	if c.State() == conntrack.StateNone {
		w.drop(b, i, DropICMPNoFlow)
		return
	}
	if p.TTL <= 1 {
		w.drop(b, i, DropTTL)
		return
	}
	adj, dst, mtu := w.adjacency(b, i, c, e, ref)
	if adj == nil {
		return // held, or dropped
	}
	if oneWay(e.Mode) {
		w.errorDirect(b, i, w.tunnelOf(b, i, e, ref), adj, dst, mtu)
		return
	}
	if uint32(p.Len) > mtu && w.tooBig(b, i, adj, mtu) {
		return
	}
	if ref.Forward() && e.Mode == conntrack.ModeNAT && !w.floorMTU(b, i) {
		w.drop(b, i, DropReplyLimit)
		return
	}
	var t header.ErrorTranslation
	w.errorTranslation(&t, b, i, ref)
	header.TranslateError(w.frame(b, i), p, q, &t)
	w.t.icmpPassed++
	w.depart(b, i, adj, dst, mtu)
}

// floorMTU raises the MTU in an error to an endpoint to the least that one may be told;
// false when the sender of the error has used up its part. In nat an endpoint knows all
// clients by one address, Weir's, and remembers one path MTU for it (ten minutes in
// Linux): what one client has it told narrows the way to all others. RFC 1191 section 3
// leaves the least to the host, and Linux takes no less than 552 (ip_rt_min_pmtu); IPv6
// has no link below 1,280 (RFC 8201 section 4); RFC 5927 section 7 is about the attack.
func (w *worker) floorMTU(b *batch, i int) bool {
	p, f := &b.pkt[i], w.frame(b, i)
	mtu, ok := header.TooBigMTU(f, p)
	if !ok {
		return true
	}
	if !w.pathMTUs.Take(w.source(b, i), w.tick) {
		return false
	}
	least := w.lb.cfg.MinPathMTU
	if p.Family == 6 {
		least = max(least, minMTU6)
	}
	if mtu < uint32(least) {
		header.RaiseMTU(f, p, least)
	}
	return true
}

// errorDirect sends an error about what an endpoint answered past Weir on to
// that endpoint, as it is: it is to the frontend, whose address the endpoint has.
func (w *worker) errorDirect(b *batch, i int, t *tunnel, adj *route.Adjacency, dst uint64, mtu uint32) {
	mtu = t.within(mtu)
	if uint32(b.pkt[i].Len) > mtu && w.tooBigDirect(b, i, mtu) {
		return
	}
	w.t.icmpPassed++
	w.direct(b, i, t, adj, dst, mtu)
}

// errorTranslation is what error i gets on the way of an entry. The packet that
// it quotes becomes again what it was when it came to Weir. The error itself
// goes where the entry's packets go and comes from where they seem to come
// from, whichever router made it: as with Linux' NAT and RFC 5508, requirement
// 5, nobody sees an address that he does not know and may not reach. Where the
// entry leaves the source, the error keeps its own.
func (w *worker) errorTranslation(t *header.ErrorTranslation, b *batch, i int, ref conntrack.Ref) {
	p, f, e := &b.pkt[i], w.frame(b, i), w.table.Entry(ref)
	t.Ports = bits.RotateLeft32(e.NewPorts, 16)
	if p.Family == 4 {
		t.Quoted[0] = bits.RotateLeft64(e.Addr4, 32)
		t.Outer[0] = e.Addr4
		if uint32(e.Addr4) == uint32(e.Key.W[0]) {
			own := addressKey(f[p.L3:], 4)
			t.Outer[0] = e.Addr4>>32<<32 | own.W[0]&0xffffffff
		}
		return
	}
	src, dst := w.table.NewAddrs6(ref)
	t.Quoted = [4]uint64{dst[0], dst[1], src[0], src[1]}
	if src[0] == e.Key.W[0] && src[1] == e.Key.W[1] {
		own := addressKey(f[p.L3:], 6)
		src[0], src[1] = own.W[0], own.W[1]
	}
	t.Outer = [4]uint64{src[0], src[1], dst[0], dst[1]}
}

// echo answers a ping of an address that serves frontends alone: nobody else
// would. Any other is the kernel's.
func (w *worker) echo(b *batch, i int) {
	p, f := &b.pkt[i], w.frame(b, i)
	b.key[i] = addressKey(f[p.L3:], p.Family)
	if !w.lb.vips.Load().Lookup(b.key[i].Dst().Addr()) {
		w.giveBack(b, i, DropNotTransport)
		return
	}
	if !w.validSource(b, i, nil) {
		return
	}
	if b.bufs[i] > 1 && p.L4-p.L3 > ipLen(p.Family) {
		w.drop(b, i, DropUnsupported) // what would be left out has the rest in other buffers
		return
	}
	if (f[0]|f[6])&1 != 0 || !w.echoes.Take(w.source(b, i), w.tick) {
		w.drop(b, i, DropEchoLimit)
		return
	}
	n := header.EchoReply(f, p)
	b.head(i).Len -= uint32(n)
	w.t.echoes++
	w.sendBack(b, i)
}

// ipLen is the length of an IP header with nothing added.
func ipLen(family uint8) uint8 {
	if family == 6 {
		return header.IPv6Len
	}
	return header.IPv4Len
}
