package tcp

import (
	"encoding/binary"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// Numbers are the stored sequence numbers of both sides.
type Numbers struct{ Client, Endpoint, Extra uint32 }

// Of returns the number of a side.
func (n *Numbers) Of(client bool) *uint32 {
	if client {
		return &n.Client
	}
	return &n.Endpoint
}

// Nearby bounds the product of the distances of a segment's sequence and acknowledgment
// number from those that are known: a megabyte in each direction since the last sample
// passes, or a terabyte in a single direction. Of all pairs of numbers 1 in 800,000 is
// nearby.
const Nearby = 1 << 40

// plausibly bounds each distance of a RST or FIN that is ignored, but raises doubt: 64 MB,
// a tick at 8 Gbit/s.
const plausibly = 1 << 26

// unknownSpan is the distance from a number that is not known.
const unknownSpan = 1 << 31

// Span is the absolute distance of two sequence numbers, plus one.
func Span(d uint32) uint64 {
	if int32(d) < 0 {
		d = -d
	}
	return uint64(d) + 1
}

// sides returns the known numbers of segment g's sender and receiver,
// whether the sender's is known, and whether it includes a FIN.
func (k *Tracker) sides(g *Segment) (own, other uint32, known, fin bool) {
	if g.Forward {
		return k.Numbers.Client, k.Numbers.Endpoint, k.is(flowstate.ClientKnown), k.is(flowstate.FinClient)
	}
	return k.Numbers.Endpoint, k.Numbers.Client, k.is(flowstate.EndpointKnown), k.is(flowstate.FinEndpoint)
}

// near reports whether segment g, which has an ACK, belongs to the connection by its
// numbers. While none are known it does.
func (k *Tracker) near(g *Segment) bool {
	if !k.is(flowstate.ClientKnown | flowstate.EndpointKnown) {
		return true
	}
	seq, ack := uint64(unknownSpan), uint64(unknownSpan)
	own, other, _, _ := k.sides(g)
	ownBit, otherBit := uint32(flowstate.EndpointKnown), uint32(flowstate.ClientKnown)
	if g.Forward {
		ownBit, otherBit = otherBit, ownBit
	}
	if k.is(ownBit) {
		seq = Span(g.Seq - own)
	}
	if k.is(otherBit) {
		ack = Span(g.Ack - other)
	}
	return seq*ack <= Nearby
}

// plausible reports whether the numbers of a RST or FIN may be right although they are not
// the expected numbers: sampled numbers are behind by the bytes sent since.
func (k *Tracker) plausible(g *Segment) bool {
	own, other, known, _ := k.sides(g)
	return known && Span(g.Seq-own) < plausibly && (!g.Has(FlagACK) || Span(g.Ack-other) < plausibly)
}

// leavesPlausible reports whether FIN g, which is near, leaves the numbers of a living
// connection plausible: the receiver's next segment can raise doubt about it.
func (k *Tracker) leavesPlausible(g *Segment) bool {
	own, other, known, _ := k.sides(g)
	return !known || Span(g.Seq-own) < plausibly/2 && Span(g.Ack-other) < plausibly/2
}

// learn notes the numbers of segment g: those that are higher. A FIN's stays as it is.
func (k *Tracker) learn(g *Segment) {
	ownBit, otherBit, ownFin, otherFin := uint32(flowstate.EndpointKnown), uint32(flowstate.ClientKnown), uint32(flowstate.FinEndpoint), uint32(flowstate.FinClient)
	if g.Forward {
		ownBit, otherBit, ownFin, otherFin = otherBit, ownBit, otherFin, ownFin
	}
	if own := k.Numbers.Of(g.Forward); !k.is(ownBit) || !k.is(ownFin) && int32(g.end()-*own) > 0 {
		*own = g.end()
	}
	if other := k.Numbers.Of(!g.Forward); !k.is(otherBit) || !k.is(otherFin) && int32(g.Ack-*other) > 0 {
		*other = g.Ack
	}
	k.Word |= flowstate.ClientKnown | flowstate.EndpointKnown
}

// timestamp keeps the client's last timestamp once the connection closes: the
// endpoint's TIME_WAIT will know it.
func (k *Tracker) timestamp(g *Segment) {
	if !g.Forward || !k.is(flowstate.FinBits) {
		return
	}
	ts, ok := Timestamp(g.Options)
	if !ok {
		return
	}
	if !k.is(flowstate.TsKnown) || int32(ts-k.Numbers.Extra) > 0 {
		k.Numbers.Extra = ts
	}
	k.Word = k.Word&^(flowstate.SynNoted|flowstate.SynAckNoted) | flowstate.TsKnown
}

// Timestamp returns TSval of a TCP timestamps option (RFC 7323, section 3.2).
func Timestamp(options []byte) (uint32, bool) {
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
