package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// fastTunnel is fastPath of an entry whose packets get an outer header, by next-hop word
// word: the same conditions hold, and the packet has room for the header and fits the path
// with it. A GUE header over IPv6 with a checksum is left to the slow path, since the
// checksum is over the whole packet.
func (w *flows) fastTunnel(p *pkt, r conntrack.Ref, e *conntrack.Entry, word uint64) bool {
	adj := &w.adjacencies[word&0xffff]
	if uint32(word>>32) != adj.Stamp() {
		return false
	}
	o := header.Encap{V6: e.Flags&conntrack.FlagOuter6 != 0, GUE: e.Mode == conntrack.ModeGUE, Flow: uint32(p.hash >> 32)}
	n := uint32(o.Len())
	dst, state := adj.Dst()
	if state != route.Valid || uint32(p.Len)+n > min(adj.MTU(), uint32(word)>>16) {
		return false
	}
	if w.anyRemoved && (w.removalActs || p.Proto == header.ProtoUDP) && w.isEndpointRemoved(w.conns.Conn(r)) {
		return false
	}
	src, out := adj.Src()
	port := &w.ports[out]
	d := &p.desc[0]
	if port.Queue == nil || port.txn == len(port.tx) || p.L3 != header.EthernetLen || d.Addr&w.frameMask < uint64(n) {
		return false
	}
	etherType := uint16(header.EtherTypeIPv4)
	if o.V6 {
		if o.GUE && !w.cfg.GUEZeroChecksum {
			return false
		}
		etherType = header.EtherTypeIPv6
		k := w.conns.NewKey6(r)
		o.Addr6 = [4]uint64{k.W[2], k.W[3], k.W[0], k.W[1]}
	} else {
		w.ipID += uint16(len(w.links)) // no two workers use the same
		o.Addr4, o.ID = e.Addr4, w.ipID
	}
	first := e.Touch(w.tick)
	if p.Proto == header.ProtoTCP {
		seq := binary.BigEndian.Uint32(w.area[d.Addr+uint64(p.L4)+4:])
		if first || conntrack.Milestone(seq, uint32(p.Len)) {
			w.sample(p, r)
		}
	}
	adj.Touch(w.tick)

	inner := int(p.Len) // padding would end up inside
	d.Addr, d.Len = d.Addr-uint64(n), header.EthernetLen+n+uint32(inner)
	f := w.area[d.Addr : d.Addr+uint64(d.Len)]
	header.DecrementTTL(f[header.EthernetLen+n:], p.Family)
	route.PutMACs(f, dst, src)
	binary.BigEndian.PutUint16(f[header.EthernetLen-2:], etherType)
	o.Put(f[header.EthernetLen:], inner)
	port.tx[port.txn] = *d
	port.txn++
	return true
}
