package ratelimit

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/conntrack"
)

const perSecond = conntrack.TicksPerSecond

func limited(rate uint32) *Prefixes {
	p := NewPrefixes([2]uint64{0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9})
	p.Set(PrefixLimit{PerSecond: rate, Bits4: 24, Bits6: 56})
	return p
}

// source is an address as Take has it.
func source(text string) (uint64, uint8) {
	a := netip.MustParseAddr(text)
	if a.Is4() {
		b := a.As4()
		return uint64(binary.LittleEndian.Uint32(b[:])), 4
	}
	b := a.As16()
	return binary.LittleEndian.Uint64(b[:8]), 6
}

// sourceOf is an address of the n-th IPv4 prefix.
func sourceOf(n uint32) uint64 {
	return uint64(n&0xff)<<16 | uint64(n>>8&0xff)<<8 | uint64(n>>16&0xff)
}

// bucket is a prefix by itself: the slow, obvious limit.
type slowBucket struct {
	tokens float64
	tick   uint32
}

func (b *slowBucket) take(rate float64, tick uint32) bool {
	b.tokens = min(rate, b.tokens+rate*float64(tick-b.tick)/perSecond)
	b.tick = tick
	if b.tokens < 1-1e-6 {
		return false
	}
	b.tokens--
	return true
}

// Few prefixes are limited exactly as by a token bucket of each.
func TestPrefixesAreTokenBuckets(t *testing.T) {
	for _, rate := range []uint32{1, 7, 100} {
		rng := rand.New(rand.NewPCG(15, uint64(rate)))
		p := limited(rate)
		const prefixes = 5
		var model [prefixes]slowBucket
		tick := uint32(1<<32 - 3000) // wraps around
		for i := range model {
			model[i] = slowBucket{float64(rate), tick}
		}
		admitted := 0
		for n := range 200_000 {
			if rng.IntN(1+int(rate)) == 0 {
				tick += rng.Uint32N(4)
			}
			i := rng.Uint32N(prefixes)
			want := model[i].take(float64(rate), tick)
			if p.Refuses(sourceOf(i), 4, tick) == want {
				t.Fatalf("rate %d, step %d: Refuses says %v", rate, n, want)
			}
			if got := p.Take(sourceOf(i)|uint64(rng.Uint32())<<24, 4, tick); got != want {
				t.Fatalf("rate %d, step %d, prefix %d: %v, the bucket has %.3f", rate, n, i, got, model[i].tokens)
			}
			if want {
				admitted++
			}
		}
		if admitted < 1000 || admitted > 199_000 {
			t.Errorf("rate %d: %d admitted: the model saw one side only", rate, admitted)
		}
	}
}

// Of many prefixes, whose cells collide, none gets more than a bucket of its own would.
func TestPrefixesNeverGetMoreThanTheRate(t *testing.T) {
	const rate, prefixes = 3, 20_000
	p, rng := limited(rate), rand.New(rand.NewPCG(15, 2))
	model := make([]slowBucket, prefixes)
	tick := uint32(perSecond)
	for i := range model {
		model[i] = slowBucket{rate, tick}
	}
	refused := 0
	for range 20 * perSecond {
		tick++
		for range 2000 { // 32,000 a second, below prefixCells
			i := rng.Uint32N(prefixes)
			if i%8 == 0 {
				i = rng.Uint32N(500) // these are at the rate
			}
			if b := model[i]; p.Take(sourceOf(i), 4, tick) {
				if !model[i].take(rate, tick) {
					t.Fatalf("prefix %d gets more than a bucket: %.3f at %d, now %d", i, b.tokens, b.tick, tick)
				}
			} else if b.take(rate, tick) {
				refused++
			}
		}
	}
	t.Logf("%d of %d refused that a bucket admits", refused, 20*perSecond*2000)
}

// Prefixes that flood refuse hardly any other: with h of them, one in (cells/h)^rows.
func TestPrefixesNeverRefuseTheOthers(t *testing.T) {
	for _, c := range []struct {
		floods, most uint32 // of 20,000 others
	}{{1, 0}, {100, 0}, {1000, 2}, {10_000, 40}} {
		p, tick := limited(10), uint32(perSecond)
		refused := uint32(0)
		for i := range c.floods {
			for p.Take(sourceOf(i), 4, tick) {
			}
		}
		for i := range uint32(20_000) {
			if !p.Take(sourceOf(1<<20+i), 4, tick) {
				refused++
			}
		}
		if refused > c.most {
			t.Errorf("%d prefixes that flood refuse %d of 20,000 others, at most %d expected", c.floods, refused, c.most)
		}
	}
}

