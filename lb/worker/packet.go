package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

const (
	// batchSize is how many packets go through the stages together. 64 is
	// the point past which larger batches gained nothing in measurements.
	batchSize = 64
	// maxBuffers is the number of frames that a packet may span: a 9,000-byte packet
	// takes three of 4,096 bytes.
	maxBuffers = 4
)

// frames are the buffers of a packet, and the ingress port.
type frames struct {
	desc [maxBuffers]xsk.Desc
	size uint32 // the frame's length over all buffers
	in   int32  // the port
	n    uint8  // how many of desc there are
}

// frameMemory is the packet memory, with the frames that the worker has free. Packets are
// read and changed here.
type frameMemory struct {
	memory    *xsk.Umem
	area      []byte
	frameMask uint64 // low bits of an address: the offset in the frame
	free      freeList
}

// pkt is a packet in the stages. It is consumed exactly once: sent, dropped, queued, handed
// off or punted.
type pkt struct {
	header.Packet
	state pktState
	// lookups counts the look-ups that found a flow which had just ended.
	lookups uint8
	ref     conntrack.Ref // the flow entry by which the slow path forwards
	frames
	hash uint64 // of key
	key  conntrack.Key
	// datagram is the datagram of a fragment, nil of any other packet.
	datagram *fragtrack.Datagram
	// data is the first buffer, with all headers, of a packet that the fast path left: see
	// frameMemory.frame.
	data []byte
}

// pktState is how far a packet has come.
type pktState uint8

const (
	// consumed: nothing is left to do.
	consumed pktState = iota
	// slow: parsed, with a key.
	slow
	// fast: as slow, and the packet is whole, in a single buffer with room for the bytes
	// that the fast path touches, and neither begins nor ends a connection. The TTL does
	// not expire.
	fast
)

// batch is a set of packets in the stages.
type batch struct {
	n int
	// received are the descriptors of a reception.
	received [batchSize]xsk.Desc
	pkts     [batchSize]pkt
	// hash and ref are the arguments and the results of the look-up.
	hash [batchSize]uint64
	ref  [batchSize]conntrack.Ref
}

// add returns the place of another packet, empty but for the frames.
func (b *batch) add(f *frames) *pkt {
	p := &b.pkts[b.n&(batchSize-1)]
	*p = pkt{frames: *f}
	b.n++
	return p
}

// frame is the first buffer of the packet, which holds all headers. Its capacity ends with
// the frame.
func (w *frameMemory) frame(p *pkt) []byte {
	d := &p.desc[0]
	return w.area[d.Addr : d.Addr+uint64(d.Len) : (d.Addr|w.frameMask)+1]
}

func (w *frameMemory) recycle(p *pkt) { w.freeBuffers(p.desc[:p.n]) }

func (w *frameMemory) freeBuffers(descs []xsk.Desc) {
	for j := range descs {
		w.free.push(descs[j].Addr &^ w.frameMask)
	}
}
