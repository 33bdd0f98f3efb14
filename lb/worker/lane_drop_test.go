package worker

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/ratelimit"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
)

// outcomes are what a batch without flows comes to.
type outcomes struct {
	drops   dropCounts
	samples [dropReasons]uint32 // packets kept in the tick
	punted  uint64
	resets  uint64
	out     [3][][]byte
}

// dropRun compares lanes and slow path on packets to the node's addresses.
type dropRun struct {
	*bench
	laneKind
	random *rand.Rand
	tick   uint32
	resets ratelimit.Limiter
	inLane map[bool]int // packets that lanes drop: whether the limit allows no answer
}

// Lanes drop packets without a flow as the slow path does: under the same reason, answered or
// not, sampled or not. They leave to it packets of frontends, of the kernel, those that are
// malformed, and all of them while Weir drains. The slow path is the model.
func TestLanesDropAsTheSlowPath(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{header.ProtoUDP, header.ProtoTCP} {
			k := laneKind{conntrack.ModeNAT, v6, proto}
			t.Run(fmt.Sprintf("v6=%v/%d", v6, proto), func(t *testing.T) {
				t.Parallel()
				k.compareDrops(t)
			})
		}
	}
}

func (k laneKind) compareDrops(t *testing.T) {
	r := &dropRun{bench: newBench(t), laneKind: k, random: rand.New(rand.NewPCG(12, uint64(k.proto))), inLane: map[bool]int{}}
	own, shared, src, front := snat4, other, []netip.Addr{endpoint4, endpoint4.Next()}, snat4
	if k.v6 {
		own, shared, src, front = snat6, node6, []netip.Addr{endpoint6, endpoint6.Next()}, snat6
	}
	martian := map[bool][]string{false: {"127.0.0.1", "0.1.2.3", "224.0.0.1", "255.1.1.1"}, true: {"::1", "::", "ff02::1", "::ffff:10.1.0.5"}}[k.v6]
	if _, err := r.lb.tables.Apply([]table.Service{{Name: "ns/empty", Pools: []table.Pool{{}}, Frontends: []table.Frontend{
		{AddrPort: netip.AddrPortFrom(front, 61502), Proto: k.proto, Pool: 0},
	}}}, nil); err != nil {
		t.Fatal(err)
	}
	for range 4000 {
		r.lb.node.Store(&Node{Draining: r.random.IntN(8) == 0, Addresses: snat.New(snat.Config{Owned: []snat.Source{
			{Addr: own, Lo: 61000, Hi: 65535}, {Addr: shared, Lo: 61000, Hi: 65535, Shared: true},
		}})})
		in := []int{portServer, portServer, portServer, portHost}[r.random.IntN(4)]
		full := r.random.IntN(2) == 0
		r.w.ports[in].FullChecksums = full
		frames := make([][]byte, 1+r.random.IntN(20))
		for i := range frames {
			p := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(src[r.random.IntN(2)], 8080), proto: k.proto, payload: 40, df: true, ttl: 64}
			p.dst = ap([]netip.Addr{own, own, own, own, shared, shared.Next()}[r.random.IntN(6)], []uint16{61500, 61501, 61503, 61502, 500}[r.random.IntN(5)])
			p.flags = []uint8{header.ACK, header.ACK, header.RST, header.RST | header.ACK, header.SYN, header.SYN | header.ACK, header.SYN | header.RST, header.FIN | header.ACK, 0}[r.random.IntN(9)]
			if r.random.IntN(20) == 0 {
				p.src = ap(netip.MustParseAddr(martian[r.random.IntN(len(martian))]), 8080)
			}
			f := k.spoiled(r.random, p.build(t), full)
			if len(f) > 6 && r.random.IntN(20) == 0 {
				f[r.random.IntN(2)*6] |= 1
			}
			if len(f) > 24 && !k.v6 && r.random.IntN(20) == 0 {
				f[24]++ // the header checksum
			}
			frames[i] = f
		}
		r.sameOutcomes(in, frames)
	}
	r.framesHome()
	if r.inLane[false] < 500 || k.proto == header.ProtoTCP && r.inLane[true] < 500 {
		t.Errorf("drops in lanes: %v; this test compares the slow path with the slow path", r.inLane)
	}
}

