package worker

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// Lanes forward valid and spoiled packets of established flows as the slow path does, byte
// by byte, and leave to it what they must. The slow path is the model.
func TestLanesForwardAsTheSlowPath(t *testing.T) {
	for _, proto := range []uint8{header.ProtoUDP, header.ProtoTCP} {
		b := newBench(t)
		base := steadyRequest(t, b, proto)
		for _, full := range []bool{false, true} {
			b.w.ports[portClient].FullChecksums = full
			random := rand.New(rand.NewPCG(1, uint64(proto)))
			lanes := 0
			for range 1000 {
				frames := make([][]byte, 1+random.IntN(20))
				for i := range frames {
					frames[i] = spoiled(random, base, proto, full)
				}
				n := b.sameOnBothPaths(frames)
				lanes += n
			}
			if lanes < 2000 {
				t.Errorf("protocol %d: %d packets in lanes: this test compares the slow path with the slow path", proto, lanes)
			}
			b.framesHome()
		}
	}
}

// steadyRequest is a request of a flow that takes the fast path.
func steadyRequest(t *testing.T, b *bench, proto uint8) []byte {
	t.Helper()
	r := request(false, proto)
	if proto == header.ProtoUDP {
		b.one(portClient, r.build(t), portServer)
		return r.build(t)
	}
	answer := connect(t, b)
	r.flags, r.seq, r.ack, r.payload = header.ACK, 1001, answer.seq, 40
	answer.ack, answer.payload = 1041, 20
	for range 3 { // the numbers of a young connection are followed for a while
		b.through(portClient, [][]byte{r.build(t)}, true)
		b.through(portServer, [][]byte{answer.build(t)}, true)
		time.Sleep(1200 * time.Millisecond)
	}
	return r.build(t)
}

// sameOnBothPaths sends frames by the lanes and by the slow path, compares what leaves, and
// returns how many took a lane.
func (b *bench) sameOnBothPaths(frames [][]byte) (lanes int) {
	b.t.Helper()
	fastOut, lanes := b.through(portClient, frames, false)
	slowOut, _ := b.through(portClient, frames, true)
	if len(fastOut) != len(slowOut) {
		b.t.Fatalf("%d packets leave by lanes, %d by the slow path, of %x", len(fastOut), len(slowOut), frames)
	}
	for i := range fastOut {
		if !bytes.Equal(fastOut[i], slowOut[i]) {
			b.t.Fatalf("by lanes     %x\nby slow path %x", fastOut[i], slowOut[i])
		}
	}
	return lanes
}

// through sends frames into a port, by lanes where they may take one, or all by the slow
// path. It returns the frames that leave by the other port, complete.
func (b *bench) through(in int, frames [][]byte, slowly bool) (out [][]byte, lanes int) {
	for _, f := range frames {
		b.give(in, f)
	}
	b.w.beginRound()
	x := &b.w.batch
	b.w.ports[in].filled -= b.w.take(x, int32(in), b.q[in])
	if slowly {
		b.processSlowly(x)
	} else {
		b.w.process(x)
		for i := range x.n {
			lanes += int(x.lanes() >> i & 1)
		}
	}
	b.w.endRound()
	for i, q := range b.q {
		for _, d := range q.Out {
			f := bytes.Clone(b.w.area[d.Addr : d.Addr+uint64(d.Len)])
			if d.Options != 0 {
				completeByMetadata(b.w.area[d.Addr-24:d.Addr], f)
			}
			if i != in {
				out = append(out, f)
			}
		}
		q.Out = q.Out[:0]
	}
	return out, lanes
}

// processSlowly is process without lanes and fast path.
func (b *bench) processSlowly(x *batch) {
	for at := 0; at < x.n; at += groupSize {
		to := min(at+groupSize, x.n)
		b.w.classify(x, at, to)
		for i := at; i < to; i++ {
			if x.lanes()>>i&1 != 0 {
				b.w.leaveLane(x, i)
			}
			if p := &x.pkts[i]; p.state == fast {
				p.state = slow
			}
		}
		b.w.conntrack.Candidates(x.hash[at:to], x.ref[at:to])
		b.w.dispatch(x, at, to, b.w.counts[counter.NewFlows])
	}
	b.w.noteSamples(b.w.tcpSamples.n)
}

// spoiled is an IPv4 request with up to two fields changed and a right header checksum, at
// times cut or padded. With full checksums a pseudo-header's sum means something else.
func spoiled(random *rand.Rand, base []byte, proto uint8, full bool) []byte {
	const ip, l4 = header.EthernetLen, header.EthernetLen + header.IPv4Len
	f := bytes.Clone(base)
	for range random.IntN(3) {
		switch random.IntN(7) {
		case 0: // total length
			binary.BigEndian.PutUint16(f[ip+2:], uint16(int(binary.BigEndian.Uint16(f[ip+2:]))+random.IntN(60)-50))
		case 1: // identification
			binary.BigEndian.PutUint16(f[ip+4:], uint16(random.Uint32()))
		case 2: // flags
			binary.BigEndian.PutUint16(f[ip+6:], []uint16{0x4000, 0x8000, 0, 0xc000}[random.IntN(4)])
		case 3: // TTL
			f[ip+8] = byte(random.IntN(4))
		case 4: // length of UDP, data offset of TCP
			if proto == header.ProtoUDP {
				binary.BigEndian.PutUint16(f[l4+4:], uint16(random.IntN(70)))
			} else {
				f[l4+12] = byte(random.Uint32())
			}
		case 5: // transport checksum
			f[checksumAt(proto)+random.IntN(2)] = byte(random.IntN(2) * 255)
		case 6: // version and header length
			f[ip] = []byte{0x45, 0x46, 0x44, 0x55, 0x4f}[random.IntN(5)]
		}
	}
	if !full && random.IntN(5) == 0 { // a partial checksum
		sum := header.Fold(header.PseudoSum4(f[ip:], proto, int(binary.BigEndian.Uint16(f[ip+2:]))-header.IPv4Len))
		binary.LittleEndian.PutUint16(f[checksumAt(proto):], sum)
	}

	f[ip+10], f[ip+11] = 0, 0
	if n := int(f[ip]&15) * 4; n >= header.IPv4Len && ip+n <= len(f) {
		binary.LittleEndian.PutUint16(f[ip+10:], header.Checksum(0, f[ip:ip+n]))
	}
	switch random.IntN(8) {
	case 0:
		f = f[:random.IntN(len(f))]
	case 1:
		f = append(f, make([]byte, random.IntN(30))...)
	}
	return f
}

func checksumAt(proto uint8) int {
	if proto == header.ProtoUDP {
		return header.EthernetLen + header.IPv4Len + 6
	}
	return header.EthernetLen + header.IPv4Len + 16
}
