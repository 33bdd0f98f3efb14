package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

// The beginning of an untagged IPv4 packet without options, and of an untagged IPv6 packet:
// EtherType, version and header length, as a little-endian load of four bytes.
const (
	plain4     = 0x450008
	plain4Mask = 0xffffff
	plain6     = 0x60dd86
	plain6Mask = 0xf0ffff
)

// word4 is word 4 of the key of a packet, as conntrack.Key has it.
func word4(family uint64, ports uint32, proto uint8) uint64 {
	return uint64(ports) | uint64(proto)<<32 | family<<40
}

// classifier makes keys of packets, and reads headers.
type classifier struct {
	portIO
	conns *conntrack.Table
}

// classify makes the keys of packets, and hashes them. Untagged packets in a single buffer,
// IPv4 without options and IPv6 with TCP or UDP, get a lane, and nothing about them is
// checked: the fast path and leaveLane do. Of all others classify makes a pkt.
func (w *classifier) classify(b *batch, from, to int) {
	heads, conns := w.heads, w.conns
	last := w.frameMask + 1 - xsk.HeadLen
	set, lanes4, lanes6 := b.framesSet, uint64(0), uint64(0)
	for i := from; i < to; i++ {
		i := i & (batchSize - 1)
		addr := b.first[i].Addr
		if set>>i&1 != 0 || addr&w.frameMask > last {
			w.classifyOther(b, i)
			continue
		}
		f := heads.At(addr)
		if start := binary.LittleEndian.Uint32(f[12:]); start&plain4Mask != plain4 {
			if start&plain6Mask != plain6 || f[20] != header.ProtoTCP && f[20] != header.ProtoUDP {
				w.classifyOther(b, i)
				continue
			}
			h, a := &b.head[i], &b.addr6[i]
			w0, w1, w2, w3 := binary.LittleEndian.Uint64(f[22:]), binary.LittleEndian.Uint64(f[30:]),
				binary.LittleEndian.Uint64(f[38:]), binary.LittleEndian.Uint64(f[46:])
			ip, l4 := binary.LittleEndian.Uint64(f[14:]), binary.LittleEndian.Uint64(f[54:])
			h.ip, h.l4, a[0], a[1], a[2], a[3] = ip, l4, w0, w1, w2, w3
			b.hash[i] = conns.Hash6(conns.Mix6(w0, w1, w2, word4(6, uint32(l4), uint8(ip>>48))), w3)
			lanes6 |= 1 << i
			continue
		}
		lanes4 |= 1 << i
		h := &b.head[i]
		ip, addrs, l4 := binary.LittleEndian.Uint64(f[16:]), binary.LittleEndian.Uint64(f[26:]), binary.LittleEndian.Uint64(f[34:])
		h.ip, h.addrs, h.l4 = ip, addrs, l4
		b.hash[i] = conns.Hash4(addrs, word4(4, uint32(l4), uint8(ip>>56)))
	}
	b.lanes4 |= lanes4
	b.lanes6 |= lanes6
}

// stateOf returns fast or slow for a packet that [header.ParseFast] took.
func (w *classifier) stateOf(p *pkt) pktState {
	if !p.Partial && p.TTL > 1 && p.Flags&(header.SYN|header.FIN|header.RST) == 0 &&
		p.n == 1 && p.desc[0].Addr&w.frameMask+uint64(p.L3)+fastPathLen <= w.frameMask {
		return fast
	}
	return slow
}

// classifyOther is classify of a packet without a lane.
func (w *classifier) classifyOther(b *batch, i int) {
	p := w.pktOf(b, i)
	w.parse(p)
	if p.state != unparsed {
		p.hash = w.conns.Hash(&p.key)
	}
	b.hash[i&(batchSize-1)] = p.hash
}

// pktOf returns packet i with the frames and the data set.
func (w *classifier) pktOf(b *batch, i int) *pkt {
	p := &b.pkts[i&(batchSize-1)]
	if b.framesSet>>i&1 == 0 {
		d := &b.first[i&(batchSize-1)]
		p.desc[0], p.size, p.in, p.n, p.began = *d, d.Len, b.in, 1, false
	}
	p.lookups, p.silent, p.service, p.data = 0, 0, 0, w.frame(p)
	return p
}

// leaveLane makes a pkt of a packet that does not take the fast path of lanes.
func (w *classifier) leaveLane(b *batch, i int) *pkt {
	i &= batchSize - 1
	ipv4 := b.lanes4>>i&1 != 0
	b.lanes4 &^= 1 << i
	b.lanes6 &^= 1 << i
	p := w.pktOf(b, i)
	p.hash = b.hash[i]
	if !ipv4 {
		w.parseOther(p)
		return p
	}
	addrs, ports, ok := header.ParseFast4(p.data, int(p.size), &p.Packet)
	if !ok {
		w.parseOther(p)
		return p
	}
	p.state = w.stateOf(p)
	p.key.W = [5]uint64{0: addrs, 4: word4(4, ports, p.Proto)}
	return p
}

// parse reads the headers of packet p, and makes the key.
func (w *classifier) parse(p *pkt) {
	f := p.data
	if addrs, ports, ok := header.ParseFast4(f, int(p.size), &p.Packet); ok {
		p.state = w.stateOf(p)
		p.key.W = [5]uint64{0: addrs, 4: word4(4, ports, p.Proto)}
		return
	}
	w.parseOther(p)
}

// parseOther is parse of all but plain untagged IPv4.
func (w *classifier) parseOther(p *pkt) {
	f := p.data
	if header.ParseFastOther(f, int(p.size), &p.Packet) {
		p.state = w.stateOf(p)
	} else if p.problem = header.Parse(f, int(p.size), &p.Packet); p.problem == header.OK {
		p.state = slow
	} else {
		p.state = unparsed
		p.key = conntrack.Key{}
		p.hash = 0
		return
	}
	ip, ports := f[p.L3:], binary.LittleEndian.Uint32(f[p.L4:])
	if p.Family == 4 {
		p.key.W = [5]uint64{0: binary.LittleEndian.Uint64(ip[12:]), 4: word4(4, ports, p.Proto)}
		return
	}
	_ = ip[39]
	p.key.W = [5]uint64{
		binary.LittleEndian.Uint64(ip[8:]), binary.LittleEndian.Uint64(ip[16:]),
		binary.LittleEndian.Uint64(ip[24:]), binary.LittleEndian.Uint64(ip[32:]), word4(6, ports, p.Proto),
	}
}
