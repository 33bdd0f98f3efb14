package worker

import (
	"math/bits"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/pcapfilter"
	"github.com/weirlb/weir/lb/tap"
	"github.com/weirlb/weir/lb/xsk"
)

// Packets for captures and traces. While a tap is attached the worker copies the first bytes of
// each packet before the stages change them. When the packet leaves it finds the copy again by
// the number of the frame: a record has the received and the sent frame. Without a tap that is
// a branch per batch and port.

// MaxTaps is the number of taps that can be attached.
const MaxTaps = 8

// The number of packets that can be between receipt and outcome: those of a round, and those
// that wait for a neighbor or a fragment. Of long copies there is room for fewer.
const (
	observedPackets = 2048
	leastObserved   = 256
	observedBytes   = 4 << 20
)

// observation is the state of a worker while taps are attached.
type observation struct {
	taps      []*tap.Tap
	worker    int
	table     *conntrack.Table
	conntrack *conntrack.Worker
	area      []byte // the packet memory
	snap      int    // bytes of a frame that the taps want at most
	shift     uint   // from an address to the number of the frame

	now     int64  // of the batch
	ids     uint64 // of the last packet
	slots   []observed
	next    int
	data    []byte   // snap bytes per slot
	byFrame []uint32 // slot + 1 by frame, 0 for none
	sent    []byte   // the frame that leaves
}

// observed is a packet between receipt and outcome.
type observed struct {
	frames  uint8 // the packet's frames that have not left; 0: the slot is free
	matched uint8 // a bit per tap
	told    bool  // a record has the received frame
	verdict tap.Verdict
	reason  Drop
	refused bool // reason is valid
	kept    uint32
	length  uint32
	in      int32
	frame   uint32 // where the packet is
	time    int64
	id      uint64
}

// Observe attaches taps in place of the present ones, from the next round on. Preconditions:
// at most MaxTaps, each for at least as many workers as there are.
func (w *Worker) Observe(taps []*tap.Tap) {
	if len(taps) == 0 {
		w.observing.Store(nil)
		return
	}
	o := &observation{
		taps: taps, worker: w.id, table: w.conns, conntrack: w.conntrack, area: w.area,
		shift:   uint(bits.TrailingZeros(uint(w.frameMask + 1))),
		byFrame: make([]uint32, w.memory.Frames()),
	}
	for _, t := range taps {
		o.snap = max(o.snap, t.SnapLen(), minObserved)
	}
	o.slots = make([]observed, max(leastObserved, min(observedPackets, observedBytes/o.snap)))
	o.data, o.sent = make([]byte, len(o.slots)*o.snap), make([]byte, 0, o.snap)
	w.observing.Store(o)
}

// minObserved are the bytes that a filter looks at: all headers of a tunnel.
const minObserved = 128

// batch notes the packets of a batch before the stages change them.
//
//go:noinline
func (o *observation) batch(b *batch, tick uint32, waited bool) {
	o.now = time.Now().UnixNano()
	for i := range b.n {
		f := frames{size: b.first[i].Len, in: b.in, n: 1}
		if b.framesSet>>i&1 != 0 {
			f = b.pkts[i].frames
		} else {
			f.desc[0] = b.first[i]
		}
		o.arrive(&f, tick, waited)
	}
}

// arrive notes a packet. A packet that waited has been noted before.
func (o *observation) arrive(f *frames, tick uint32, waited bool) {
	frame := f.desc[0].Addr >> o.shift
	if o.byFrame[frame] != 0 && waited {
		return
	}
	at := o.next
	o.next = (at + 1) % len(o.slots)
	s := &o.slots[at]
	if s.frames != 0 {
		s.verdict = tap.Queue
		o.tell(at, tick, nil, 0, -1)
		if o.byFrame[s.frame] == uint32(at+1) {
			o.byFrame[s.frame] = 0
		}
	}
	o.ids++
	*s = observed{frames: 1, frame: uint32(frame), in: f.in, length: f.size, time: o.now, id: o.ids<<8 | uint64(o.worker)}
	kept := o.gather(o.data[at*o.snap:at*o.snap:(at+1)*o.snap], f.desc[:f.n])
	s.kept = uint32(len(kept))
	var p pcapfilter.Packet
	pcapfilter.Read(kept, int(f.size), &p)
	for k, t := range o.taps {
		if t.Match(&p) {
			s.matched |= 1 << k
		}
	}
	o.byFrame[frame] = uint32(at + 1)
}

