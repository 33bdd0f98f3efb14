package conntrack

import (
	"encoding/binary"
	"sync/atomic"
)

// numbers are the stored sequence numbers of both sides, see Conn.
type numbers struct{ client, endpoint, extra uint32 }

func (n *numbers) of(client bool) *uint32 {
	if client {
		return &n.client
	}
	return &n.endpoint
}

func (c *Conn) numbers() (client, endpoint, extra uint32) {
	return atomic.LoadUint32(&c.clientNext), atomic.LoadUint32(&c.endpointNext), atomic.LoadUint32(&c.extra)
}

// claim keeps other workers from changing numbers and state of the connection in state word
// s, until setState moves the state on. A FIN without its number, or a noted number of the
// wrong segment, would come of two changes at the same time. It reports false when the state
// is not s any more.
func (c *Conn) claim(s *uint32) bool {
	if *s&changing == 0 && !atomic.CompareAndSwapUint32(&c.state, *s, *s|changing) {
		return false
	}
	*s |= changing
	return true
}

// mostLoads bounds the wait for another worker's change: longer than a change takes, which
// is some stores. A worker that was stopped in between, or whose process has ended, must not
// stop others.
const mostLoads = 256

// unchanging waits for the end of another worker's change and returns the state word.
func (c *Conn) unchanging() (s uint32) {
	for range mostLoads {
		if s = atomic.LoadUint32(&c.state); s&changing == 0 {
			break
		}
	}
	return s
}

// remember stores the numbers of n in a claimed connection, which were client, endpoint and
// extra. It reports false when another worker has changed them since: in Sample, or after
// mostLoads. The claim stays, and the next attempt goes on with it after mostLoads.
func (c *Conn) remember(client, endpoint, extra uint32, n *numbers) bool {
	return replace(&c.clientNext, client, n.client) &&
		replace(&c.endpointNext, endpoint, n.endpoint) &&
		replace(&c.extra, extra, n.extra)
}

func replace(p *uint32, was, n uint32) bool {
	return n == was || atomic.CompareAndSwapUint32(p, was, n)
}

// nearby bounds the product of the distances of a segment's sequence and acknowledgment
// number from those that are known: a megabyte in each direction since the last sample
// passes, or a terabyte in a single direction. Of all pairs of numbers 1 in 800,000 is
// nearby.
const nearby = 1 << 40

// milestone is the number of bytes of a side after which a segment is sampled, besides the
// first of a tick: a busy connection sends more than a megabyte in each direction within a
// tick. With it up to 16 MB in each direction may be unacknowledged.
const milestone = 1 << 16

// Milestone reports whether a segment or packet must be passed to [Conn.Sample] besides the
// first of a direction in a tick. It has length bytes and sequence number seq.
func Milestone(seq, length uint32) bool { return seq&(milestone-1) < length }

// plausibly bounds each distance of a RST or FIN that is ignored, but raises doubt: 64 MB,
// a tick at 8 Gbit/s.
const plausibly = 1 << 26

// unknownSpan is the distance from a number that is not known.
const unknownSpan = 1 << 31

// span is the absolute distance of two sequence numbers, plus one.
func span(d uint32) uint64 {
	if int32(d) < 0 {
		d = -d
	}
	return uint64(d) + 1
}

// Sample notes the numbers of a segment with ACK of an established connection: forward says
// that it is the client's, end is the sequence number after its payload. The caller calls
// it for the first segment of a direction in a tick, and at each [Milestone]. Sample leaves out
// a segment whose numbers are far from those of the last sample, and returns false. Such a
// segment is not of this connection, or cannot be told from a foreign segment.
func (c *Conn) Sample(forward bool, seq, end, ack uint32) (near bool) {
	own, other := &c.clientNext, &c.endpointNext
	if !forward {
		own, other = other, own
	}
	o, a := atomic.LoadUint32(own), atomic.LoadUint32(other)
	if span(seq-o)*span(ack-a) > nearby {
		return false
	}
	if int32(end-o) > 0 {
		storeRelaxed(own, end)
	}
	if int32(ack-a) > 0 {
		// Not in place of the number of a FIN that another worker has seen since.
		atomic.CompareAndSwapUint32(other, a, ack)
	}
	return true
}