// Forged sources of all prefixes, many times what the cells admit at the rate, leave the
// others as they are.
func TestForgedPrefixesExhaustNothing(t *testing.T) {
	const rate, forged, honest = 1, 200_000, 200 // cells admit 65,536 a second
	p, rng := limited(rate), rand.New(rand.NewPCG(15, 3))
	asked, refused := 0, 0
	for tick := range uint32(8 * perSecond) {
		for i := range uint32((forged + honest) / perSecond) {
			if i%(forged/honest) != 0 {
				p.Take(uint64(rng.Uint32()), 4, tick)
				continue
			}
			ok := p.Take(uint64(rng.Uint32()), 4, tick)
			if tick < 2*perSecond {
				continue // the flood begins
			}
			if asked++; !ok {
				refused++
			}
		}
	}
	if refused*20 > asked || asked < 1000 {
		t.Errorf("%d of %d honest connections are refused", refused, asked)
	}
}

// Workers that take at the same time take no more than the rate in sum.
func TestPrefixesOfAllWorkers(t *testing.T) {
	const rate, workers = 5000, 8
	p := limited(rate)
	var taken atomic.Int64
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for range rate {
				if p.Take(sourceOf(7), 4, 99) {
					taken.Add(1)
				}
			}
		})
	}
	running.Wait()
	if n := taken.Load(); n != rate {
		t.Errorf("%d taken, want %d", n, rate)
	}
}

func TestPrefixLengths(t *testing.T) {
	for _, c := range []struct {
		bits4, bits6 uint8
		a, b         string
		same         bool
	}{
		{24, 56, "192.0.2.1", "192.0.2.254", true},
		{24, 56, "192.0.2.1", "192.0.3.1", false},
		{32, 56, "192.0.2.1", "192.0.2.2", false},
		{28, 56, "192.0.2.1", "192.0.2.14", true},
		{28, 56, "192.0.2.1", "192.0.2.17", false},
		{24, 56, "2001:db8:0:100::1", "2001:db8:0:1ff::2", true},
		{24, 56, "2001:db8:0:100::1", "2001:db8:0:200::1", false},
		{24, 64, "2001:db8:0:100::1", "2001:db8:0:101::1", false},
		{24, 64, "2001:db8:0:100::1", "2001:db8:0:100:ffff::1", true},
		{24, 48, "2001:db8:0:100::1", "2001:db8:0:ff00::1", true},
		{24, 48, "2001:db8:0:100::1", "2001:db8:1:100::1", false},
	} {
		p := limited(1)
		p.Set(PrefixLimit{1, c.bits4, c.bits6})
		word, family := source(c.a)
		if !p.Take(word, family, 1) {
			t.Fatalf("%s is refused at first", c.a)
		}
		word, family = source(c.b)
		if got := p.Refuses(word, family, 1); got != c.same {
			t.Errorf("/%d, /%d: %s after %s is refused: %v, want %v", c.bits4, c.bits6, c.b, c.a, got, c.same)
		}
	}
}

// Without a limit nothing is counted; a limit that comes or changes holds from then on.
func TestPrefixLimitChanges(t *testing.T) {
	p := NewPrefixes([2]uint64{1, 2})
	for range 1000 {
		if !p.Take(sourceOf(1), 4, 5) || p.Refuses(sourceOf(1), 4, 5) {
			t.Fatal("refused without a limit")
		}
	}
	admitted := func() (n int) {
		for range 1000 {
			if p.Take(sourceOf(1), 4, 5) {
				n++
			}
		}
		return n
	}
	p.Set(PrefixLimit{PerSecond: 10, Bits4: 24, Bits6: 64})
	if n := admitted(); n != 10 {
		t.Errorf("%d admitted at a rate of 10", n)
	}
	p.Set(PrefixLimit{Bits4: 24, Bits6: 64})
	if n := admitted(); n != 1000 {
		t.Errorf("%d admitted without a limit", n)
	}
	if n := testing.AllocsPerRun(100, func() { p.Take(sourceOf(1), 4, 5) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPrefixes(b *testing.B) {
	for name, rate := range map[string]uint32{"off": 0, "on": 1000} {
		b.Run(name, func(b *testing.B) {
			p, rng := limited(rate), rand.New(rand.NewPCG(1, 1))
			sources := make([]uint64, 1<<16)
			for i := range sources {
				sources[i] = uint64(rng.Uint32())
			}
			for i := range b.N {
				p.Take(sources[i&(1<<16-1)], 4, uint32(i>>16))
			}
		})
	}
}

// A prefix that is new in the last minute before ticks wrap around is admitted.
func TestNewPrefixesBeforeTicksWrapAround(t *testing.T) {
	p := limited(1)
	for second := uint32(60); second > 2; second-- {
		if tick := -second * perSecond; !p.Take(sourceOf(second), 4, tick) {
			t.Fatalf("refused %d s before", second)
		}
	}
}
