package worker

import (
	"testing"
)

func TestOverlapsEndADatagram(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		whole := long(v6).build(t)
		f := cut(t, whole, 5, pieces...)
		b.w.beginRound()
		sent := func(frame []byte) bool {
			t.Helper()
			b.give(portClient, frame)
			return len(b.roundAtTheSameTime()[portServer]) == 1
		}
		if !sent(f[0]) || !sent(f[1]) {
			t.Fatalf("v6=%v: nothing was sent: %v", v6, b.drops())
		}
		if sent(f[1]) || sent(f[0]) {
			t.Errorf("v6=%v: a duplicate was sent", v6)
		}
		if !sent(f[2]) {
			t.Errorf("v6=%v: a duplicate ended the datagram", v6)
		}
		if sent(cut(t, whole, 5, 0, 3592)[1]) {
			t.Errorf("v6=%v: an overlapping fragment was sent", v6)
		}
		if sent(f[3]) {
			t.Errorf("v6=%v: the datagram can be put together after an overlap", v6)
		}
		if n := b.drops()[DropFragmentOverlap.String()]; n != 4 {
			t.Errorf("v6=%v: drops %v", v6, b.drops())
		}
		b.framesHome()
	}
}

// An identification is free when its datagram is through, or lost.
func TestIdentificationsAreUsedAgain(t *testing.T) {
	b := newBench(t)
	f := cut(t, long(false).build(t), 5, pieces...)
	b.w.beginRound()
	send := func(frames ...[]byte) (ids []uint32) {
		for _, x := range frames {
			b.give(portClient, x)
		}
		for _, x := range b.roundAtTheSameTime()[portServer] {
			ids = append(ids, identification(t, x))
		}
		return ids
	}
	one, two := send(f...), send(f...)
	if len(one) != 4 || len(two) != 4 || one[0] == two[0] {
		t.Errorf("identifications %v, then %v", one, two)
	}
	lost := send(f[:3]...)
	b.w.tick += secondTicks
	again := send(f...)
	if len(lost) != 3 || len(again) != 4 || again[3] != again[0] || again[0] == lost[0] {
		t.Errorf("identifications %v of a datagram that was lost, then %v", lost, again)
	}
	b.framesHome()
}
