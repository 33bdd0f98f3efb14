package lb

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/handoff"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

// Fragments are not put together. The first one of a datagram has the ports: it
// goes the way of any packet of its flow, and what it was is noted under
// (source, destination, identification, protocol). The later ones get the flow
// entry that these ports lead to. Ones that come before their first wait.
//
// All fragments of a datagram are dealt with by one worker, chosen by a hash of
// what they have in common, so that nothing of this is shared: NICs spread
// first and later fragments over different queues when they hash the ports of
// those that have some. A fragment that arrives elsewhere is passed on by the
// hand-off rings.
//
// Where addresses are translated the identification is too: datagrams of two
// clients with the same one would else become one at an endpoint to which both
// come from the same address. The new one comes from a counter per pair of new
// addresses (RFC 7739 section 5.3), of which every worker has its own share.
// The node's own datagrams from such an address are numbered by its kernel and
// may still collide, as those of any two senders behind one address can.

// fragment deals with packet i, a fragment of an IP datagram.
func (w *worker) fragment(b *batch, i int) {
	f, p := w.frame(b, i), &b.pkt[i]
	w.datagrams.current = nil
	fr := p.Fragment(f)
	if !mayHavePorts(p, fr.Offset) && !w.mayBeEcho(b, i) {
		w.giveBack(b, i, DropNotTransport)
		return
	}
	k := datagramKey(f, p, fr.ID)
	h := w.table.Hash(&k)
	if owner := int(h >> 32 % uint64(len(w.peers))); owner != w.id {
		w.passOn(b, i, owner)
		return
	}
	d := w.datagrams.find(h, &k, w.tick)
	if fr.Offset > 0 {
		w.laterFragment(b, i, d, h, &k)
		return
	}
	w.firstFragment(b, i, d, h, &k)
}

// mayHavePorts says whether a fragment's datagram is of TCP, UDP or SCTP, as far as
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

// datagramKey is what the fragments of a datagram have in common. In IPv6 that
// is not the protocol (RFC 8200 section 4.5).
func datagramKey(f []byte, p *header.Packet, id uint32) conntrack.Key {
	k := addressKey(f[p.L3:], p.Family)
	k.W[4] = uint64(id) | uint64(p.Family)<<40
	if p.Family == 4 {
		k.W[4] |= uint64(p.Proto) << 32
	}
	return k
}

// firstFragment sends a first fragment the way of any packet, and has those
// that were waiting for it follow.
func (w *worker) firstFragment(b *batch, i int, d *datagram, h uint64, k *conntrack.Key) {
	p := &b.pkt[i]
	switch {
	case d == nil:
		d = w.datagrams.add(h, k, w.tick)
	case !d.begun():
	case w.tick-d.born < secondTicks/4:
		w.drop(b, i, DropFragmentOverlap)
		return
	default:
		// So late it is no duplicate: the sender has used the identification
		// again, and some of the older datagram was lost.
		*d = datagram{key: *k, born: w.tick}
	}
	d.proto, d.last, d.kernels, d.echo = p.Proto, w.tick, false, false
	w.datagrams.current = d
	w.wakeWaiting(k)
	if ofICMP(p) {
		w.firstOfEcho(b, i, d)
		return
	}
	ports := binary.LittleEndian.Uint32(w.frame(b, i)[p.L4:])
	d.ports = ports

	b.ok[i] = true
	b.key[i] = *k
	b.key[i].W[4] = uint64(ports) | uint64(p.Proto)<<32 | uint64(p.Family)<<40
	b.hash[i] = w.table.Hash(&b.key[i])
	if ref := w.ct.Lookup(b.hash[i], &b.key[i]); ref != 0 {
		w.flow(b, i, ref)
	} else {
		w.miss(b, i)
	}
	w.openAll(b)
	b.ok[i] = false // the stages are not to do it again
}

