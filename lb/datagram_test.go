package lb

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/lb/header"
)

// datagramModel is what datagram keeps, written again to be obvious: which
// units of eight bytes have been sent on.
type datagramModel struct {
	sent   [8192]bool
	end    int // bytes, 0: not known
	broken bool
}

func (m *datagramModel) runs() (n int) {
	for i, s := range m.sent {
		if s && (i == 0 || !m.sent[i-1]) {
			n++
		}
	}
	return n
}

func (m *datagramModel) take(f header.Fragment) (Drop, bool) {
	if m.broken {
		return DropFragmentOverlap, false
	}
	end := f.Offset + f.Len
	from, to := f.Offset/8, (end+7)/8
	agrees := true
	switch {
	case m.end > 0 && f.More:
		agrees = end < m.end
	case m.end > 0:
		agrees = end == m.end
	case !f.More:
		agrees = !slices.Contains(m.sent[to:], true)
	}
	if agrees && !slices.Contains(m.sent[from:to], false) {
		return DropFragmentOverlap, false // a duplicate
	}
	if !agrees || slices.Contains(m.sent[from:to], true) {
		m.broken = true
		return DropFragmentOverlap, false
	}
	was := *m
	for i := from; i < to; i++ {
		m.sent[i] = true
	}
	if m.runs() > maxRuns {
		*m = was
		return DropFragmentLimit, false
	}
	if !f.More {
		m.end = end
	}
	return 0, true
}

func (m *datagramModel) complete() bool {
	return m.end > 0 && !slices.Contains(m.sent[:(m.end+7)/8], false)
}

func TestDatagramsAreFollowedAsByTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d datagram
		var m datagramModel
		// Few places, so that fragments meet.
		width := rapid.SampledFrom([]int{6, 40, 6000}).Draw(t, "units")
		for range rapid.IntRange(1, 40).Draw(t, "fragments") {
			units := rapid.IntRange(1, max(1, width/6)).Draw(t, "length")
			f := header.Fragment{Offset: 8 * rapid.IntRange(0, width).Draw(t, "offset"), Len: 8 * units, More: true}
			if rapid.IntRange(0, 9).Draw(t, "last") == 0 {
				f.More = false
				f.Len -= rapid.IntRange(0, 7).Draw(t, "odd")
			}
			reason, ok := d.take(&f)
			wantReason, want := m.take(f)
			if ok != want || !ok && reason != wantReason {
				t.Fatalf("%+v: %v %v, the model says %v %v", f, ok, reason, want, wantReason)
			}
			if d.complete() != m.complete() {
				t.Fatalf("complete: %v, the model says %v", d.complete(), m.complete())
			}
		}
	})
}

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
