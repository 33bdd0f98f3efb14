package worker

import (
	"encoding/binary"
	"testing"

	"github.com/weirlb/weir/lb/header"
)

// The sums of the lanes are those of package header, with every carry.
func TestLanesUpdateChecksumsAsTheHeaderPackage(t *testing.T) {
	const addrs = 0x0102030405060708
	for _, delta := range []uint32{0, 1, 2, 0x7fff, 0x8000, 0xfffe, 0xffff} {
		for sum := range uint32(1 << 16) {
			word := uint64(sum)<<16 | 0x0640
			if got, want := nextHopWord(word, addrs, delta), header.NextHopWord(word, addrs, uint64(delta)); got != want {
				t.Fatalf("sum %#04x, delta %#04x: %#x, not %#x", sum, delta, got, want)
			}
			if got, want := update(sum, delta), header.Update(uint16(sum), uint64(delta)); got != uint32(want) {
				t.Fatalf("transport sum %#04x, delta %#04x: %#x, not %#x", sum, delta, got, want)
			}
		}
	}
}

// The identification of the packet is that for which the update of the sum carries twice.
func TestALaneKeepsTheHeaderChecksumValid(t *testing.T) {
	b := newBench(t)
	f := request(false, header.ProtoUDP).build(t)
	b.one(portClient, f, portServer) // begins the flow
	b.one(portClient, f, portServer) // learns the next hop

	ip := f[header.EthernetLen : header.EthernetLen+header.IPv4Len]
	delta := b.lb.flows.Entry(1).AddrDelta
	binary.LittleEndian.PutUint16(ip[10:], ^(1 - delta)) // a sum of 0x10001 with delta
	binary.LittleEndian.PutUint16(ip[4:], 0)
	binary.LittleEndian.PutUint16(ip[4:], header.Checksum(0, ip))

	b.give(portClient, f)
	b.w.beginRound()
	x, q := &b.w.batch, b.q[portServer]
	b.w.ports[portClient].filled -= b.w.take(x, portClient, b.q[portClient])
	b.w.process(x)
	if x.lanes()&1 == 0 {
		t.Error("the packet has left its lane")
	}
	b.w.endRound()
	out := b.w.area[q.Out[0].Addr:][header.EthernetLen:][:header.IPv4Len]
	if sum := header.Fold(header.Sum(0, out)); sum != 0xffff {
		t.Errorf("header %x sums to %#04x", out, sum)
	}
}