// A first fragment leaves the lane, though it has ports: the datagram has to be tracked.
func TestLanesDropNoFragment(t *testing.T) {
	for _, proto := range []uint8{header.ProtoUDP, header.ProtoTCP} {
		r := &dropRun{bench: newBench(t)}
		p := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), dst: ap(snat4, 61500), proto: proto, flags: header.RST, payload: 40}
		for _, fragment := range []bool{false, true} {
			f := p.build(t)
			if fragment {
				f[header.EthernetLen+6] |= 0x20
				sumIPv4(f)
			}
			o := r.pass(portServer, [][]byte{f}, samplesPerTick, false)
			if inLane := r.w.batch.lanes() != 0; inLane == fragment {
				t.Errorf("protocol %d, a fragment: %v, dropped in the lane: %v, %v", proto, fragment, inLane, o.drops)
			}
		}
	}
}

// sameOutcomes sends frames by both paths, in the same state of the limits and samples.
func (r *dropRun) sameOutcomes(in int, frames [][]byte) {
	r.t.Helper()
	switch r.tick += uint32(r.random.IntN(3)); r.random.IntN(12) {
	case 0:
		r.resets = ratelimit.New(1e6, 1e6, 1e6)
	case 1, 2:
		r.resets = ratelimit.New(1e6, 1e6, 1+r.random.Uint32N(20))
	case 3:
		r.resets = ratelimit.New(0, float64(r.random.IntN(5)), 1e6)
	}
	taken := r.random.Uint32N(samplesPerTick + 1)
	if r.random.IntN(3) > 0 {
		taken = samplesPerTick
	}
	limits := r.resets
	lanes := r.pass(in, frames, taken, false)
	for i, f := range frames { // without a flow nothing else leaves the stages in a lane
		if r.w.batch.lanes()>>i&1 != 0 {
			answered := r.proto == header.ProtoTCP && f[r.l4()+13]&header.RST == 0 && (f[0]|f[6])&1 == 0
			r.inLane[answered]++
		}
	}
	r.resets = limits
	slow := r.pass(in, frames, taken, true)
	if !reflect.DeepEqual(lanes, slow) {
		r.t.Fatalf("lanes:     %+v\nslow path: %+v\nof %x", lanes, slow, frames)
	}
}

// pass sends frames by a path.
func (r *dropRun) pass(in int, frames [][]byte, taken uint32, slowly bool) (o outcomes) {
	w := r.w
	for _, f := range frames {
		r.give(in, f)
	}
	w.beginRound()
	w.ipID = 0
	w.tick, w.resets, w.errors = r.tick, r.resets, ratelimit.New(1e6, 1e6, 1e6)
	for i := range w.samples {
		w.samples[i].tick, w.samples[i].taken = r.tick, taken
	}
	before, counts := w.drops, w.counts
	x := &w.batch
	w.ports[in].filled -= w.take(x, int32(in), r.q[in])
	if slowly {
		r.processSlowly(x)
	} else {
		w.process(x)
	}
	for reason := range w.drops {
		o.drops[reason] = w.drops[reason] - before[reason]
		o.samples[reason] = w.samples[reason].taken
	}
	o.punted, o.resets = w.counts[counter.Punted]-counts[counter.Punted], w.counts[counter.Resets]-counts[counter.Resets]
	r.resets = w.resets
	w.endRound()
	for i, q := range r.q {
		for _, d := range q.Out {
			o.out[i] = append(o.out[i], bytes.Clone(w.area[d.Addr:d.Addr+uint64(d.Len)]))
		}
		q.Out = q.Out[:0]
	}
	return o
}
