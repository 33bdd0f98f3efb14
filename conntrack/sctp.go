package conntrack

import "sync/atomic"

// SCTP chunk types (RFC 9260, section 3.2) that move an association. Each is a bit
// of [SCTPPacket.Chunks].
const (
	chunkInit             = 1 << 1
	chunkAbort            = 1 << 6
	chunkShutdown         = 1 << 7
	chunkShutdownAck      = 1 << 8
	chunkCookieEcho       = 1 << 10
	chunkCookieAck        = 1 << 11
	chunkShutdownComplete = 1 << 14
)

// SCTPPacket has the fields of an SCTP packet that determine the state of the association.
type SCTPPacket struct {
	Tag         uint32 // verification tag
	InitiateTag uint32 // of an INIT
	Chunks      uint16 // 1<<type of every chunk of a type below 16
	Reflected   bool   // ABORT or SHUTDOWN COMPLETE with the T bit
}

func (g *SCTPPacket) has(chunks uint16) bool { return g.Chunks&chunks != 0 }

// TrackSCTP follows an SCTP packet of the entry r. The states are those of
// nf_conntrack_proto_sctp, the two of each step of the handshake and of the shutdown
// taken together.
//
// Only the endpoint knows whether a cookie is good: the COOKIE ACK makes the association.
// The tags are not learned anew afterwards. So no sender that does not see the endpoint's
// packets can end the association here. An association that the client restarts has other
// tags: the end is not noticed, and the association goes by its timeout.
func (t *Table) TrackSCTP(r Ref, g *SCTPPacket, tick uint32) Verdict {
	c := t.Conn(r)
	for {
		s := atomic.LoadUint32(&c.state)
		switch {
		case s&stateMask == 0:
			return Gone
		case s&stateMask == uint32(StateClose):
			if r.Forward() && g.has(chunkInit) {
				return Reopen
			}
			return Pass // the last words
		}
		n := c.nextSCTP(s, r.Forward(), g)
		if t.setState(c, s, n) {
			c.Touch(tick)
			return Pass
		}
	}
}

// nextSCTP returns the state word after packet g. The client's tag, which the
// endpoint's packets carry, is in Conn.clientNext; the endpoint's in Conn.extra.
func (c *Conn) nextSCTP(s uint32, forward bool, g *SCTPPacket) uint32 {
	to := func(state State) uint32 { return s&^stateMask | uint32(state) }
	beginning := State(s&stateMask) < StateSCTPEstablished
	switch {
	case g.has(chunkAbort | chunkShutdownComplete):
		if c.verifies(s, forward, g) {
			return to(StateClose)
		}
	case forward && beginning && g.has(chunkInit):
		atomic.StoreUint32(&c.clientNext, g.InitiateTag)
		return to(StateSCTPInit) | clientKnown
	case forward && beginning && g.has(chunkCookieEcho):
		atomic.StoreUint32(&c.extra, g.Tag)
		return to(StateSCTPCookieEchoed) | tsKnown
	case !forward && beginning && g.has(chunkCookieAck):
		atomic.StoreUint32(&c.clientNext, g.Tag)
		return to(StateSCTPEstablished) | clientKnown
	case forward && beginning && s&clientOnly != 0:
		// The COOKIE ACK does not pass here: that the client goes on has to do.
		atomic.StoreUint32(&c.extra, g.Tag)
		return to(StateSCTPEstablished) | tsKnown
	case !beginning && g.has(chunkShutdown|chunkShutdownAck):
		if c.verifies(s, forward, g) {
			return to(StateSCTPShutdown)
		}
	}
	return s
}

// verifies reports whether the packet has the tag that the receiver expects (RFC 9260,
// section 8.5): the receiver's tag, or the sender's tag with the T bit.
func (c *Conn) verifies(s uint32, forward bool, g *SCTPPacket) bool {
	clients := s&clientKnown != 0 && g.Tag == atomic.LoadUint32(&c.clientNext)
	endpoints := s&tsKnown != 0 && g.Tag == atomic.LoadUint32(&c.extra)
	if forward == g.Reflected {
		return clients
	}
	return endpoints
}
