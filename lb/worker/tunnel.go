package worker

import (
	"encoding/binary"
	"net/netip"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

// In the modes l2dsr, ipip and gue a packet reaches its endpoint as the client sent it, but
// for the TTL: the endpoint has the frontend's address, and answers the client directly.
// Weir then sees only the client's direction of a flow.
//
// The TTL is decremented in l2dsr too, as IPVS does: two hosts that take each other for the
// next hop to the frontend would otherwise forward a packet forever.

// tunnel is how packets reach their endpoint in such a mode.
type tunnel struct {
	l2dsr bool         // as they are (l2dsr)
	outer header.Encap // else with this before them
}

// tunnelOf returns the tunnel of an entry, for a packet of the hash.
func (w *forwarder) tunnelOf(hash uint64, e *conntrack.Entry, ref conntrack.Ref) (t tunnel) {
	t.l2dsr = e.Mode == conntrack.ModeL2DSR
	o := &t.outer
	o.V6, o.GUE, o.Flow = e.Flags&conntrack.FlagOuter6 != 0, e.Mode == conntrack.ModeGUE, uint32(hash>>32)
	if o.V6 {
		src, dst := w.conns.NewAddrs6(ref)
		o.Addr6 = [4]uint64{src[0], src[1], dst[0], dst[1]}
	} else {
		o.Addr4 = e.Addr4
	}
	return t
}

// tunnelTo is the tunnel that a flow of the hash, from src to the endpoint, would have.
func tunnelTo(hash uint64, mode conntrack.Mode, src, ep netip.Addr) (t tunnel) {
	t.l2dsr = mode == conntrack.ModeL2DSR
	k := conntrack.MakeKey(netip.AddrPortFrom(src, 0), netip.AddrPortFrom(ep, 0), 0)
	t.outer = header.Encap{V6: k.Family() == 6, GUE: mode == conntrack.ModeGUE, Flow: uint32(hash >> 32),
		Addr4: k.W[0], Addr6: [4]uint64(k.W[:4])}
	return t
}

// innerMTU is the MTU for the inner packets if the path has mtu.
func (t *tunnel) innerMTU(mtu uint32) uint32 {
	if t.l2dsr {
		return mtu
	}
	n := uint32(t.outer.Len())
	return max(mtu, n) - n
}

// canReach reports whether a path leads to the endpoint in the mode. This node's kernel
// drops packets with a local source address. In l2dsr a router would send the packet back.
func (w *forwarder) canReach(path *route.Path, mode conntrack.Mode, ep netip.AddrPort) bool {
	if path.Kind != route.Host && (mode != conntrack.ModeL2DSR || path.NextHop == ep.Addr()) {
		return true
	}
	w.unreachable.note(ep, path.NextHop)
	return false
}

// encapsulate puts the outer header between the Ethernet header, with tags, and packet p;
// false if the frame has no headroom, which every known driver leaves
// (XDP_PACKET_HEADROOM).
func (w *forwarder) encapsulate(p *pkt, o *header.Encap) bool {
	d := &p.desc[0]
	n, l3, inner := uint64(o.Len()), int(p.L3), int(p.Len)
	if d.Addr&w.frameMask < n {
		return false
	}
	if p.n == 1 { // padding would end up inside
		d.Len = uint32(l3 + inner)
	}
	d.Addr, d.Len = d.Addr-n, d.Len+uint32(n)
	p.size += uint32(n)
	f := w.area[d.Addr:][:d.Len]
	p.data = f
	copy(f[:l3], f[n:])
	etherType := uint16(header.EtherTypeIPv4)
	if o.V6 {
		etherType = header.EtherTypeIPv6
	} else {
		w.ipID += uint16(len(w.links)) // no two workers use the same
		o.ID = w.ipID
	}
	binary.BigEndian.PutUint16(f[l3-2:], etherType)
	o.Put(f[l3:], inner)
	p.Len += uint16(n)
	if o.GUE && o.V6 && !w.cfg.GUEZeroChecksum {
		// RFC 8200 section 8.1: over IPv6 a UDP checksum is not optional,
		// but for tunnels whose operator has looked at RFC 6936.
		l4 := l3 + header.IPv6Len
		end := l3 + int(p.Len)
		c := ^header.Fold(w.sum(p, o.UDPSum(end-l4), l4, end))
		if c == 0 {
			c = 0xffff
		}
		binary.LittleEndian.PutUint16(f[l4+6:], c)
	}
	return true
}

// clampMSS lowers the segment size that a SYN announces, if the Service asks for it: the
// endpoint's segments then fit a path as narrow as the tunnel.
func (w *forwarder) clampMSS(p *pkt, mtu uint32) {
	k := table.DestinationKey(&p.key.W)
	fe := w.snapshot.Lookup(&k)
	if fe == nil || fe.Policy == nil || fe.Policy.MSSClamp == 0 {
		return
	}
	mss := uint32(fe.Policy.MSSClamp)
	if mss == table.MSSClampAuto {
		headers := uint32(header.IPv4Len + header.TCPLen)
		if p.Family == 6 {
			headers = header.IPv6Len + header.TCPLen
		}
		mss = max(mtu, headers+minMSS) - headers
	}
	l4 := p.data[p.L4:]
	delta := header.ClampMSS(l4, uint16(mss))
	if delta == 0 || p.Partial { // the sum to come goes over it
		return
	}
	c := binary.LittleEndian.Uint16(l4[tcpChecksum:])
	binary.LittleEndian.PutUint16(l4[tcpChecksum:], header.Update(c, delta))
}

// minMSS is the MSS that every host accepts (RFC 9293 section 3.7.1).
const minMSS = 536

// minMTU6 is the least MTU of IPv6 (RFC 8200 section 5).
const minMTU6 = 1280
