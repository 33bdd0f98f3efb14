package worker

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// fastPathLen is the part of a packet that the fast path touches, from the IP header on:
// an IPv6 and a TCP header.
const fastPathLen = header.IPv6Len + header.TCPLen

// fastPath forwards packet p of entry r if it only needs the rewrite, as nearly all packets
// do: p is fast, the flow goes on and has no outer header, and the next hop is known and
// up. It leaves all others unmodified to the slow path and returns false.
func (w *flows) fastPath(p *pkt, r conntrack.Ref) bool {
	e, c := w.conns.Entry(r), w.conns.Conn(r)
	dir := uint32(r-1) & 1
	word := atomic.LoadUint64(&c.Adj[dir])
	adj := &w.adjacencies[word&0xffff]
	direct := e.Mode == conntrack.ModeL2DSR
	if direct {
		dir = 1 // the endpoint is not heard: nothing else is steady, see conntrack.Steady
	}
	if !c.Steady(dir) || e.Mode > conntrack.ModeL2DSR || uint32(word>>32) != adj.Stamp() {
		return false
	}
	if e.Flags != 0 && !direct && w.mayCarryCID(p) { // FlagWatched: the modes of the others are sorted out
		return false
	}
	dst, state := adj.Dst()
	if state != route.Valid || uint32(p.Len) > min(adj.MTU(), uint32(word)>>16) {
		return false
	}
	if w.anyRemoved && (w.removalActs || p.Proto == header.ProtoUDP) && w.isEndpointRemoved(c) {
		return false
	}
	src, out := adj.Src()
	port := &w.ports[out]
	if port.Queue == nil || port.txn == len(port.tx) || p.L3 != header.EthernetLen {
		return false
	}
	if c.LastSeen() != w.tick {
		w.sample(p, c, r)
	}
	adj.Touch(w.tick)

	d := p.head()
	f := w.area[d.Addr:]
	route.PutMACs(f, dst, src)
	ip := (*[fastPathLen]byte)(f[p.L3:])
	at := uint32(header.IPv4Len)
	if direct {
		if conntrack.Milestone(binary.BigEndian.Uint32(f[p.L4+4:]), uint32(p.Len)) { // sample leaves datagrams out
			w.sample(p, c, r)
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
		src, dst := w.conns.NewAddrs6(r)
		header.RewriteIPv6(ip[:], src, dst)
		at = header.IPv6Len
	}
	l4 := ip[at : at+header.TCPLen]
	binary.LittleEndian.PutUint32(l4, e.NewPorts)
	if p.Proto == header.ProtoTCP {
		if conntrack.Milestone(binary.BigEndian.Uint32(l4[4:]), uint32(p.Len)) {
			w.sample(p, c, r)
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
