package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

// The beginning of an untagged IPv4 packet without options: EtherType, version and header
// length, as a little-endian load of four bytes without the last.
const (
	plain4     = 0x450008
	plain4Mask = 0xffffff
)

// w4 is word 4 of the key of an IPv4 packet, as conntrack.Key has it.
func w4(ports uint32, proto uint8) uint64 { return uint64(ports) | uint64(proto)<<32 | 4<<40 }

// classify makes the keys of packets, and hashes them. Untagged IPv4 packets without
// options in a single buffer get a lane, and nothing about them is checked: the fast path
// and leaveLane do. Of all others classify makes a pkt.
func (w *Worker) classify(b *batch, from, to int) {
	heads, conns := w.heads, w.conns
	last := w.frameMask + 1 - xsk.HeadLen
	set, lanes := b.framesSet, uint64(0)
	for i := from; i < to; i++ {
		i := i & (batchSize - 1)
		addr := b.first[i].Addr
		if set>>i&1 != 0 || addr&w.frameMask > last {
			w.classifyOther(b, i)
			continue
		}
		f := heads.At(addr)
		if binary.LittleEndian.Uint32(f[12:])&plain4Mask != plain4 {
			w.classifyOther(b, i)
			continue
		}
		lanes |= 1 << i
		h := &b.head[i]
		ip, addrs, l4 := binary.LittleEndian.Uint64(f[16:]), binary.LittleEndian.Uint64(f[26:]), binary.LittleEndian.Uint64(f[34:])
		h.ip, h.addrs, h.l4 = ip, addrs, l4
		b.hash[i] = conns.Hash4(addrs, w4(uint32(l4), uint8(ip>>56)))
	}
	b.lanes |= lanes
}

// stateOf returns fast or slow for a packet that [header.ParseFast] took.
func (w *Worker) stateOf(p *pkt) pktState {
	if !p.Partial && p.TTL > 1 && p.Flags&(header.SYN|header.FIN|header.RST) == 0 &&
		p.n == 1 && p.desc[0].Addr&w.frameMask+uint64(p.L3)+fastPathLen <= w.frameMask {
		return fast
	}
	return slow
}

// classifyOther is classify of a packet without a lane. It handles packets that are not
// TCP, UDP or SCTP itself.
func (w *Worker) classifyOther(b *batch, i int) {
	p := w.pktOf(b, i)
	w.parse(p)
	if p.state != consumed && p.Family != 4 {
		k, f := &p.key, p.data
		ip := f[p.L3:]
		_ = ip[39]
		k.W[0] = binary.LittleEndian.Uint64(ip[8:])
		k.W[1] = binary.LittleEndian.Uint64(ip[16:])
		k.W[2] = binary.LittleEndian.Uint64(ip[24:])
		k.W[3] = binary.LittleEndian.Uint64(ip[32:])
		k.W[4] = uint64(binary.LittleEndian.Uint32(f[p.L4:])) | uint64(p.Proto)<<32 | 6<<40
	}
	if p.state != consumed {
		p.hash = w.conns.Hash(&p.key)
	}
	b.hash[i&(batchSize-1)] = p.hash
}

// pktOf returns packet i with the frames and the data set.
func (w *Worker) pktOf(b *batch, i int) *pkt {
	p := &b.pkts[i&(batchSize-1)]
	if b.framesSet>>i&1 == 0 {
		d := &b.first[i&(batchSize-1)]
		p.desc[0], p.size, p.in, p.n = *d, d.Len, b.in, 1
	}
	p.lookups, p.data = 0, w.frame(p)
	return p
}

// leaveLane makes a pkt of a packet that does not take the fast path of lanes.
func (w *Worker) leaveLane(b *batch, i int) *pkt {
	b.lanes &^= 1 << i
	p := w.pktOf(b, i)
	p.hash = b.hash[i&(batchSize-1)]
	if _, _, ok := header.ParseFast4(p.data, int(p.size), &p.Packet); !ok {
		w.parseOther(p)
		return p
	}
	p.state = w.stateOf(p)
	h := &b.head[i&(batchSize-1)]
	p.key.W = [5]uint64{0: h.addrs, 4: w4(uint32(h.l4), uint8(h.ip>>56))}
	return p
}

// parse reads the headers of packet p, and makes the key if the packet is IPv4. It handles
// packets that are not TCP, UDP or SCTP itself, and malformed ones.
func (w *Worker) parse(p *pkt) {
	f := p.data
	if addrs, ports, ok := header.ParseFast4(f, int(p.size), &p.Packet); ok {
		p.state = w.stateOf(p)
		p.key.W = [5]uint64{0: addrs, 4: w4(ports, p.Proto)}
		return
	}
	w.parseOther(p)
}

// parseOther is parse of all but plain untagged IPv4.
func (w *Worker) parseOther(p *pkt) {
	f := p.data
	if header.ParseFastOther(f, int(p.size), &p.Packet) {
		p.state = w.stateOf(p)
	} else if problem := header.Parse(f, int(p.size), &p.Packet); problem == header.OK {
		p.state = slow
	} else {
		p.state = consumed
		p.key = conntrack.Key{}
		p.hash = 0
		w.consume(p, problem)
		return
	}
	if p.Family == 4 {
		p.key.W = [5]uint64{
			0: binary.LittleEndian.Uint64(f[p.L3+12:]),
			4: w4(binary.LittleEndian.Uint32(f[p.L4:]), p.Proto),
		}
	}
}

// consume handles a packet that is not a whole TCP, UDP or SCTP packet. It may be the first
// fragment of a connection: those that began earlier are made first, and this one at once.
func (w *Worker) consume(p *pkt, problem header.Problem) {
	collect := w.pending.collect
	if w.pending.n != 0 {
		w.createPending()
	}
	w.pending.collect = false
	w.onParseError(p, problem)
	w.pending.collect = collect
}
