package conntrack

import "sync/atomic"

// TCP header flags (RFC 9293, section 3.1).
const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagPSH = 0x08
	flagACK = 0x10
)

// Verdict is the action for a tracked packet.
type Verdict uint8

// Verdicts.
const (
	Pass Verdict = iota
	// Reopen: the client begins a new connection with the tuple of a connection that is
	// over. The caller calls [Worker.Supersede] and creates a new connection.
	Reopen
	// Restart: the client asks for a new connection where a connection was reset. The entry
	// serves it, with the same endpoint and SNAT port, unless the caller deletes it
	// because that endpoint takes no new connections.
	Restart
	// Gone: the connection was deleted after it was looked up, by another worker or
	// by a packet of the same batch. The caller looks again.
	Gone
	// Stale: the endpoint speaks of a connection that the client has followed by
	// another with the same tuple. The packet is to be dropped.
	Stale
)

// Segment is a TCP segment whose connection [Table.TrackTCP] follows.
type Segment struct {
	Flags uint8 // byte 13 of the header
	// Seq and Ack are the sequence and acknowledgment numbers in host order.
	Seq, Ack uint32
	// Length is the number of bytes after the header.
	Length uint32
	// Options are the bytes between the fixed header and the payload. They are read only
	// while the connection closes, for the timestamp of RFC 7323.
	Options []byte

	// Resent is set by TrackTCP for a SYN, SYN-ACK or FIN that this side has sent before, with
	// the same sequence number.
	Resent bool

	forward bool // from the client; set by TrackTCP
}

// TrackTCP follows segment g of the entry r. The caller has verified the checksum of a
// segment with SYN, FIN or RST. TrackTCP keeps no reference to g.
//
// README.md beside this file compares the states with nf_conntrack's, and lists the effects
// of forged segments.
func (t *Table) TrackTCP(r Ref, g *Segment, tick uint32) Verdict {
	c := t.Conn(r)
	s := atomic.LoadUint32(&c.state)
	g.forward = r.Forward()
	if s&(stateMask|slow) == uint32(StateEstablished) && !g.has(flagFIN|flagSYN|flagRST) {
		if (c.LastSeen() != tick || Milestone(g.Seq, g.Length)) && g.has(flagACK) {
			c.Sample(g.forward, g.Seq, g.Seq+g.Length, g.Ack)
		}
		c.Touch(tick)
		return Pass
	}
	return t.track(c, s, g, tick)
}

func (g *Segment) has(flag uint8) bool { return g.Flags&flag != 0 }

// end returns the sequence number after the segment.
func (g *Segment) end() uint32 {
	if g.has(flagFIN | flagSYN) {
		return g.Seq + g.Length + 1
	}
	return g.Seq + g.Length
}

// track is TrackTCP but for established connections that go on.
func (t *Table) track(c *Conn, s uint32, g *Segment, tick uint32) Verdict {
	for ; ; s = atomic.LoadUint32(&c.state) {
		if s&changing != 0 {
			s = c.unchanging()
		}
		if s&superseded != 0 {
			return Stale
		}
		if s&stateMask == 0 {
			return Gone
		}
		// Word by word: copying words that were just stored in parts stalls.
		client, endpoint, extra := c.numbers()
		k := tracker{s: s, tick: tick, idle: c.Idle(tick), created: c.Created()}
		k.n.client, k.n.endpoint, k.n.extra = client, endpoint, extra
		v := k.follow(g)
		if v == Reopen {
			return v
		}
		n := &k.n
		if n.client != client || n.endpoint != endpoint || n.extra != extra {
			if !c.claim(&s) || !c.remember(client, endpoint, extra, n) {
				continue
			}
		}
		if v == Restart {
			storeRelaxed(&c.created, tick)
		}
		if t.setState(c, s, watched(k.s&^changing)) {
			if k.heard {
				c.Touch(tick)
			}
			g.Resent = k.resent
			return v
		}
	}
}

// watched returns s with the slow bit that follows from the other bits.
func watched(s uint32) uint32 {
	if State(s&stateMask) == StateEstablished && s&(doubted|unconfirmed|young|synAckNoted) != 0 {
		return s | slow
	}
	return s &^ slow
}

