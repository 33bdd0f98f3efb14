package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
)

// How attempts to connect to an endpoint fare: see lb/attempts. The slow path alone sees the
// packets that tell it.

// answerTicks is the time in which an endpoint is to answer a SYN: a little less than the second
// after which clients send it again (RFC 6298, section 2).
const answerTicks = secondTicks * 3 / 4

// attempt is what a connection was before a packet changed it.
type attempt struct {
	state flowstate.State
	// silent is true if the packet is the first since the SYN, and the endpoint has had time to answer.
	silent bool
}

// attemptOf reads the connection before packet p is tracked.
func (w *flows) attemptOf(c *conntrack.Conn) attempt {
	a := attempt{state: c.State()}
	if a.state == flowstate.SynSent {
		created := c.Created()
		a.silent = c.LastSeen() == created && w.tick-created >= answerTicks
	}
	return a
}

// countHandshake counts how the attempt of TCP connection c fares, after packet p of entry ref
// was tracked. resent is whether p is a SYN that was seen before.
func (w *flows) countHandshake(a attempt, c *conntrack.Conn, ref conntrack.Ref, resent bool) {
	if a.state != flowstate.SynSent {
		return
	}
	n := atomic.LoadUint32(&c.EndpointID)
	switch now := c.State(); {
	case ref.Forward() && resent:
		if a.silent {
			w.attempts.Unanswered(n, w.tick)
		}
	case ref.Forward() && now == flowstate.Established, // answers do not pass here
		!ref.Forward() && now == flowstate.SynRecv:
		w.attempts.Answered(n)
	case !ref.Forward() && now == flowstate.Close:
		w.attempts.Refused(n, w.tick)
	}
}

// countUnreachable counts the ICMP error p about a packet to the endpoint of entry ref's flow,
// while the attempt lasts. An error of the endpoint is a refusal; that of a router says that
// there was no answer.
func (w *flows) countUnreachable(p *pkt, c *conntrack.Conn, ref conntrack.Ref) {
	if ref.Forward() || !header.DestinationUnreachable(p.data, &p.Packet) {
		return
	}
	switch c.State() {
	case flowstate.SynSent, flowstate.Unreplied, flowstate.SCTPInit:
	default:
		return
	}
	n, from := atomic.LoadUint32(&c.EndpointID), addressPair(p.data[p.L3:], p.Family)
	if src := from.Src().Addr(); src == w.conns.EndpointAddr(ref).Addr() {
		w.attempts.Refused(n, w.tick)
	} else {
		w.attempts.Unanswered(n, w.tick)
	}
}

// countLost counts the packet p, which waited for a next hop that does not answer, if it began a
// flow: once, since it counts as a sign of life.
func (w *flows) countLost(p *pkt) {
	key := quotedKey(p.data, p.Family, &header.Quote{L3: int(p.L3), L4: int(p.L4), Proto: p.Proto})
	ref := w.conntrack.Lookup(w.conns.Hash(&key), &key)
	if ref == 0 || !ref.Forward() {
		return
	}
	c := w.conns.Conn(ref)
	switch c.State() {
	case flowstate.SynSent, flowstate.Unreplied, flowstate.SCTPInit:
	default:
		return
	}
	if c.LastSeen() == c.Created() && w.tick != c.Created() {
		c.Touch(w.tick)
		w.attempts.Unanswered(atomic.LoadUint32(&c.EndpointID), w.tick)
	}
}