// gather appends the first bytes of a packet to to, as far as there is room.
func (o *observation) gather(to []byte, descs []xsk.Desc) []byte {
	for _, d := range descs {
		n := min(int(d.Len), cap(to)-len(to))
		to = append(to, o.area[d.Addr:d.Addr+uint64(n)]...)
	}
	return to
}

// slotOf returns the number of the slot of a packet by the first frame, -1 for none.
func (o *observation) slotOf(d *xsk.Desc) int {
	return int(o.byFrame[d.Addr>>o.shift]) - 1
}

// punt notes that a packet is sent to the kernel.
func (o *observation) punt(d *xsk.Desc) {
	if at := o.slotOf(d); at >= 0 {
		o.slots[at].verdict = tap.Punt
	}
}

// answer notes that a packet is sent back, changed into an answer.
func (o *observation) answer(d *xsk.Desc) {
	if at := o.slotOf(d); at >= 0 && !o.slots[at].refused {
		o.slots[at].verdict = tap.Reply
	}
}

// refuse is answer of a refusal, which has a reason.
func (o *observation) refuse(d *xsk.Desc, v verdict) {
	if at := o.slotOf(d); at >= 0 {
		s := &o.slots[at]
		s.verdict, s.reason, s.refused = tap.Reply, v.reason(), true
		if v.kind() == kindChallenge {
			s.verdict = tap.Challenge
		}
	}
}

// divide moves a packet to the frames of fragments.
func (o *observation) divide(d *xsk.Desc, made []xsk.Desc) {
	at := o.slotOf(d)
	if at < 0 {
		return
	}
	o.byFrame[d.Addr>>o.shift] = 0
	o.slots[at].frames = uint8(len(made))
	for i := range made {
		o.byFrame[made[i].Addr>>o.shift] = uint32(at + 1)
	}
}

// forget ends the observation of a packet that another worker takes over.
func (o *observation) forget(d *xsk.Desc) {
	if at := o.slotOf(d); at >= 0 {
		o.slots[at].frames = 0
		o.byFrame[d.Addr>>o.shift] = 0
	}
}

// dropped records a packet that is dropped at a tick.
//
//go:noinline
func (o *observation) dropped(d *xsk.Desc, reason Drop, tick uint32) {
	at := o.slotOf(d)
	if at < 0 {
		return
	}
	s := &o.slots[at]
	s.verdict, s.reason, s.refused = tap.Drop, reason, true
	o.tell(at, tick, nil, 0, -1)
	o.leave(at, d)
}

// transmitted records packets that leave by port out at a tick.
//
//go:noinline
func (o *observation) transmitted(descs []xsk.Desc, out int32, tick uint32) {
	for len(descs) > 0 {
		n := 1
		for n < len(descs) && descs[n-1].Options&xsk.Continued != 0 {
			n++
		}
		o.packet(descs[:n], out, tick)
		descs = descs[n:]
	}
}

// packet records a packet that leaves by port out at a tick.
func (o *observation) packet(descs []xsk.Desc, out int32, tick uint32) {
	at := o.slotOf(&descs[0])
	if at < 0 {
		return
	}
	size := uint32(0)
	for i := range descs {
		size += descs[i].Len
	}
	o.sent = o.gather(o.sent[:0:o.snap], descs)
	o.tell(at, tick, o.sent, size, out)
	o.leave(at, &descs[0])
}

// handedOff records a packet that another worker sends by port tag, and forgets a
// packet that another worker takes through the stages.
//
//go:noinline
func (o *observation) handedOff(descs []xsk.Desc, tag int32, tick uint32) {
	if tag <= arrived {
		o.forget(&descs[0])
		return
	}
	o.packet(descs, tag, tick)
}

// leave ends the observation of a frame.
func (o *observation) leave(at int, d *xsk.Desc) {
	o.byFrame[d.Addr>>o.shift] = 0
	o.slots[at].frames--
}
