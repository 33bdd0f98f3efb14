package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// fastPathLen is the part of a packet that the fast path touches, from the IP header on:
// an IPv6 and a TCP header.
const fastPathLen = header.IPv6Len + header.TCPLen

// fastPath forwards the packets of established flows that only need the rewrite or an outer
// header.
type fastPath struct {
	forwarder
	conntrack  *conntrack.Worker
	removed    removals
	tcpSamples tcpSamples
}

// forwardFast forwards packet p of entry r if it only needs the rewrite, as nearly all packets
// do: p is fast, the flow is steady (see conntrack.Table.NextHop), and the next hop is up.
// Of the flow it reads one cache line, or two if the new addresses are IPv6. It leaves all
// others unmodified to the slow path and returns false.
func (w *fastPath) forwardFast(p *pkt, r conntrack.Ref) bool {
	e := w.conns.Entry(r)
	word := e.NextHop4()
	if p.Family != 4 {
		word = w.conns.NextHop(r)
	}
	if word>>32 == 0 {
		return false
	}
	if e.Mode > conntrack.ModeL2DSR {
		return w.fastTunnel(p, r, e, word)
	}
	adj := &w.adjacencies[word&0xffff]
	direct := e.Mode == conntrack.ModeL2DSR
	if uint32(word>>32) != adj.Stamp() {
		return false
	}
	if e.Flags != 0 && !direct && w.mayCarryCID(p) { // FlagWatched: the modes of the others are sorted out
		return false
	}
	dst, state := adj.Dst()
	if state != route.Valid || uint32(p.Len) > min(adj.MTU(), uint32(word)>>16) {
		return false
	}
	if w.removed.any && (w.removed.act || p.Proto == header.ProtoUDP) && w.removed.has(w.conns.Conn(r), w.tick) {
		return false
	}
	src, out := adj.Src()
	port := &w.ports[out]
	if port.Queue == nil || port.txn == len(port.tx) || p.L3 != header.EthernetLen {
		return false
	}
	if e.Touch(w.tick) {
		w.sample(p, r)
	}
	adj.Touch(w.tick)

	d := &p.desc[0]
	f := w.area[d.Addr:]
	route.PutMACs(f, dst, src)
	ip := (*[fastPathLen]byte)(f[p.L3:])
	at := uint32(header.IPv4Len)
	if direct {
		if conntrack.Milestone(binary.BigEndian.Uint32(f[p.L4+4:]), uint32(p.Len)) { // sample leaves datagrams out
			w.sample(p, r)
		}
		header.DecrementTTL(ip[:], p.Family)
		port.tx[port.txn] = *d
		port.txn++
		return true
	}
	if p.Family == 4 {
		word := binary.LittleEndian.Uint64(ip[8:])
		binary.LittleEndian.PutUint64(ip[8:], header.NextHopWord(word, e.Addr4, uint64(e.AddrDelta)))
		binary.LittleEndian.PutUint32(ip[16:], uint32(e.Addr4>>32))
	} else {
		header.RewriteIPv6By((*[header.IPv6Len]byte)(ip[:]), &w.conns.NewKey6(r).W)
		at = header.IPv6Len
	}
	l4 := ip[at : at+header.TCPLen]
	binary.LittleEndian.PutUint32(l4, e.NewPorts)
	if p.Proto == header.ProtoTCP {
		if conntrack.Milestone(binary.BigEndian.Uint32(l4[4:]), uint32(p.Len)) {
			w.sample(p, r)
		}
		sum := binary.LittleEndian.Uint16(l4[tcpChecksum:])
		binary.LittleEndian.PutUint16(l4[tcpChecksum:], header.Update(sum, uint64(e.L4Delta)))
	} else if sum := binary.LittleEndian.Uint16(l4[udpChecksum:]); sum != 0 {
		sum = header.Update(sum, uint64(e.L4Delta))
		if sum == 0 {
			sum = 0xffff
		}
		binary.LittleEndian.PutUint16(l4[udpChecksum:], sum)
	}
	port.tx[port.txn] = *d
	port.txn++
	return true
}

// tcpSamples are the segments that are to be noted in their connections. Nothing else on the
// fast path reads these. The segments of a group are noted after the next group, when the lines
// that they need have arrived, or before a packet takes the slow path.
type tcpSamples struct {
	n    int
	list [2 * groupSize]tcpSample
}

type tcpSample struct {
	ref           conntrack.Ref
	seq, end, ack uint32
}

// sample has packet p of an established flow noted, the first of its direction in the
// tick or at a conntrack.Milestone. Not inlined, to keep the path of the others short.
//
//go:noinline
func (w *fastPath) sample(p *pkt, r conntrack.Ref) {
	if p.Proto != header.ProtoTCP || p.Flags&header.ACK == 0 {
		return
	}
	if w.tcpSamples.n == len(w.tcpSamples.list) {
		w.noteSamples(w.tcpSamples.n)
	}
	l4 := header.TCP(w.area[p.desc[0].Addr+uint64(p.L4):])
	seq := l4.Seq()
	w.tcpSamples.list[w.tcpSamples.n] = tcpSample{r, seq, seq + uint32(p.L4Len()-l4.DataOffset()), l4.Ack()}
	w.tcpSamples.n++
	w.conns.PrefetchConn(r)
}

// noteSamples notes the first n segments of sample.
func (w *fastPath) noteSamples(n int) {
	if n == 0 {
		return
	}
	t := &w.tcpSamples
	for _, s := range t.list[:n] {
		w.conns.Sample(s.ref, s.seq, s.end, s.ack)
	}
	t.n = copy(t.list[:], t.list[n:t.n])
}

// fastTunnel is forwardFast of an entry whose packets get an outer header, by next-hop word
// word: the same conditions hold, and the packet has room for the header and fits the path
// with it. A GUE header over IPv6 with a checksum is left to the slow path, since the
// checksum is over the whole packet.
func (w *fastPath) fastTunnel(p *pkt, r conntrack.Ref, e *conntrack.Entry, word uint64) bool {
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
	if w.removed.any && (w.removed.act || p.Proto == header.ProtoUDP) && w.removed.has(w.conns.Conn(r), w.tick) {
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
