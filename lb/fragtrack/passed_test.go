package fragtrack

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/lb/header"
)

// model is a Datagram, written again to be obvious: which units of eight bytes
// have passed.
type model struct {
	passed     [8192]bool
	end        int // bytes, 0: not known
	overlapped bool
}

func (m *model) spans() (n int) {
	for i, s := range m.passed {
		if s && (i == 0 || !m.passed[i-1]) {
			n++
		}
	}
	return n
}

func (m *model) take(f header.Fragment) Verdict {
	if m.overlapped {
		return Overlap
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
		agrees = !slices.Contains(m.passed[to:], true)
	}
	if agrees && !slices.Contains(m.passed[from:to], false) {
		return Overlap // a duplicate
	}
	if !agrees || slices.Contains(m.passed[from:to], true) {
		m.overlapped = true
		return Overlap
	}
	was := *m
	for i := from; i < to; i++ {
		m.passed[i] = true
	}
	if m.spans() > maxSpans {
		*m = was
		return TooMany
	}
	if !f.More {
		m.end = end
	}
	return Pass
}

func (m *model) complete() bool {
	return m.end > 0 && !slices.Contains(m.passed[:(m.end+7)/8], false)
}

func TestDatagramsAreFollowedAsByTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d Datagram
		var m model
		// Few places, so that fragments meet.
		width := rapid.SampledFrom([]int{6, 40, 6000}).Draw(t, "units")
		for range rapid.IntRange(1, 40).Draw(t, "fragments") {
			units := rapid.IntRange(1, max(1, width/6)).Draw(t, "length")
			f := header.Fragment{Offset: 8 * rapid.IntRange(0, width).Draw(t, "offset"), Len: 8 * units, More: true}
			if rapid.IntRange(0, 9).Draw(t, "last") == 0 {
				f.More = false
				f.Len -= rapid.IntRange(0, 7).Draw(t, "odd")
			}
			if got, want := d.Take(&f), m.take(f); got != want {
				t.Fatalf("%+v: %v, the model says %v", f, got, want)
			}
			if d.Begun() != m.passed[0] {
				t.Fatalf("begun: %v, the model says %v", d.Begun(), m.passed[0])
			}
			if d.Complete() != m.complete() {
				t.Fatalf("complete: %v, the model says %v", d.Complete(), m.complete())
			}
		}
	})
}