// catchUp notes numbers that [Entry.Note] has left in an entry. The Conn is behind them by less than
// a block. Numbers that are further ahead are old, or foreign: packets that take another path, in
// the kernel for example, are not noted in the entry. After 2 GB of these its numbers seem to be
// ahead. Any goroutine may call catchUp: it replaces no number that is stored meanwhile.
func (c *Conn) catchUp(forward bool, end, ack uint32) {
	own, other := &c.clientNext, &c.endpointNext
	if !forward {
		own, other = other, own
	}
	o, a := atomic.LoadUint32(own), atomic.LoadUint32(other)
	ahead, acked := int32(end-o), int32(ack-a)
	if max(ahead, acked) >= milestone || span(end-o)*span(ack-a) > nearby {
		return
	}
	if ahead > 0 {
		atomic.CompareAndSwapUint32(own, o, end)
	}
	if acked > 0 {
		atomic.CompareAndSwapUint32(other, a, ack)
	}
}

// sides returns the known numbers of segment g's sender and receiver,
// whether the sender's is known, and whether it includes a FIN.
func (k *tracker) sides(g *Segment) (own, other uint32, known, fin bool) {
	if g.forward {
		return k.n.client, k.n.endpoint, k.is(clientKnown), k.is(finClient)
	}
	return k.n.endpoint, k.n.client, k.is(endpointKnown), k.is(finEndpoint)
}

// near reports whether segment g, which has an ACK, belongs to the connection by its
// numbers. While none are known it does.
func (k *tracker) near(g *Segment) bool {
	if !k.is(clientKnown | endpointKnown) {
		return true
	}
	seq, ack := uint64(unknownSpan), uint64(unknownSpan)
	own, other, _, _ := k.sides(g)
	ownBit, otherBit := uint32(endpointKnown), uint32(clientKnown)
	if g.forward {
		ownBit, otherBit = otherBit, ownBit
	}
	if k.is(ownBit) {
		seq = span(g.Seq - own)
	}
	if k.is(otherBit) {
		ack = span(g.Ack - other)
	}
	return seq*ack <= nearby
}

// plausible reports whether the numbers of a RST or FIN may be right although they are not
// the expected numbers: sampled numbers are behind by the bytes sent since.
func (k *tracker) plausible(g *Segment) bool {
	own, other, known, _ := k.sides(g)
	return known && span(g.Seq-own) < plausibly && (!g.has(flagACK) || span(g.Ack-other) < plausibly)
}

// leavesPlausible reports whether FIN g, which is near, leaves the numbers of a living
// connection plausible: the receiver's next segment can raise doubt about it.
func (k *tracker) leavesPlausible(g *Segment) bool {
	own, other, known, _ := k.sides(g)
	return !known || span(g.Seq-own) < plausibly/2 && span(g.Ack-other) < plausibly/2
}

// learn notes the numbers of segment g: those that are higher. A FIN's stays as it is.
func (k *tracker) learn(g *Segment) {
	ownBit, otherBit, ownFin, otherFin := uint32(endpointKnown), uint32(clientKnown), uint32(finEndpoint), uint32(finClient)
	if g.forward {
		ownBit, otherBit, ownFin, otherFin = otherBit, ownBit, otherFin, ownFin
	}
	if own := k.n.of(g.forward); !k.is(ownBit) || !k.is(ownFin) && int32(g.end()-*own) > 0 {
		*own = g.end()
	}
	if other := k.n.of(!g.forward); !k.is(otherBit) || !k.is(otherFin) && int32(g.Ack-*other) > 0 {
		*other = g.Ack
	}
	k.s |= clientKnown | endpointKnown
}

// timestamp keeps the client's last timestamp once the connection closes: the
// endpoint's TIME_WAIT will know it.
func (k *tracker) timestamp(g *Segment) {
	if !g.forward || !k.is(finBits) {
		return
	}
	ts, ok := timestamp(g.Options)
	if !ok {
		return
	}
	if !k.is(tsKnown) || int32(ts-k.n.extra) > 0 {
		k.n.extra = ts
	}
	k.s = k.s&^(synNoted|synAckNoted) | tsKnown
}

// timestamp returns TSval of a TCP timestamps option (RFC 7323, section 3.2).
func timestamp(options []byte) (uint32, bool) {
	for len(options) > 0 {
		switch options[0] {
		case 0: // end of list
			return 0, false
		case 1: // no operation
			options = options[1:]
			continue
		}
		if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
			return 0, false
		}
		if options[0] == 8 && options[1] == 10 {
			return binary.BigEndian.Uint32(options[2:]), true
		}
		options = options[options[1]:]
	}
	return 0, false
}

// Timestamp returns the TSval of a SYN's options, for [NewFlow].
func Timestamp(options []byte) (tsval uint32, ok bool) { return timestamp(options) }
