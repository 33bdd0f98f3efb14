package lb

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/weirlb/weir/conntrack"
)

// What a worker makes by itself at most, per second: RSTs for a whole service
// that has just lost its endpoints, ICMP errors as Linux limits its own
// (net.ipv4.icmp_msgs_per_sec), and answers to pings. The limits per source
// leave room for a gateway behind which there are many.
const (
	resetsPerSecond = 10000
	resetsPerSource = 1000
	errorsPerSecond = 1000
	errorsPerSource = 50
	echoesPerSecond = 1000
	echoesPerSource = 50
)

// limiter bounds answers of one kind, in total and per source, so that one
// source that floods, or whose address somebody else writes into packets, does
// not use up what all others may get.
type limiter struct {
	total bucket
	// perSource is how many a source may get per second, and at once.
	perSource uint32
	sources   [1024]sourceTokens
}

// sourceTokens is what the sources that hash to one place have used of late, in
// 1/TicksPerSecond answers, at a tick.
type sourceTokens struct{ used, tick uint32 }

func newLimiter(perSecond, burst float64, perSource uint32) limiter {
	return limiter{total: newBucket(perSecond, burst), perSource: perSource}
}

// take says whether an answer may be made now to the source with this hash.
func (l *limiter) take(source uint64, tick uint32) bool {
	s := &l.sources[source%uint64(len(l.sources))]
	if since := tick - s.tick; since >= conntrack.TicksPerSecond {
		s.used = 0
	} else {
		s.used -= min(s.used, since*l.perSource)
	}
	s.tick = tick
	if s.used+conntrack.TicksPerSecond > l.perSource*conntrack.TicksPerSecond || !l.total.take() {
		return false
	}
	s.used += conntrack.TicksPerSecond
	return true
}

// source is the hash by which limits tell who sent packet i: an IPv4 address,
// or the /64 that an IPv6 host may have all to itself.
func (w *worker) source(b *batch, i int) uint64 {
	p := &b.pkt[i]
	return w.sourceOf(w.frame(b, i)[p.L3:], p.Family)
}

func (w *worker) sourceOf(ip []byte, family uint8) uint64 {
	v := binary.LittleEndian.Uint64(ip[8:])
	if family == 4 {
		v = uint64(binary.LittleEndian.Uint32(ip[12:]))
	}
	seed := w.table.Seed()
	hi, lo := bits.Mul64(v^seed[0], seed[1]|1)
	return hi ^ lo
}

// bucket is a token bucket: refilled once per tick, taken from per packet.
type bucket struct {
	tokens, burst float64
	perSecond     float64
	last          time.Time
}

func newBucket(perSecond, burst float64) bucket {
	return bucket{tokens: burst, burst: burst, perSecond: perSecond}
}

func (k *bucket) refill(now time.Time) {
	if !k.last.IsZero() {
		k.tokens = min(k.burst, k.tokens+now.Sub(k.last).Seconds()*k.perSecond)
	}
	k.last = now
}

func (k *bucket) take() bool {
	if k.tokens < 1 {
		return false
	}
	k.tokens--
	return true
}
