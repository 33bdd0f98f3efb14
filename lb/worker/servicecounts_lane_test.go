package worker

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// manyFlows begins n flows of datagrams, so that buckets of the flow table overflow, and
// returns a packet of each.
func (b *bench) manyFlows(n int) (frames [][]byte) {
	for i := range n {
		p := request(false, header.ProtoUDP)
		p.src = floodAddr(uint32(i))
		frames = append(frames, p.build(b.t))
		b.give(portClient, frames[i])
		if i%32 == 31 || i == n-1 {
			b.round()
		}
	}
	return frames
}

// A packet without a lane counts for the Service of its own flow, wherever in the table that
// is: the first look at the index may find nothing, or the entry of another flow.
func TestTrafficOutsideLanesCountsForItsOwnFlow(t *testing.T) {
	b := newBench(t)
	pool := table.Pool{}
	for i := range 16 { // there are SNAT ports for a few thousand flows to each
		pool.Endpoints = append(pool.Endpoints, table.Endpoint{AddrPort: ap(endpoint4, 8080+uint16(i))})
	}
	b.apply(nil, table.Service{Name: "ns/web", Pools: []table.Pool{pool}, Frontends: []table.Frontend{
		{AddrPort: ap(node4, 80), Proto: header.ProtoUDP},
	}})
	frames := b.manyFlows(14000)
	before := b.counted().Packets
	for _, f := range frames {
		b.one(portClient, tagged(f, unix.ETH_P_8021Q, 7), portServer)
	}
	after := b.counted().Packets
	if n := after[0] - before[0]; n != uint64(len(frames)) || after[1] != before[1] {
		t.Errorf("%d packets of clients and %d of endpoints, want %d and 0", n, after[1]-before[1], len(frames))
	}

	// Datagrams without a flow, and packets without ports.
	before = after
	unknown := packet{srcMAC: macClient, dstMAC: macWeir, dst: ap(snat4, 61999), proto: header.ProtoUDP}
	echo, _ := ping(false, 8)
	for i := range 2000 {
		unknown.src = floodAddr(1<<20 + uint32(i))
		b.give(portClient, tagged(unknown.build(t), unix.ETH_P_8021Q, 7))
		b.round()
		b.give(portClient, echo.build(t))
		b.round()
	}
	if after = b.counted().Packets; after != before {
		t.Errorf("packets without a flow are counted: %v, then %v", before, after)
	}
	b.framesHome()
}

// The bytes of a packet in several buffers are all counted.
func TestTrafficOfSeveralBuffersIsCountedWhole(t *testing.T) {
	b := newBench(t)
	p := request(false, header.ProtoUDP)
	b.one(portClient, p.build(t), portServer)
	p.payload = 1000
	f := p.build(t)
	for range 3 {
		before := b.counted()
		b.giveBuffers(portClient, f, 200, 300)
		b.round()
		c := b.counted().Since(&before)
		if c.Packets[0] != 1 || c.Bytes[0] != uint64(len(f)) {
			t.Errorf("%d packets, %d bytes, want 1 of %d", c.Packets[0], c.Bytes[0], len(f))
		}
	}
	b.framesHome()
}
