package conntrack

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/sctp"
	"github.com/weirlb/weir/conntrack/tcp"
)

// TrackTCP follows segment g of the entry r. The caller has verified the checksum of a
// segment with SYN, FIN or RST. TrackTCP keeps no reference to g.
//
// README.md beside this file compares the states with nf_conntrack's, and lists the effects
// of forged segments.
func (t *Table) TrackTCP(r Ref, g *tcp.Segment, tick uint32) flowstate.Verdict {
	c := t.Conn(r)
	s := atomic.LoadUint32(&c.state)
	g.Forward = r.Forward()
	if s&(flowstate.Mask|flowstate.Slow) == uint32(flowstate.Established) && !g.Has(tcp.FlagFIN|tcp.FlagSYN|tcp.FlagRST) {
		if (c.LastSeen() != tick || Milestone(g.Seq, g.Length)) && g.Has(tcp.FlagACK) {
			c.Sample(g.Forward, g.Seq, g.Seq+g.Length, g.Ack)
		}
		c.Touch(tick)
		return flowstate.Pass
	}
	return t.track(c, s, g, tick)
}

// track is TrackTCP but for established connections that go on.
func (t *Table) track(c *Conn, s uint32, g *tcp.Segment, tick uint32) flowstate.Verdict {
	for ; ; s = atomic.LoadUint32(&c.state) {
		if s&flowstate.Changing != 0 {
			s = c.unchanging()
		}
		if s&flowstate.Superseded != 0 {
			return flowstate.Stale
		}
		if s&flowstate.Mask == 0 {
			return flowstate.Gone
		}
		// Word by word: copying words that were just stored in parts stalls.
		client, endpoint, extra := c.numbers()
		k := tcp.Tracker{Word: s, Tick: tick, Idle: c.Idle(tick), Created: c.Created()}
		k.Numbers.Client, k.Numbers.Endpoint, k.Numbers.Extra = client, endpoint, extra
		v := k.Follow(g)
		if v == flowstate.Reopen {
			return v
		}
		n := &k.Numbers
		if n.Client != client || n.Endpoint != endpoint || n.Extra != extra {
			if !c.claim(&s) || !c.remember(client, endpoint, extra, n) {
				continue
			}
		}
		if v == flowstate.Restart {
			storeRelaxed(&c.created, tick)
		}
		if t.setState(c, s, flowstate.Watched(k.Word&^flowstate.Changing)) {
			if k.Heard {
				c.Touch(tick)
			}
			g.Resent = k.Resent
			return v
		}
	}
}

// Abort moves the TCP connection or SCTP association of r to CLOSE before either side knows: the
// caller tells both at the next packet of either, for which [Conn.Aborted] asks.
func (t *Table) Abort(r Ref, tick uint32) {
	c := t.Conn(r)
	for {
		s := atomic.LoadUint32(&c.state)
		if s&flowstate.Published == 0 || s&flowstate.Superseded != 0 {
			return
		}
		if t.setState(c, s, tcp.Abort(s, tick)) {
			c.Touch(tick)
			return
		}
	}
}

// Aborted reports whether [Table.Abort] has ended the connection.
func (c *Conn) Aborted() bool {
	return atomic.LoadUint32(&c.state)&(flowstate.Mask|flowstate.Aborted) == uint32(flowstate.Close)|flowstate.Aborted
}

// Next is the TCP sequence number after the last that the client, or the endpoint, is known to have
// sent. known is false where none is noted.
func (c *Conn) Next(client bool) (seq uint32, known bool) {
	s := atomic.LoadUint32(&c.state)
	if client {
		return atomic.LoadUint32(&c.clientNext), s&flowstate.ClientKnown != 0
	}
	return atomic.LoadUint32(&c.endpointNext), s&flowstate.EndpointKnown != 0
}

// TrackSCTP follows an SCTP packet of the entry r. The tags are in place of the numbers of TCP:
// the client's in Conn.clientNext, the endpoint's in Conn.extra.
func (t *Table) TrackSCTP(r Ref, g *sctp.Packet, tick uint32) flowstate.Verdict {
	c := t.Conn(r)
	for {
		s := atomic.LoadUint32(&c.state)
		switch {
		case s&flowstate.Mask == 0:
			return flowstate.Gone
		case s&flowstate.Mask == uint32(flowstate.Close):
			if r.Forward() && g.Has(sctp.Init) {
				return flowstate.Reopen
			}
			return flowstate.Pass // the last words
		}
		was := sctp.Tags{Client: atomic.LoadUint32(&c.clientNext), Endpoint: atomic.LoadUint32(&c.extra)}
		tags := was
		n := sctp.Next(s, &tags, r.Forward(), g)
		if tags.Client != was.Client {
			atomic.StoreUint32(&c.clientNext, tags.Client)
		}
		if tags.Endpoint != was.Endpoint {
			atomic.StoreUint32(&c.extra, tags.Endpoint)
		}
		if t.setState(c, s, n) {
			c.Touch(tick)
			return flowstate.Pass
		}
	}
}

// TrackUDP follows a UDP packet of the entry r: an answered flow that goes on for two
// seconds ages like a stream and not like a query.
func (t *Table) TrackUDP(r Ref, tick uint32) {
	c := t.Conn(r)
	c.Touch(tick)
	t.Entry(r).Touch(tick)
	s := atomic.LoadUint32(&c.state)
	if s&flowstate.Renumbered != 0 {
		return // the next packet makes the change
	}
	if s&flowstate.Slow != 0 && atomic.CompareAndSwapUint32(&c.state, s, s&^flowstate.Slow) {
		s &^= flowstate.Slow // a change that failed has left it
	}
	if flowstate.Of(s) == flowstate.Unreplied && !r.Forward() {
		atomic.StoreUint32(&c.endpointNext, tick)
		// Of several workers that see the same change a single worker makes it.
		t.setState(c, s, s&^(flowstate.Mask|flowstate.Slow)|uint32(flowstate.Replied))
		return
	}
	t.current(r.Conn())
}
