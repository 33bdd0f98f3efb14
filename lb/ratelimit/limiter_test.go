package ratelimit

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/conntrack"
)

// all takes tokens for a source until there is none.
func all(l *Limiter, source uint64, tick uint32) (n int) {
	for l.Take(source, tick) {
		n++
	}
	return n
}

func TestASourceGetsItsShareAgain(t *testing.T) {
	l := New(1e6, 1e6, 100)
	if n := all(&l, 7, 5); n != 100 {
		t.Errorf("%d at once", n)
	}
	if n := all(&l, 7, 5+8); n != 50 {
		t.Errorf("%d after half a second", n)
	}
	if n := all(&l, 7, 5+8+16*3600); n != 100 {
		t.Errorf("%d after an hour", n)
	}
	l.Take(7, 1<<32-1)
	if n := all(&l, 7, 3); n < 25 {
		t.Errorf("%d after the clock began anew", n)
	}
}

func TestAllSourcesShareTheTotal(t *testing.T) {
	l := New(10, 3, 100)
	n := 0
	for i := range uint64(50) {
		if l.Take(i, 1) {
			n++
		}
	}
	if n != 3 {
		t.Errorf("%d in total", n)
	}
}

func TestEmptyIsOfTheTotalAlone(t *testing.T) {
	l := New(10, 3, 2)
	if n := all(&l, 1, 1); n != 2 || l.Empty() {
		t.Errorf("%d for a source, want its share; empty: %v", n, l.Empty())
	}
	if n := all(&l, 2, 1); n != 1 || !l.Empty() {
		t.Errorf("%d for another source, want the rest; empty: %v", n, l.Empty())
	}
}

func TestRefill(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, tt := range []struct {
		name  string
		after time.Duration
		want  int
	}{
		{"nothing in no time", 0, 0},
		{"part of a token is none", 90 * time.Millisecond, 0},
		{"two tokens in a quarter of a second", 250 * time.Millisecond, 2},
		{"a burst at most", time.Hour, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := New(10, 4, 1000)
			l.Refill(start) // the first only begins to count
			if n := all(&l, 1, 1); n != 4 {
				t.Fatalf("%d at the start, want the burst", n)
			}
			l.Refill(start.Add(tt.after))
			if n := all(&l, 2, 1); n != tt.want {
				t.Errorf("%d after %v, want %d", n, tt.after, tt.want)
			}
		})
	}
}

// A flood from some sources leaves a quiet source its share.
func TestAFloodLeavesOthersTheirShare(t *testing.T) {
	l := New(1000, 1000, 50)
	for source := range uint64(10) {
		all(&l, source, 1)
	}
	if n := all(&l, 500, 1); n != 50 {
		t.Errorf("a quiet source gets %d of 50", n)
	}
}

// In n seconds a source takes at most n+1 shares, and all sources together at
// most the burst and the refills.
func TestLimitsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const perSecond, burst, perSource = 200, 40, 16
		l := New(perSecond, burst, perSource)
		now, tick := time.Unix(1000, 0), rapid.Uint32().Draw(t, "tick")
		l.Refill(now)
		ticks := rapid.IntRange(1, 3*conntrack.TicksPerSecond).Draw(t, "ticks")
		total, of := 0, map[uint64]int{}
		for range ticks {
			for range rapid.IntRange(0, 60).Draw(t, "asked") {
				source := rapid.Uint64Range(0, 4).Draw(t, "source")
				if l.Take(source, tick) {
					total++
					of[source]++
				}
			}
			tick++
			now = now.Add(time.Second / conntrack.TicksPerSecond)
			l.Refill(now)
		}
		seconds := float64(ticks) / conntrack.TicksPerSecond
		if most := burst + perSecond*seconds; float64(total) > most {
			t.Errorf("%d in total, at most %v", total, most)
		}
		for source, n := range of {
			if most := perSource * (1 + seconds); float64(n) > most {
				t.Errorf("%d of source %d, at most %v", n, source, most)
			}
		}
	})
}

func TestNoAllocationPerToken(t *testing.T) {
	l := New(1e9, 1e9, 1e6)
	if n := testing.AllocsPerRun(100, func() { l.Take(1, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTake(b *testing.B) {
	l := New(1e9, 1e9, 1e6)
	b.ReportAllocs()
	var source uint64
	for b.Loop() {
		source++
		l.Take(source, uint32(source>>10))
	}
}

// Refuses says what Take does, and a Take that refuses may be left out.
func TestRefusesIsTakeWithoutAToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSource := rapid.Uint32Range(0, 20).Draw(t, "per source")
		burst := float64(rapid.IntRange(0, 100).Draw(t, "burst"))
		all, some := New(0, burst, perSource), New(0, burst, perSource)
		tick := rapid.Uint32().Draw(t, "tick")
		for range rapid.IntRange(1, 200).Draw(t, "packets") {
			tick += rapid.SampledFrom([]uint32{0, 0, 0, 1, 2, 15, 16, 17, 100}).Draw(t, "ticks")
			source := rapid.Uint64Range(0, 3).Draw(t, "source")
			refused := some.Refuses(source, tick)
			if !refused && !some.Take(source, tick) {
				t.Fatal("Take refuses a source that Refuses does not")
			}
			if all.Take(source, tick) == refused {
				t.Fatalf("refused: %v, and Take says otherwise", refused)
			}
		}
	})
}
