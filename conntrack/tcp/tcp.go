// Package tcp follows TCP connections: [Tracker.Follow] changes a state word and three sequence
// numbers by a segment. Handshakes are in open.go, FIN and RST in close.go, the comparison of sequence
// numbers in numbers.go. README.md in the folder above compares the states with nf_conntrack's, and
// lists the effects of forged segments.
package tcp

import "github.com/weirlb/weir/conntrack/flowstate"

// TCP header flags (RFC 9293, section 3.1).
const (
	FlagFIN = 0x01
	FlagSYN = 0x02
	FlagRST = 0x04
	FlagPSH = 0x08
	FlagACK = 0x10
)

// Segment is a TCP segment whose connection [Tracker.Follow] follows.
type Segment struct {
	Flags uint8 // byte 13 of the header
	// Seq and Ack are the sequence and acknowledgment numbers in host order.
	Seq, Ack uint32
	// Length is the number of bytes after the header.
	Length uint32
	// Options are the bytes between the fixed header and the payload. They are read only
	// while the connection closes, for the timestamp of RFC 7323.
	Options []byte

	// Resent is set by Table.TrackTCP for a SYN, SYN-ACK or FIN that this side has sent before, with
	// the same sequence number.
	Resent bool

	Forward bool // from the client; set by Table.TrackTCP
}

// Has reports whether the segment has a flag of flag.
func (g *Segment) Has(flag uint8) bool { return g.Flags&flag != 0 }

// end returns the sequence number after the segment.
func (g *Segment) end() uint32 {
	if g.Has(FlagFIN | FlagSYN) {
		return g.Seq + g.Length + 1
	}
	return g.Seq + g.Length
}

// A Tracker is a connection's TCP state while a segment changes it.
type Tracker struct {
	Word    uint32 // the state word
	Numbers Numbers
	Tick    uint32
	Idle    uint32 // ticks since the last sign of life
	Created uint32
	Heard   bool // the segment counts as a sign of life
	Resent  bool // the segment is a SYN, SYN-ACK or FIN that was seen before
}

func (k *Tracker) state() flowstate.State       { return flowstate.Of(k.Word) }
func (k *Tracker) is(bits uint32) bool          { return k.Word&bits != 0 }
func (k *Tracker) become(state flowstate.State) { k.Word = k.Word&^flowstate.Mask | uint32(state) }

// Follow changes the state by segment g. Combinations of flags that no TCP sends
// change nothing, as in nf_conntrack (tcp_valid_flags).
func (k *Tracker) Follow(g *Segment) flowstate.Verdict {
	switch g.Flags & (FlagFIN | FlagSYN | FlagRST | FlagACK) {
	case FlagRST, FlagRST | FlagACK:
		k.reset(g)
	case FlagSYN:
		if g.Forward {
			return k.syn(g)
		}
	case FlagSYN | FlagACK:
		if !g.Forward {
			k.synAck(g)
		}
	case FlagACK, FlagFIN | FlagACK:
		k.Resent = k.repeatsFIN(g)
		k.proceed(g)
	}
	return flowstate.Pass
}

// proceed handles segments without SYN and RST.
func (k *Tracker) proceed(g *Segment) {
	switch k.completesNoted(g); k.state() {
	case flowstate.SynSent:
		if !k.completesDSR(g) && !k.revives(g) {
			return
		}
	case flowstate.SynRecv:
		if !k.completes(g) {
			return
		}
	case flowstate.Close:
		if !k.revives(g) {
			return
		}
	case flowstate.TimeWait:
		k.Heard = k.near(g)
		return
	}
	if !k.near(g) || g.Has(FlagFIN) && !k.leavesPlausible(g) {
		k.outOfSight(g)
		return
	}
	k.Heard = true
	k.confirm(g)
	if k.is(flowstate.Young) && k.Tick-k.Created > FreshTicks && k.is(flowstate.ClientKnown) && k.is(flowstate.EndpointKnown) {
		k.Word &^= flowstate.Young
	}
	k.fins(g)
}

// outOfSight handles a segment that is not near. An established connection that moves too
// much between samples is lost sight of: it lives by its packets, and goes by its timeout.
// While a connection closes, the FINs may have been forged, and the numbers with them.
func (k *Tracker) outOfSight(g *Segment) {
	k.Heard = k.state() != flowstate.LastAck
	switch {
	case !k.plausible(g):
	case k.is(flowstate.FinBits):
		k.Heard = true
		k.Word |= flowstate.Doubted
	case g.Has(FlagFIN):
		k.doubt()
	}
}

// confirm ends the doubt about a connection whose segment g is, and forgets the noted SYN or
// SYN-ACK. A FIN stays in doubt until it is acknowledged or sent again.
func (k *Tracker) confirm(g *Segment) {
	settled := k.settled(g)
	again := k.is(flowstate.Doubted|flowstate.Unconfirmed) || settled && k.is(flowstate.SynAckNoted)
	k.Word &^= flowstate.Unconfirmed
	if settled && (k.state() == flowstate.Established || k.repeatsFIN(g)) {
		k.Word &^= flowstate.Doubted
	}
	if again && k.state() == flowstate.Established && !k.is(flowstate.Doubted) {
		k.Word &^= flowstate.SynNoted | flowstate.SynAckNoted
	}
}

// FreshTicks is the time after the SYN in which the numbers of every segment are noted: a
// connection may live and end within a tick, and Sample would see only the first segment.
const FreshTicks = flowstate.TicksPerSecond / 4

// since notes when the FIN or RST was seen.
func (k *Tracker) since() {
	k.Word = k.Word&^flowstate.SinceMask | k.Tick<<flowstate.SinceShift&flowstate.SinceMask
}

// settled reports whether segment g can no longer have been in flight when the FIN or RST
// passed: the endpoint is near, the client may be far. The ticks are known
// modulo 256: a segment after a longer silence may be taken for an early one, the
// next will not.
func (k *Tracker) settled(g *Segment) bool {
	age := uint8(k.Tick) - uint8(k.Word>>flowstate.SinceShift)
	if g.Forward {
		return age > ClientSettles
	}
	return age > EndpointSettles
}

// After so many ticks a segment of either side's was sent after it had seen a FIN or
// RST that it was to see.
const (
	ClientSettles   = 2 * flowstate.TicksPerSecond
	EndpointSettles = 2
)

// doubt notes that the connection may be over. It then has the timeout of a connection with
// keepalives every two hours, and every segment of either end is examined.
func (k *Tracker) doubt() {
	if k.state() == flowstate.Established {
		k.Word |= flowstate.Doubted
		k.since()
	}
}
