// Package ratelimit bounds how many packets a worker makes by itself, in total and per
// source (Limiter, of a single worker), and how many connections the sources of a prefix
// begin (Prefixes, of all workers). It reads no clock.
package ratelimit

import (
	"time"

	"github.com/weirlb/weir/conntrack"
)

// Limiter is a token bucket for all sources together, with a share of it for
// each: a source that floods, or a forged source address, leaves the rest to all
// others. Sources share a place when their hashes collide.
type Limiter struct {
	total bucket
	// perSource is how many tokens a source may take per second, and at once.
	perSource uint32
	sources   [1024]usage
}

// usage is the number of tokens that the sources of one place have taken lately,
// in 1/TicksPerSecond of a token, as of a tick.
type usage struct{ used, tick uint32 }

// New returns a limiter of perSecond tokens a second in total, of which burst
// may be taken at once, and perSource for each source.
func New(perSecond, burst float64, perSource uint32) Limiter {
	return Limiter{
		total:     bucket{tokens: burst, burst: burst, perSecond: perSecond},
		perSource: perSource,
	}
}

// Refill adds the tokens of the time since the last call. It is meant to be
// called once per tick.
func (l *Limiter) Refill(now time.Time) { l.total.refill(now) }

// Empty reports whether Take would refuse every source: in a flood the hash of the source
// is not needed.
func (l *Limiter) Empty() bool { return l.total.tokens < 1 }

// Take takes a token for the source with this hash, and reports whether there
// was one. tick counts as conntrack.Table.Tick does and may wrap around.
func (l *Limiter) Take(source uint64, tick uint32) bool {
	s := &l.sources[source%uint64(len(l.sources))]
	s.used, s.tick = l.usedBy(s, tick), tick
	if s.used+token > l.perSource*token || !l.total.take() {
		return false
	}
	s.used += token
	return true
}

// Refuses reports whether Take would refuse the source. It writes nothing: in a flood such a
// Take need not be called.
func (l *Limiter) Refuses(source uint64, tick uint32) bool {
	return l.Empty() || l.usedBy(&l.sources[source%uint64(len(l.sources))], tick)+token > l.perSource*token
}

// token is a token in the unit of usage.
const token = conntrack.TicksPerSecond

// usedBy returns the tokens of a place as of now.
func (l *Limiter) usedBy(s *usage, tick uint32) uint32 {
	since := tick - s.tick
	if since >= conntrack.TicksPerSecond {
		return 0
	}
	return s.used - min(s.used, since*l.perSource)
}

// bucket is a token bucket: refilled once per tick, taken from per packet.
type bucket struct {
	tokens, burst float64
	perSecond     float64
	last          time.Time
}

func (b *bucket) refill(now time.Time) {
	if !b.last.IsZero() {
		b.tokens = min(b.burst, b.tokens+now.Sub(b.last).Seconds()*b.perSecond)
	}
	b.last = now
}

func (b *bucket) take() bool {
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
