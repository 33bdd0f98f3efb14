package lb

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// A router on the way to an endpoint may find a tunnel packet too big. Who can send
// smaller ones is the client: it is told, as by Linux' ip6_tnl, with what of its own
// packet the error quotes. RFC 1812 and RFC 4443 have routers quote as much as fits;
// from one that quotes 8 bytes, as RFC 792 had it, nothing can be learnt, and such an
// error goes to the kernel.
//
// Only clients remember it. What one is told concerns it alone, while with an MTU per
// endpoint here a client that knows the addresses behind Weir could make up an error,
// and narrow the way of all others.

// tunnelTooBig deals with an error if it is about a tunnel packet of Weir's that was
// too big; else nothing has been done.
func (w *worker) tunnelTooBig(b *batch, i int, q *header.Quote) bool {
	p, f := &b.pkt[i], w.frame(b, i)
	mtu, ok := header.TooBigMTU(f, p)
	if !ok {
		return false
	}
	var in header.Quote
	family, problem := q.Inner(f, &in)
	if problem != header.OK {
		return false
	}
	b.key[i] = quotedKey(f, family, &in)
	b.hash[i] = w.table.Hash(&b.key[i])
	ref := w.ct.Lookup(b.hash[i], &b.key[i])
	if ref == 0 || !w.cameBy(b, i, ref, q) {
		return false
	}
	mtu = w.tunnel.within(mtu)
	size := in.PacketLen(f)
	if mtu >= size || mtu < minMTU4 || family == 4 && !header.IPv4(f[in.L3:]).DontFragment() {
		w.drop(b, i, DropICMPMalformed)
		return true
	}
	if family == 6 && mtu < minMTU6 {
		if size <= minMTU6 { // nobody would believe less
			w.drop(b, i, DropTooBig)
			return true
		}
		mtu = minMTU6
	}
	w.tellClient(b, i, family, &in, mtu)
	return true
}

// minMTU4 is the least MTU of IPv4 (RFC 791).
const minMTU4 = 68

// cameBy says whether the packet that error i quotes is as Weir sends those of the
// entry, and the error is to who sent it.
func (w *worker) cameBy(b *batch, i int, ref conntrack.Ref, q *header.Quote) bool {
	p, f, e := &b.pkt[i], w.frame(b, i), w.table.Entry(ref)
	if !oneWay(e.Mode) || e.Mode == conntrack.ModeL2DSR || w.table.Conn(ref).State() == conntrack.StateNone {
		return false
	}
	o := &w.tunnelOf(b, i, e, ref).outer
	quoted := addressKey(f[q.L3:], p.Family)
	if o.V6 != (p.Family == 6) || o.GUE != (q.Proto == header.ProtoUDP) || !sentTo(f, p, &quoted) {
		return false
	}
	if o.V6 {
		return [4]uint64(quoted.W[:4]) == o.Addr6
	}
	return quoted.W[0] == o.Addr4
}

// tellClient makes of error i one about the client's own packet, in, and sends it to
// the client by the way that it has there.
func (w *worker) tellClient(b *batch, i int, family uint8, in *header.Quote, mtu uint32) {
	path, ok := w.routes.Lookup(b.key[i].Src().Addr(), uint32(b.hash[i]))
	if !ok {
		w.drop(b, i, DropNoRoute)
		return
	}
	adj, dst, _ := w.hop(b, i, &path, path.NextHop != b.key[i].Src().Addr())
	if adj == nil {
		return // held, or dropped
	}
	f := w.frame(b, i)
	if !w.errors.Take(w.sourceOf(f[in.L3:], family), w.tick) {
		w.drop(b, i, DropReplyLimit)
		return
	}
	w.t.icmpPassed++
	w.becomes(b, i, header.TunnelTooBig(f[:cap(f)], &b.pkt[i], in, int(mtu)))
	w.leave(b, i, adj, dst)
}
