package worker

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// The time from a client's first SYN to the SYN-ACK of the endpoint, in the modes in which
// answers pass here. SYNs are noted in a small table, by the number of the connection, where
// another may displace them: times are a sample under load. The clock is read once
// per batch with a SYN or SYN-ACK.
const (
	handshakeSlots = 1 << 12
	// handshakesPerBatch is how many SYNs of a batch are noted: a flood costs no more.
	handshakesPerBatch = 8
)

// handshakeBounds are the upper bounds of the buckets, in microseconds.
var handshakeBounds = [...]uint32{
	100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 3_000_000,
}

const handshakeBuckets = len(handshakeBounds) + 1

// handshakeTimes are the SYNs that wait for an answer: the number of the connection + 1 in
// the upper half, the time of the SYN in the lower.
type handshakeTimes [handshakeSlots]atomic.Uint64

// handshakeClock is a worker's clock for them, in microseconds.
type handshakeClock struct {
	now  uint32 // of this batch; 0: not read
	left int    // SYNs that may still be noted in this batch
}

// handshakeEpoch is when the workers' clocks begin: it is the same for all of them.
var handshakeEpoch = time.Now()

func (c *handshakeClock) beginBatch() { c.now, c.left = 0, handshakesPerBatch }

func (c *handshakeClock) read() uint32 {
	if c.now == 0 {
		c.now = max(1, uint32(time.Since(handshakeEpoch).Microseconds()))
	}
	return c.now
}

// noteSYN notes the SYN that made the connection of r.
func (w *attemptWatch) noteSYN(r conntrack.Ref) {
	if w.clock.left == 0 {
		return
	}
	w.clock.left--
	conn := r.Conn()
	w.handshakes[conn%handshakeSlots].Store(uint64(conn+1)<<32 | uint64(w.clock.read()))
}

// noteSYNACK counts the time since the SYN of connection c, of reverse entry r, if it was
// noted.
func (w *attemptWatch) noteSYNACK(c *conntrack.Conn, r conntrack.Ref, tick uint32) {
	conn := r.Conn()
	slot := &w.handshakes[conn%handshakeSlots]
	v := slot.Load()
	if uint32(v>>32) != conn+1 || !slot.CompareAndSwap(v, 0) {
		return
	}
	micros := w.clock.read() - uint32(v)
	// The number may be that of an earlier connection, whose SYN nobody answered.
	const perTick = 1_000_000 / conntrack.TicksPerSecond
	age := int64(int32(tick-c.Created())) * perTick
	if diff := int64(micros) - age; diff < -2*perTick || diff > 2*perTick {
		return
	}
	s := w.services.of(atomic.LoadUint32(&c.ServiceID))
	if s == nil {
		return
	}
	bucket := handshakeBucket(micros)
	storeRelaxed(&s[serviceTimes+bucket], s[serviceTimes+bucket]+1)
	storeRelaxed(&s[serviceAnswered], s[serviceAnswered]+1)
	storeRelaxed(&s[serviceAnswered+1], s[serviceAnswered+1]+uint64(min(micros, math.MaxInt32)))
}

// countResent counts a segment with these flags that came again, for the Service of c.
func (w *attemptWatch) countResent(c *conntrack.Conn, flags uint8) {
	word := serviceResent + 2 // FIN
	switch {
	case flags&(header.SYN|header.ACK) == header.SYN|header.ACK:
		word = serviceResent + 1
	case flags&header.SYN != 0:
		word = serviceResent
	}
	w.services.add(atomic.LoadUint32(&c.ServiceID), word, 1)
}

func handshakeBucket(micros uint32) int {
	for i, bound := range handshakeBounds {
		if micros <= bound {
			return i
		}
	}
	return handshakeBuckets - 1
}

// isSYNACK reports whether packet p is a SYN-ACK.
func isSYNACK(p *pkt) bool {
	return p.Flags&(header.SYN|header.ACK|header.RST) == header.SYN|header.ACK
}
