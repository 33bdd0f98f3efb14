package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/xsk"
)

// output sends packet p, translated unless it goes through a tunnel. It fragments a packet
// that is larger than the MTU: see checkSize.
func (w *forwarder) output(p *pkt, out *egress) verdict {
	if out.dsr {
		header.DecrementTTL(p.data[p.L3:], p.Family)
		if p.Proto == header.ProtoTCP && p.Flags&header.SYN != 0 {
			w.clampMSS(p, out.mtu)
		}
	}
	if p.Partial && (!out.whole || out.dsr && !out.tunnel.l2dsr) {
		// In pieces or behind another header nothing will complete it.
		w.sumChecksum(p)
		p.Partial = false
	}
	if out.whole {
		return w.outputWhole(p, out)
	}
	if p.Frag == 0 && !out.dsr { // a fragment has its identification from acceptFragment
		p.SetID(p.data, w.nextID(p.ref))
	}
	return w.outputFragments(p, out)
}

// outputWhole puts the outer header, if any, on packet p and sends it.
func (w *forwarder) outputWhole(p *pkt, out *egress) verdict {
	if out.dsr && !out.tunnel.l2dsr && !w.encapsulate(p, &out.tunnel.outer) {
		return drop(DropUnsupported)
	}
	return w.outputTo(p, out.adj, out.mac)
}

// outputFragments sends packet p, an IPv4 packet, in fragments.
func (w *forwarder) outputFragments(p *pkt, out *egress) verdict {
	if !w.canFragment(&p.Packet, out.mtu) { // the link's MTU has changed meanwhile
		return drop(DropTooBig)
	}
	// All are made before any is sent: they take packet p's place.
	var made [maxFragments]xsk.Desc
	step := w.fragmentPayload(&p.Packet, out.mtu)
	payload := int(p.Len) - ipv4Len(&p.Packet)
	n := 0
	for at := 0; at < payload; at += step {
		a, ok := w.free.pop()
		if !ok {
			w.freeBuffers(made[:n])
			return drop(DropTxFull) // all frames are in transmission
		}
		made[n] = w.makeFragment(p, a, at, min(step, payload-at))
		n++
	}
	if w.obs != nil {
		w.obs.divide(&p.desc[0], made[:n])
	}
	w.freeBuffers(p.desc[:p.n])
	p.n = 1
	whole := p.Packet
	for _, d := range made[:n] {
		p.Packet = whole // tags that the previous fragment lost or got have moved the offsets
		p.Len = uint16(d.Len - uint32(p.L3))
		p.desc[0], p.size = d, d.Len
		p.data = w.area[d.Addr:][:d.Len]
		w.act(p, w.outputWhole(p, out))
	}
	return sent
}

// nextID is the identification of the next datagram between the addresses that
// an entry writes.
func (w *forwarder) nextID(ref conntrack.Ref) uint32 {
	a := w.conns.Entry(ref).Addr4
	if w.conns.Entry(ref).Key.Family() == 6 {
		src, dst := w.conns.NewAddrs6(ref)
		a = src[0] ^ src[1]*3 ^ dst[0]*5 ^ dst[1]*7
	}
	return w.fragmentIDs.Next(a, uint32(w.id), uint32(len(w.links)))
}

// outputTo sends packet p, as it is, to a next hop with the MAC address mac.
func (w *forwarder) outputTo(p *pkt, adj *route.Adjacency, mac uint64) verdict {
	src, port := adj.Src()
	adj.Touch(w.tick)
	return w.outputFrame(p, int32(port), mac, src)
}

// outputFrame sends packet p by a port, with new MAC addresses.
func (w *portIO) outputFrame(p *pkt, port int32, dst, src uint64) verdict {
	if p.L3 != header.EthernetLen {
		w.untag(p)
	}
	route.PutMACs(p.data, dst, src)
	if p.Partial {
		w.completeChecksum(p, &w.ports[port])
	}
	return w.outputPort(p, port)
}

// outputBack sends the reply made of packet p back by the ingress port, in the same VLAN.
// A priority tag (VLAN 0, IEEE 802.1Q section 6.9.1) names no VLAN: the sender alone
// chose it, and the answer has none.
func (w *portIO) outputBack(p *pkt) verdict {
	if p.L3 == header.EthernetLen+header.TagLen && binary.BigEndian.Uint16(p.data[header.EthernetLen:])&0xfff == 0 {
		w.untag(p)
	}
	return w.outputPort(p, p.in)
}

// outputPort gathers the packet at a port, or hands it off to the worker that owns the
// port's queue.
func (w *portIO) outputPort(p *pkt, out int32) verdict {
	port := &w.ports[out]
	if port.Queue == nil {
		return w.outputElsewhere(p, out)
	}
	if port.txn+int(p.n) > txQueueLen {
		w.transmit(port)
	}
	port.txn += copy(port.tx[port.txn:], p.desc[:p.n])
	return sent
}

// outputElsewhere sends the packet by a port that has no queue of this worker.
func (w *portIO) outputElsewhere(p *pkt, out int32) verdict {
	port := &w.ports[out]
	if port.Tag == 0 {
		return w.handOff(p, port.Owner, out)
	}
	w.pushTag(p, port.Tag)
	return w.outputPort(p, port.Under)
}

// pushTag puts a VLAN tag on the packet, behind the MAC addresses.
func (w *frameMemory) pushTag(p *pkt, tag uint32) {
	w.memory.Prepend(&p.desc[0], header.TagLen)
	f := w.area[p.desc[0].Addr:]
	copy(f, f[header.TagLen:header.TagLen+12])
	binary.BigEndian.PutUint32(f[12:], tag)
	p.L3, p.L4 = p.L3+header.TagLen, p.L4+header.TagLen
	p.size += header.TagLen
}

// untag takes the VLAN tag off the packet. It names the ingress network; the egress port
// has a tag of its own.
func (w *frameMemory) untag(p *pkt) {
	f := p.data
	n := p.L3 - header.EthernetLen
	copy(f[n:], f[:12])
	p.data = f[n:]
	d := &p.desc[0]
	d.Addr, d.Len = d.Addr+uint64(n), d.Len-uint32(n)
	p.size -= uint32(n)
	p.L3, p.L4 = p.L3-n, p.L4-n
}