// A tracker is a connection's TCP state while a segment changes it.
type tracker struct {
	s       uint32 // the state word
	n       numbers
	tick    uint32
	idle    uint32 // ticks since the last sign of life
	created uint32
	heard   bool // the segment counts as a sign of life
	resent  bool // the segment is a SYN, SYN-ACK or FIN that was seen before
}

func (k *tracker) state() State        { return State(k.s & stateMask) }
func (k *tracker) is(bits uint32) bool { return k.s&bits != 0 }
func (k *tracker) become(state State)  { k.s = k.s&^stateMask | uint32(state) }

// follow changes the state by segment g. Combinations of flags that no TCP sends
// change nothing, as in nf_conntrack (tcp_valid_flags).
func (k *tracker) follow(g *Segment) Verdict {
	switch g.Flags & (flagFIN | flagSYN | flagRST | flagACK) {
	case flagRST, flagRST | flagACK:
		k.reset(g)
	case flagSYN:
		if g.forward {
			return k.syn(g)
		}
	case flagSYN | flagACK:
		if !g.forward {
			k.synAck(g)
		}
	case flagACK, flagFIN | flagACK:
		k.resent = k.repeatsFIN(g)
		k.proceed(g)
	}
	return Pass
}

// proceed handles segments without SYN and RST.
func (k *tracker) proceed(g *Segment) {
	switch k.completesNoted(g); k.state() {
	case StateSynSent:
		if !k.completesDSR(g) && !k.revives(g) {
			return
		}
	case StateSynRecv:
		if !k.completes(g) {
			return
		}
	case StateClose:
		if !k.revives(g) {
			return
		}
	case StateTimeWait:
		k.heard = k.near(g)
		return
	}
	if !k.near(g) || g.has(flagFIN) && !k.leavesPlausible(g) {
		k.outOfSight(g)
		return
	}
	k.heard = true
	k.confirm(g)
	if k.is(young) && k.tick-k.created > freshTicks && k.is(clientKnown) && k.is(endpointKnown) {
		k.s &^= young
	}
	k.fins(g)
}

// outOfSight handles a segment that is not near. An established connection that moves too
// much between samples is lost sight of: it lives by its packets, and goes by its timeout.
// While a connection closes, the FINs may have been forged, and the numbers with them.
func (k *tracker) outOfSight(g *Segment) {
	k.heard = k.state() != StateLastAck
	switch {
	case !k.plausible(g):
	case k.is(finBits):
		k.heard = true
		k.s |= doubted
	case g.has(flagFIN):
		k.doubt()
	}
}

// confirm ends the doubt about a connection whose segment g is, and forgets the noted SYN or
// SYN-ACK. A FIN stays in doubt until it is acknowledged or sent again.
func (k *tracker) confirm(g *Segment) {
	settled := k.settled(g)
	again := k.is(doubted|unconfirmed) || settled && k.is(synAckNoted)
	k.s &^= unconfirmed
	if settled && (k.state() == StateEstablished || k.repeatsFIN(g)) {
		k.s &^= doubted
	}
	if again && k.state() == StateEstablished && !k.is(doubted) {
		k.s &^= synNoted | synAckNoted
	}
}

// freshTicks is the time after the SYN in which the numbers of every segment are noted: a
// connection may live and end within a tick, and Sample would see only the first segment.
const freshTicks = TicksPerSecond / 4

// since notes when the FIN or RST was seen.
func (k *tracker) since() {
	k.s = k.s&^sinceMask | k.tick<<sinceShift&sinceMask
}

// settled reports whether segment g can no longer have been in flight when the FIN or RST
// passed: the endpoint is near, the client may be far. The ticks are known
// modulo 256: a segment after a longer silence may be taken for an early one, the
// next will not.
func (k *tracker) settled(g *Segment) bool {
	age := uint8(k.tick) - uint8(k.s>>sinceShift)
	if g.forward {
		return age > clientSettles
	}
	return age > endpointSettles
}

// After so many ticks a segment of either side's was sent after it had seen a FIN or
// RST that it was to see.
const (
	clientSettles   = 2 * TicksPerSecond
	endpointSettles = 2
)

// doubt notes that the connection may be over. It then has the timeout of a connection with
// keepalives every two hours, and every segment of either end is examined.
func (k *tracker) doubt() {
	if k.state() == StateEstablished {
		k.s |= doubted
		k.since()
	}
}