// laterFragment sends any other fragment after the first.
func (w *worker) laterFragment(b *batch, i int, d *datagram, h uint64, k *conntrack.Key) {
	p := &b.pkt[i]
	switch {
	case d == nil:
		w.awaitFirst(b, i, k)
		return
	case d.kernels:
		w.giveBack(b, i, DropNotOurs)
		return
	case ofICMP(p) != d.echo:
		w.drop(b, i, DropFragmentRefused)
		return
	}
	d.last = w.tick
	w.datagrams.current = d
	if d.echo {
		w.replyFragment(b, i, d, false)
		return
	}
	p.Proto = d.proto
	b.key[i] = *k
	b.key[i].W[4] = uint64(d.ports) | uint64(p.Proto)<<32 | uint64(p.Family)<<40
	b.hash[i] = w.table.Hash(&b.key[i])
	ref := w.ct.Lookup(b.hash[i], &b.key[i])
	if ref == 0 || w.table.Conn(ref).State() == conntrack.StateNone {
		w.drop(b, i, DropFragmentRefused)
		return
	}
	b.ref[i] = ref
	if p.TTL <= 1 {
		w.drop(b, i, DropTTL) // said of the first (RFC 1812 section 4.3.2.7)
		return
	}
	c, e := w.table.Conn(ref), w.table.Entry(ref)
	adj, dst, mtu := w.adjacency(b, i, c, e, ref)
	if adj == nil {
		return // held, or dropped
	}
	var t *tunnel
	if oneWay(e.Mode) {
		t = w.tunnelOf(b, i, e, ref)
		mtu = t.within(mtu)
		if uint32(p.Len) > mtu && w.tooBigDirect(b, i, mtu) {
			return
		}
	} else if uint32(p.Len) > mtu && w.tooBig(b, i, adj, mtu) {
		return
	}
	if !w.fragmentGoes(b, i, e) {
		return
	}
	c.Touch(w.tick)
	if t != nil {
		w.direct(b, i, t, adj, dst, mtu)
		return
	}
	w.translateAddresses(w.frame(b, i)[p.L3:], p.Family, ref)
	w.depart(b, i, adj, dst, mtu)
}

// translateAddresses is translate without a transport header.
func (w *worker) translateAddresses(ip []byte, family uint8, ref conntrack.Ref) {
	if family == 4 {
		e := w.table.Entry(ref)
		binary.LittleEndian.PutUint64(ip[12:], e.Addr4)
		ip[8]--
		c := binary.LittleEndian.Uint16(ip[10:])
		binary.LittleEndian.PutUint16(ip[10:], header.Update(c, uint64(e.AddrDelta)+header.TTLDelta))
		return
	}
	ip[7]--
	src, dst := w.table.NewAddrs6(ref)
	for j, a := range [4]uint64{src[0], src[1], dst[0], dst[1]} {
		binary.LittleEndian.PutUint64(ip[8+8*j:], a)
	}
}

// fragmentGoes is asked of every fragment that is about to be sent on by an
// entry: false when it overlaps with one that was, and has been dropped. It
// gives it the identification of its datagram beyond.
func (w *worker) fragmentGoes(b *batch, i int, e *conntrack.Entry) bool {
	d, f, p := w.datagrams.current, w.frame(b, i), &b.pkt[i]
	fr := p.Fragment(f)
	if d.proto == header.ProtoSCTP && !mayCutSCTP(d, e) {
		w.drop(b, i, DropUnsupported)
		return false
	}
	if reason, ok := d.take(&fr); !ok {
		w.drop(b, i, reason)
		return false
	}
	w.t.fragments++
	if !oneWay(e.Mode) {
		if !d.renamed {
			d.id, d.renamed = w.nextID(b.ref[i]), true
		}
		p.SetID(f, d.id)
	}
	if d.complete() {
		*d = datagram{} // the identification is free
	}
	return true
}

// nextID is the identification of the next datagram between the addresses that
// an entry writes.
func (w *worker) nextID(ref conntrack.Ref) uint32 {
	a := w.table.Entry(ref).Addr4
	if w.table.Entry(ref).Key.Family() == 6 {
		src, dst := w.table.NewAddrs6(ref)
		a = src[0] ^ src[1]*3 ^ dst[0]*5 ^ dst[1]*7
	}
	c := &w.datagrams.idents[a*0x9e3779b97f4a7c15>>56]
	*c++
	return *c*uint32(len(w.peers)) + uint32(w.id)
}

// passOn gives packet i to the worker that deals with its datagram.
func (w *worker) passOn(b *batch, i int, owner int) {
	h := w.peers[owner]
	if h == nil || !h.out.Put(arrived-b.in[i], b.buffers(i)...) {
		w.drop(b, i, DropHandoffFull)
		return
	}
	h.wake = true
	w.t.handedOver++
}

// admit adds a frame of such a packet to a batch, which is processed when it
// is full; whole says whether the packet is complete with it.
func (w *worker) admit(b *batch, s *handoff.Slot) (whole bool) {
	i := b.n
	first := i * maxBuffers
	if b.size[i] == 0 {
		b.first[i], b.bufs[i], b.in[i] = uint8(first), 0, arrived-s.Tag
	}
	b.desc[first+int(b.bufs[i])] = s.Desc
	b.bufs[i]++
	b.size[i] += s.Desc.Len
	if s.Desc.Options&xsk.Continued != 0 {
		return false
	}
	if b.n++; b.n == batchSize {
		w.processAdmitted(b)
	} else {
		b.size[b.n] = 0
	}
	return true
}

// processAdmitted sends what was admitted through the stages.
func (w *worker) processAdmitted(b *batch) {
	if b.n > 0 {
		w.process(b)
	}
	b.n, b.size[0] = 0, 0
}
