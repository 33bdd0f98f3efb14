package worker

import "testing"

// A port gets more frames when packets pile up, as many as the ring holds. It gets fewer
// when they no longer do, or when there is no end of them.
func TestFillLevelFollowsPiles(t *testing.T) {
	const ring = 4096
	b := newBench(t)
	p := &b.w.ports[portClient]
	p.Ring = ring
	f := &p.fill
	expect := func(when string, want int) {
		t.Helper()
		if got := f.level(ring); got != want {
			t.Fatalf("%s: %d frames, want %d", when, got, want)
		}
	}
	row := func(packets int) {
		for ; packets > 0; packets -= batchSize {
			f.received(batchSize, ring)
		}
	}
	expect("at first", minFill)
	for range 1000 {
		f.received(batchSize-1, ring)
		f.received(batchSize, ring)
	}
	expect("with batches that end", minFill)
	f.received(1, ring)
	row(minFill)
	expect("after a pile", 2*minFill)
	row(ring)
	expect("after a larger one", ring)
	f.received(1, ring)
	for range 2*shrinkTicks + 3 {
		b.w.tick++
		shrinkFill(b.w.ports, b.w.tick)
	}
	expect("some time later", minFill)
	row(2 * overloadRow)
	expect("under overload", minFill)
	f.received(1, ring)
	row(minFill)
	expect("after it", 2*minFill)
	if got := (&fillDepth{}).level(64); got != 64 {
		t.Errorf("a ring of 64 gets %d frames", got)
	}
}
