package worker

import (
	"bytes"
	"testing"

	"github.com/weirlb/weir/lb/header"
)

// A sample is the packet as it came, and of a flood only a few are taken.
func TestDroppedPacketsAreSampled(t *testing.T) {
	b := newBench(t)
	f := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), dst: ap(empty4, 80), proto: header.ProtoTCP, flags: header.SYN}.build(t)
	for range 40 {
		b.give(portClient, bytes.Clone(f))
		b.round()
	}
	var got []DropSample
	for reason := range b.w.samples {
		got = b.w.samples[reason].read(got, Drop(reason))
	}
	dropped := uint64(0)
	for _, n := range b.drops() {
		dropped += n
	}
	if len(got) == 0 || dropped != 40 {
		t.Fatalf("%d samples of %d drops", len(got), dropped)
	}
	for _, s := range got {
		if !bytes.Equal(s.Data, f[:min(len(f), len(s.Data))]) || s.Port != portClient || s.Size != len(f) {
			t.Errorf("%+v is not %x", s, f)
		}
	}
}

// The newest samples stay.
func TestSamplesAreOverwritten(t *testing.T) {
	b := newBench(t)
	w := b.w
	p := &w.batch.pkts[0]
	f := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), dst: ap(node4, 80), proto: header.ProtoTCP}.build(t)
	addr, _ := w.free.pop()
	p.desc[0].Addr, p.desc[0].Len, p.size, p.n = addr, uint32(len(f)), uint32(len(f)), 1
	p.data = w.frame(p)
	for i := range 3 * samplesKept {
		w.tick = uint32(i)
		w.sampleDrop(p, DropMartian)
	}
	got := w.samples[DropMartian].read(nil, DropMartian)
	if len(got) != samplesKept || got[0].Tick != 2*samplesKept || got[samplesKept-1].Tick != 3*samplesKept-1 {
		t.Errorf("%d samples, from %d to %d", len(got), got[0].Tick, got[len(got)-1].Tick)
	}
	for range 2 * samplesPerTick {
		w.sampleDrop(p, DropMartian)
	}
	if n := w.samples[DropMartian].next.Load(); n != 3*samplesKept+samplesPerTick-1 {
		t.Errorf("%d were taken", n)
	}
	if n := testing.AllocsPerRun(100, func() { w.sampleDrop(p, DropMartian); w.tick++ }); n != 0 {
		t.Errorf("%v allocations per sample", n)
	}
}
