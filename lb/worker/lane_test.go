package worker

import (
	"bytes"
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

// The outer headers of the lanes are those of package header, with every carry: for every
// length and identification, and addresses of few and of many bits.
func TestLanesPutTheOuterHeaderOfTheHeaderPackage(t *testing.T) {
	inner := make([]byte, header.MaxEncapLen+header.IPv4Len)
	for _, addrs := range []uint64{0, 1, 0x0102030405060708, 1<<64 - 1, 0xfffe0000ffff0001} {
		for n := range uint32(1 << 16) {
			tos, df, gue := uint8(n*7>>3), n&1 != 0, n&2 != 0
			o := header.Encap{GUE: gue, Addr4: addrs, Flow: n * 0x9e37, ID: uint16(n * 3)}
			length, next := n+uint32(o.Len()), uint64(header.ProtoIPIP)
			if length > 0xffff {
				continue // no such packet
			}
			ip := inner[o.Len():]
			ip[0], ip[1], ip[6] = 0x45, tos, 0
			if df {
				ip[6] = 0x40
			}
			o.Put(inner, int(n))

			if gue {
				next = header.ProtoUDP
			}
			start := outerStart(tos, uint64(ip[6])<<32, length, o.ID)
			ttl := header.EncapTTL | next<<8
			var got [header.IPv4Len + header.UDPLen + header.GUELen]byte
			binary.LittleEndian.PutUint64(got[0:], start)
			binary.LittleEndian.PutUint64(got[8:], ttl|uint64(outerSum(start, ttl, addrs))<<16|addrs<<32)
			binary.LittleEndian.PutUint32(got[16:], uint32(addrs>>32))
			if gue {
				binary.LittleEndian.PutUint64(got[20:], gueHeader(uint64(o.Flow)<<32, n))
				got[29] = header.ProtoIPIP
			}
			if want := inner[:o.Len()]; !bytes.Equal(got[:o.Len()], want) {
				t.Fatalf("length %d, addresses %#x: %x, not %x", n, addrs, got[:o.Len()], want)
			}
		}
	}
}
