package worker

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/header"
)

// tagged puts a VLAN tag behind the MAC addresses of a frame.
func tagged(f []byte, protocol, id uint16) []byte {
	tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, protocol), id)
	return slices.Insert(slices.Clone(f), 12, tag...)
}

// onVLAN makes a port of a VLAN: port is then reached by the queue of under, with
// a tag.
func (b *bench) onVLAN(port, under int, protocol, id uint16) {
	p := &b.w.ports[port]
	p.Queue, p.Under, p.Tag = nil, int32(under), uint32(protocol)<<16|uint32(id)
}

// Packets of a VLAN arrive at its parent with the tag; they leave by another
// interface without it, and what leaves by the VLAN has it: whoever completes
// the checksum.
func TestAVLANPortPushesItsTag(t *testing.T) {
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		for _, six := range []bool{false, true} {
			for _, partial := range []bool{false, true} {
				b := newBench(t)
				b.w.ports[portServer].Metadata = true
				// Endpoints are in VLAN 100 of the interface of the clients.
				b.onVLAN(portServer, portClient, unix.ETH_P_8021AD, 100)
				req := request(six, proto)
				req.partial = partial
				f := b.one(portClient, req.build(t), portClient)
				if tag := binary.BigEndian.Uint32(f[12:]); tag != unix.ETH_P_8021AD<<16|100 {
					t.Fatalf("tag %#x", tag)
				}
				plain := slices.Delete(slices.Clone(f), 12, 16)
				var p header.Packet
				if header.Parse(plain, len(plain), &p) != header.OK {
					t.Fatal("what was sent does not parse")
				}
				want := req
				want.srcMAC, want.dstMAC, want.ttl, want.partial = macWeirB, macServer, 63, false
				snat, ep := snat4, endpoint4
				if six {
					snat, ep = snat6, endpoint6
				}
				want.src, want.dst = ap(snat, binary.BigEndian.Uint16(plain[p.L4:])), ap(ep, 8080)
				if w := want.build(t); !bytes.Equal(plain, w) {
					t.Errorf("to the endpoint:\n got %x\nwant %x", plain, w)
				}
				// The answer comes with the tag and leaves without.
				ans := packet{srcMAC: macServer, dstMAC: macWeirB, src: want.dst, dst: want.src, proto: proto, payload: 20, partial: partial}
				if proto == header.ProtoTCP {
					ans.flags, ans.seq, ans.ack, ans.payload = header.SYN|header.ACK, 5000, 1001, 0
				}
				back := ans
				back.srcMAC, back.dstMAC, back.ttl, back.partial = macWeir, macClient, 63, false
				back.src, back.dst = req.dst, req.src
				if g := b.one(portClient, tagged(ans.build(t), unix.ETH_P_8021AD, 100), portClient); !bytes.Equal(g, back.build(t)) {
					t.Errorf("to the client:\n got %x\nwant %x", g, back.build(t))
				}
				b.framesHome()
			}
		}
	}
}

// What arrives with one tag leaves with that of its way out, and not with both.
func TestFromOneVLANToAnother(t *testing.T) {
	b := newBench(t)
	b.onVLAN(portServer, portClient, unix.ETH_P_8021Q, 200)
	f := b.one(portClient, tagged(request(false, header.ProtoUDP).build(t), unix.ETH_P_8021Q, 100), portClient)
	if tag, next := binary.BigEndian.Uint32(f[12:]), binary.BigEndian.Uint16(f[16:]); tag != unix.ETH_P_8021Q<<16|200 || next != unix.ETH_P_IP {
		t.Errorf("tag %#x, then %#x", tag, next)
	}
	b.framesHome()
}

// A refusal goes back into the VLAN from which the packet came.
func TestARefusalKeepsTheTag(t *testing.T) {
	b := newBench(t)
	b.onVLAN(portServer, portClient, unix.ETH_P_8021Q, 200)
	p := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 40000), dst: ap(empty4, 80), proto: header.ProtoTCP, flags: header.SYN}
	f := b.one(portClient, tagged(p.build(t), unix.ETH_P_8021Q, 100), portClient)
	if tag := binary.BigEndian.Uint32(f[12:]); tag != unix.ETH_P_8021Q<<16|100 {
		t.Fatalf("tag %#x", tag)
	}
	isReset(t, f)
	b.framesHome()
}

// A priority tag names no VLAN: what is sent back to its sender has none.
func TestARefusalHasNoPriorityTag(t *testing.T) {
	b := newBench(t)
	p := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 40000), dst: ap(empty4, 80), proto: header.ProtoTCP, flags: header.SYN}
	want := b.one(portClient, p.build(t), portClient)
	got := b.one(portClient, tagged(p.build(t), unix.ETH_P_8021Q, 5<<13), portClient)
	isReset(t, got)
	if !bytes.Equal(got, want) {
		t.Errorf("\n got %x\nwant %x", got, want)
	}
	b.framesHome()
}

func TestNoAllocationForATag(t *testing.T) {
	b := newBench(t)
	b.onVLAN(portServer, portClient, unix.ETH_P_8021Q, 200)
	f := request(false, header.ProtoUDP).build(t)
	if n := testing.AllocsPerRun(500, func() {
		b.give(portClient, f)
		b.w.Round()
		b.q[portClient].Out = b.q[portClient].Out[:0]
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}
