package worker

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// classify parses packets and makes their keys. It handles packets that are not TCP, UDP or
// SCTP itself.
func (w *Worker) classify(b *batch, from, to int) {
	for i := from; i < to; i++ {
		p := &b.pkts[i&(batchSize-1)]
		d := &p.desc[0]
		p.lookups = 0
		addrs, ports, ok := header.ParseFast4(w.area[d.Addr:d.Addr+uint64(d.Len)], int(p.size), &p.Packet)
		if !ok {
			w.classifyOther(p)
			b.hash[i&(batchSize-1)] = p.hash
			continue
		}
		p.state = w.stateOf(p)
		w4 := uint64(ports) | uint64(p.Proto)<<32 | 4<<40
		p.key.W = [5]uint64{0: addrs, 4: w4}
		p.hash = w.conns.Hash4(addrs, w4)
		b.hash[i&(batchSize-1)] = p.hash
	}
}

// stateOf returns fast or slow for a packet that [header.ParseFast] took.
func (w *Worker) stateOf(p *pkt) pktState {
	if !p.Partial && p.TTL > 1 && p.Flags&(header.SYN|header.FIN|header.RST) == 0 &&
		p.n == 1 && p.desc[0].Addr&w.frameMask+uint64(p.L3)+fastPathLen <= w.frameMask {
		return fast
	}
	return slow
}

// classifyOther is classify of a packet that is not untagged and plain IPv4.
func (w *Worker) classifyOther(p *pkt) {
	f := w.frame(p)
	if header.ParseFastOther(f, int(p.size), &p.Packet) {
		p.state = w.stateOf(p)
	} else if problem := header.Parse(f, int(p.size), &p.Packet); problem != header.OK {
		p.state = consumed
		p.key = conntrack.Key{}
		p.hash = 0
		w.onParseError(p, problem)
		return
	} else {
		p.state = slow
	}
	k := &p.key
	ip := f[p.L3:]
	if p.Family == 4 {
		k.W = [5]uint64{0: binary.LittleEndian.Uint64(ip[12:])}
	} else {
		_ = ip[39]
		k.W[0] = binary.LittleEndian.Uint64(ip[8:])
		k.W[1] = binary.LittleEndian.Uint64(ip[16:])
		k.W[2] = binary.LittleEndian.Uint64(ip[24:])
		k.W[3] = binary.LittleEndian.Uint64(ip[32:])
	}
	k.W[4] = uint64(binary.LittleEndian.Uint32(f[p.L4:])) | uint64(p.Proto)<<32 | uint64(p.Family)<<40
	p.hash = w.conns.Hash(k)
}
