package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// laneKind is a kind of packets that take lanes.
type laneKind struct {
	mode  conntrack.Mode
	v6    bool
	proto uint8
}

func (k laneKind) String() string {
	name := modeNames[k.mode]
	if k.mode == conntrack.ModeNAT {
		name = "nat"
	}
	return fmt.Sprintf("%s/v6=%v/%d", name, k.v6, k.proto)
}

// l4 is the offset of the transport header in an untagged packet without options.
func (k laneKind) l4() int {
	if k.v6 {
		return header.EthernetLen + header.IPv6Len
	}
	return header.EthernetLen + header.IPv4Len
}

// sum is the offset of the transport checksum.
func (k laneKind) sum() int {
	if k.proto == header.ProtoUDP {
		return k.l4() + 6
	}
	return k.l4() + 16
}

// Lanes forward valid and spoiled packets of established flows as the slow path does, byte
// by byte, and leave to it what they must. The slow path is the model.
func TestLanesForwardAsTheSlowPath(t *testing.T) {
	for _, mode := range []conntrack.Mode{conntrack.ModeNAT, conntrack.ModeL2DSR, conntrack.ModeIPIP, conntrack.ModeGUE} {
		for i := range 4 {
			k := laneKind{mode, i&1 != 0, header.ProtoUDP}
			if i&2 != 0 {
				k.proto = header.ProtoTCP
			}
			if k.v6 && mode >= conntrack.ModeIPIP {
				continue // without a lane
			}
			t.Run(k.String(), func(t *testing.T) {
				t.Parallel()
				k.compare(t)
			})
		}
	}
}

// compare sends random frames of the kind by both paths.
func (k laneKind) compare(t *testing.T) {
	b := newBench(t)
	bases := k.steady(t, b)
	for _, full := range []bool{false, true} {
		b.w.ports[portClient].FullChecksums = full
		random := rand.New(rand.NewPCG(uint64(k.mode), uint64(k.proto)))
		lanes := 0
		for range 1000 {
			frames := make([][]byte, 1+random.IntN(20))
			for i := range frames {
				frames[i] = k.spoiled(random, bases[max(0, random.IntN(40)-30)], full)
			}
			lanes += b.sameOnBothPaths(portClient, frames)
		}
		if lanes < 2000 {
			t.Errorf("%d packets in lanes: this test compares the slow path with the slow path", lanes)
		}
		b.framesHome()
	}
}

// steady returns requests of a flow that takes the fast path: a short request, and some of
// about the length that fits the path.
func (k laneKind) steady(t *testing.T, b *bench) (frames [][]byte) {
	r := request(k.v6, k.proto)
	switch {
	case k.mode != conntrack.ModeNAT:
		endpoint := endpoint4
		if k.v6 {
			endpoint = endpoint6
		}
		b.serveDirect(k.mode, endpoint, nil)
		b.one(portClient, r.build(t), portServer)
		r.flags = header.ACK
		b.one(portClient, r.build(t), portServer)
		if k.proto == header.ProtoTCP { // the numbers of a young connection are followed for a while
			b.give(portClient, r.build(t))
			b.w.beginRound()
			b.w.tick += 60 * secondTicks
			b.roundAtTheSameTime()
		}
	case k.proto == header.ProtoUDP:
		b.one(portClient, r.build(t), portServer)
	default:
		r, _ = steadyConnection(t, b, k.v6)
	}
	frames = append(frames, r.build(t))
	headers := len(frames[0]) - r.payload - header.EthernetLen
	for n := pathMTU - header.MaxEncapLen - 1; n <= pathMTU+1; n++ {
		for _, outer := range []int{0, header.IPv4Len, header.IPv4Len + header.UDPLen + header.GUELen} {
			if d := pathMTU - outer - n; d >= -1 && d <= 1 {
				r.payload = n - headers
				frames = append(frames, r.build(t))
			}
		}
	}
	return frames
}

// steadyConnection makes a TCP connection whose packets take the fast path, and returns a
// packet of each side.
func steadyConnection(t *testing.T, b *bench, v6 bool) (req, ans packet) {
	t.Helper()
	req, ans = request(v6, header.ProtoTCP), connectBy(t, b, v6)
	req.flags, req.seq, req.ack, req.payload = header.ACK, 1001, ans.seq, 40
	ans.ack, ans.payload = 1041, 20
	for range 3 { // the numbers of a young connection are followed for a while
		b.through(portClient, [][]byte{req.build(t)}, true)
		b.through(portServer, [][]byte{ans.build(t)}, true)
		b.ahead += 5 * secondTicks / 4
	}
	return req, ans
}

