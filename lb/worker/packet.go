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
	// began is whether the packet began its flow, which has noted it.
	began bool
}

// frameMemory is the packet memory, with the frames that the worker has free. Packets are
// read and changed here.
type frameMemory struct {
	memory    *xsk.Umem
	heads     xsk.Heads
	area      []byte
	frameMask uint64 // low bits of an address: the offset in the frame
	free      freeList
}

// pkt is a packet in the stages. It is consumed exactly once: sent, dropped, queued, handed
// off or punted.
type pkt struct {
	header.Packet
	state   pktState
	problem header.Problem
	arrived uint16 // Len before an outer header or fragmentation changed it
	// lookups counts the look-ups that found a flow which had just ended.
	lookups uint8
	ref     conntrack.Ref // the flow entry by which the slow path forwards
	silent  uint32        // number of the endpoint that has not answered the same SYN, 0: none
	service uint32        // number of the Service that a drop is counted for, 0: unknown
	frames
	hash uint64 // of key
	key  conntrack.Key
	// datagram is the datagram of a fragment, nil of any other packet.
	datagram *fragtrack.Datagram
	// data is the first buffer, with all headers: see frameMemory.frame.
	data []byte
}

// pktState is how far a packet has come.
type pktState uint8

const (
	// unparsed: not a whole TCP, UDP or SCTP packet, for the problem.
	unparsed pktState = iota
	// slow: parsed, with a key.
	slow
	// untracked: as slow, and the state of the flow does not follow from the packet.
	untracked
	// fast: as slow, and the packet is whole, in a single buffer with room for the bytes
	// that the fast path touches. It neither begins nor ends a connection, and the TTL does
	// not expire.
	fast
)

// batch is a set of packets in the stages. Nearly all take the fast path, and need no more
// than a lane: the descriptor, words of the header, the hash and the entry of packet i. The pkt
// of a packet with a lane is not valid until the packet leaves the lane, see leaveLane.
type batch struct {
	n  int
	in int32 // the port, of packets whose frames are not set
	// framesSet has a bit for every packet with valid frames in its pkt: of several
	// buffers, or handed over by another worker.
	framesSet uint64
	// lanes4 and lanes6 have a bit for every IPv4 or IPv6 packet with a lane: after the first
	// stage, and until the packet leaves it.
	lanes4, lanes6 uint64
	// partial is whether checksums may be partial.
	partial bool

	first [batchSize]xsk.Desc // the first buffer, with the length of all
	head  [batchSize]laneHead
	addr6 [batchSize][4]uint64 // of lanes6: the words of the addresses, as in the key
	hash  [batchSize]uint64
	ref   [batchSize]conntrack.Ref // after the last stage the flow's, 0: none
	pkts  [batchSize]pkt
}

// laneHead are words of a packet's headers, as little-endian loads. The second and the
// third stage read them here: the first lines of all frames share a set of a cache, which
// has forgotten them by then.
type laneHead struct {
	ip    uint64 // IPv4: total length to protocol; IPv6: all before the addresses
	addrs uint64 // IPv4: source and destination
	l4    uint64 // ports; of UDP the length and the checksum
}

// lanes has a bit for every packet with a lane.
func (b *batch) lanes() uint64 { return b.lanes4 | b.lanes6 }

// laneKey returns the key of a packet with a lane.
func (b *batch) laneKey(i int) conntrack.Key {
	i &= batchSize - 1
	h := &b.head[i]
	if b.lanes6>>i&1 != 0 {
		a := &b.addr6[i]
		return conntrack.Key{W: [5]uint64{a[0], a[1], a[2], a[3], word4(6, uint32(h.l4), uint8(h.ip>>48))}}
	}
	return conntrack.Key{W: [5]uint64{0: h.addrs, 4: word4(4, uint32(h.l4), uint8(h.ip>>56))}}
}

// add returns the place of another packet, empty but for the frames.
func (b *batch) add(f *frames) *pkt {
	i := b.n & (batchSize - 1)
	b.framesSet |= 1 << i
	p := &b.pkts[i]
	*p = pkt{frames: *f}
	b.first[i] = xsk.Desc{Addr: f.desc[0].Addr, Len: f.size}
	b.n++
	return p
}

// reset empties the batch for packets of port in.
func (b *batch) reset(in int32) { b.n, b.in, b.framesSet, b.lanes4, b.lanes6 = 0, in, 0, 0, 0 }

// frame is the first buffer of the packet, which holds all headers. Its capacity ends with
// the frame.
func (w *frameMemory) frame(p *pkt) []byte {
	d := &p.desc[0]
	return w.area[d.Addr : d.Addr+uint64(d.Len) : (d.Addr|w.frameMask)+1]
}

func (w *frameMemory) freeBuffers(descs []xsk.Desc) {
	for j := range descs {
		w.free.push(descs[j].Addr &^ w.frameMask)
	}
}
