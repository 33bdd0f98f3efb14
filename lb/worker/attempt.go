package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/lb/header"
)

// How attempts to connect to an endpoint fare: see lb/attempts. The slow path alone sees the
// packets that tell it.

// answerTicks is the time in which an endpoint is to answer a SYN: a little less than the second
// after which clients send it again (RFC 6298, section 2).
const answerTicks = secondTicks * 3 / 4

// attemptWatch counts how attempts to connect to endpoints fare, and how long handshakes take.
type attemptWatch struct {
	conns      *conntrack.Table
	conntrack  *conntrack.Worker
	services   countChunks
	attempts   *attempts.Table
	handshakes *handshakeTimes
	clock      handshakeClock
}

// attempt is what a connection was before a packet changed it.
type attempt struct {
	state flowstate.State
	// silent is true if the packet is the first since the SYN, and the endpoint has had time to answer.
	silent bool
}

// before reads the connection before a packet is tracked at a tick.
func (w *attemptWatch) before(c *conntrack.Conn, tick uint32) attempt {
	a := attempt{state: c.State()}
	if a.state == flowstate.SynSent {
		created := c.Created()
		a.silent = c.LastSeen() == created && tick-created >= answerTicks
	}
	return a
}

// tracked counts how the attempt of TCP connection c fares, after packet p of entry ref
// was tracked. resent is whether p is a SYN that was seen before.
func (w *connMaker) tracked(a attempt, c *conntrack.Conn, ref conntrack.Ref, resent bool) {
	if a.state != flowstate.SynSent {
		return
	}
	switch now := c.State(); {
	case ref.Forward() && resent:
		if a.silent {
			w.noteUnanswered(c, ref)
		}
	case ref.Forward() && now == flowstate.Established, // answers do not pass here
		!ref.Forward() && now == flowstate.SynRecv:
		w.watch.attempts.Answered(atomic.LoadUint32(&c.EndpointID))
	case !ref.Forward() && now == flowstate.Close:
		w.noteRefused(c, ref)
	}
}

// noteUnreachable counts the ICMP error p about a packet to the endpoint of entry ref's flow,
// while the attempt lasts. An error of the endpoint is a refusal; that of a router says that
// there was no answer.
func (w *connMaker) noteUnreachable(p *pkt, c *conntrack.Conn, ref conntrack.Ref) {
	if ref.Forward() || !header.DestinationUnreachable(p.data, &p.Packet) {
		return
	}
	switch c.State() {
	case flowstate.SynSent, flowstate.Unreplied, flowstate.SCTPInit:
	default:
		return
	}
	from := addressPair(p.data[p.L3:], p.Family)
	if src := from.Src().Addr(); src == w.conns.EndpointAddr(ref).Addr() {
		w.noteRefused(c, ref)
	} else {
		w.noteUnanswered(c, ref)
	}
}

// noteRefused counts that the endpoint has refused connection c of entry ref.
func (w *connMaker) noteRefused(c *conntrack.Conn, ref conntrack.Ref) {
	if w.failureCounts(ref) {
		w.watch.attempts.Refused(atomic.LoadUint32(&c.EndpointID), w.tick)
	}
}

// noteUnanswered counts that the endpoint has not answered connection c of entry ref in time.
func (w *connMaker) noteUnanswered(c *conntrack.Conn, ref conntrack.Ref) {
	if w.failureCounts(ref) {
		w.watch.attempts.Unanswered(atomic.LoadUint32(&c.EndpointID), w.tick)
	}
}

// failureCounts reports whether a failed attempt of entry ref's flow says anything of the endpoint. Of a
// range of ports one at the port with which the endpoint is listed does: the node's own connections go
// there. At another port nothing may listen, however well the endpoint is.
func (w *connMaker) failureCounts(ref conntrack.Ref) bool {
	fe := w.frontendOf(ref)
	if fe == nil {
		return true
	}
	at := w.conns.EndpointAddr(ref)
	return fe.Listed(at) == at
}

// lost counts the packet p, which waited for a next hop that does not answer, if it began a
// flow: once, since it counts as a sign of life. It returns the entry by which the packet was to go to an
// endpoint, 0 for none.
func (w *attemptWatch) lost(p *pkt, tick uint32) conntrack.Ref {
	key := quotedKey(p.data, p.Family, &header.Quote{L3: int(p.L3), L4: int(p.L4), Proto: p.Proto})
	ref := w.conntrack.Lookup(w.conns.Hash(&key), &key)
	if ref == 0 || !ref.Forward() {
		return 0
	}
	c := w.conns.Conn(ref)
	switch c.State() {
	case flowstate.SynSent, flowstate.Unreplied, flowstate.SCTPInit:
	default:
		return ref
	}
	if c.LastSeen() == c.Created() && tick != c.Created() {
		c.Touch(tick)
		w.attempts.Unanswered(atomic.LoadUint32(&c.EndpointID), tick)
	}
	return ref
}