// sameOnBothPaths sends frames by the lanes and by the slow path, compares what leaves and
// what is dropped, and returns how many took a lane.
func (b *bench) sameOnBothPaths(in int, frames [][]byte) (lanes int) {
	b.t.Helper()
	id, before := b.w.ipID, b.w.drops
	fastOut, lanes := b.through(in, frames, false)
	between := b.w.drops
	b.w.ipID = id
	slowOut, _ := b.through(in, frames, true)
	for reason, n := range b.w.drops {
		if fast, slow := between[reason]-before[reason], n-between[reason]; fast != slow {
			b.t.Fatalf("%v: %d drops by lanes, %d by the slow path, of %x", Drop(reason), fast, slow, frames)
		}
	}
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
	b.w.tick += b.ahead
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

// spoiled is a request with up to two fields changed and, of IPv4, a right header checksum,
// at times cut or padded. With full checksums a pseudo-header's sum means something else. A
// long packet may not be fragmented: the pieces would have random identifications.
func (k laneKind) spoiled(random *rand.Rand, base []byte, full bool) []byte {
	f, l4 := bytes.Clone(base), k.l4()
	for range random.IntN(3) {
		switch random.IntN(4) {
		case 0: // length of UDP, data offset of TCP
			if k.proto == header.ProtoUDP {
				binary.BigEndian.PutUint16(f[l4+4:], uint16(random.IntN(70)))
			} else {
				f[l4+12] = byte(random.Uint32())
			}
		case 1: // transport checksum
			f[k.sum()+random.IntN(2)] = byte(random.IntN(2) * 255)
		default:
			if k.v6 {
				spoilIPv6(random, f[header.EthernetLen:])
			} else {
				spoilIPv4(random, f[header.EthernetLen:])
			}
		}
	}
	if len(f) > 1000 && !k.v6 {
		f[header.EthernetLen+6] |= 0x40
	}
	if !full && random.IntN(5) == 0 { // a partial checksum
		ip := f[header.EthernetLen:]
		pseudo := header.PseudoSum4(ip, k.proto, int(binary.BigEndian.Uint16(ip[2:]))-header.IPv4Len)
		if k.v6 {
			pseudo = header.PseudoSum6(ip, k.proto, int(binary.BigEndian.Uint16(ip[4:])))
		}
		binary.LittleEndian.PutUint16(f[k.sum():], header.Fold(pseudo))
	}
	if ip := f[header.EthernetLen:]; !k.v6 {
		ip[10], ip[11] = 0, 0
		if n := int(ip[0]&15) * 4; n >= header.IPv4Len && n <= len(ip) {
			binary.LittleEndian.PutUint16(ip[10:], header.Checksum(0, ip[:n]))
		}
	}
	switch random.IntN(8) {
	case 0:
		f = f[:random.IntN(len(f))]
	case 1:
		f = append(f, make([]byte, random.IntN(30))...)
	}
	return f
}

// spoilIPv4 changes a field of an IPv4 header.
func spoilIPv4(random *rand.Rand, ip []byte) {
	switch random.IntN(6) {
	case 0: // total length
		binary.BigEndian.PutUint16(ip[2:], uint16(int(binary.BigEndian.Uint16(ip[2:]))+random.IntN(60)-50))
	case 1: // identification
		binary.BigEndian.PutUint16(ip[4:], uint16(random.Uint32()))
	case 2: // flags
		binary.BigEndian.PutUint16(ip[6:], []uint16{0x4000, 0x8000, 0, 0xc000}[random.IntN(4)])
	case 3: // TTL
		ip[8] = byte(random.IntN(4))
	case 4: // version and header length
		ip[0] = []byte{0x45, 0x46, 0x44, 0x55, 0x4f}[random.IntN(5)]
	case 5: // TOS
		ip[1] = byte(random.Uint32())
	}
}

// spoilIPv6 changes a field of an IPv6 header.
func spoilIPv6(random *rand.Rand, ip []byte) {
	switch random.IntN(6) {
	case 0: // payload length
		binary.BigEndian.PutUint16(ip[4:], uint16(int(binary.BigEndian.Uint16(ip[4:]))+random.IntN(60)-50))
	case 1: // payload length, any
		binary.BigEndian.PutUint16(ip[4:], uint16(random.Uint32()))
	case 2: // traffic class and flow label
		binary.BigEndian.PutUint32(ip, 6<<28|random.Uint32()>>4)
	case 3: // hop limit
		ip[7] = byte(random.IntN(4))
	case 4: // version
		ip[0] = []byte{0x45, 0x6f, 0x70, 0x40}[random.IntN(4)]
	case 5: // next header
		ip[6] = []byte{header.ProtoTCP, header.ProtoUDP, header.ProtoSCTP, header.ProtoICMPv6}[random.IntN(4)]
	}
}
