package conntrack

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/sctp"
	"github.com/weirlb/weir/conntrack/tcp"
	"github.com/weirlb/weir/conntrack/udp"
)

// flows are the connections with the counts that follow from their states.
type flows struct {
	cells
	counts
}

// Conn returns the changing words of the connection that r belongs to, with the packets
// on the fast path noted.
func (fl *flows) Conn(r Ref) *Conn { return fl.current(r.Conn()) }

// current returns connection conn with the packets on the fast path noted, also their numbers.
func (fl *flows) current(conn uint32) *Conn {
	c := &fl.conns[conn]
	fl.noteSeen(conn)
	if s := atomic.LoadUint32(&c.state); udp.MayGoOn(s) && udp.GoesOn(s, c.LastSeen(), c.Created(), atomic.LoadUint32(&c.endpointNext)) {
		fl.setState(c, s, s&^flowstate.Mask|uint32(flowstate.Stream))
	}
	return c
}

// setState moves a connection from state word s to n, and counts it as over or not.
// It reports false when the state is not s any more.
func (fl *flows) setState(c *Conn, s, n uint32) bool {
	if serviceCounts(s) == serviceCounts(n) {
		return n == s || fl.changeState(c, s, n)
	}
	// Read first: once it is over another worker may delete it.
	endpoint, service := atomic.LoadUint32(&c.EndpointID), atomic.LoadUint32(&c.ServiceID)
	if !fl.changeState(c, s, n) {
		return false
	}
	if delta := endpointCounts(n) - endpointCounts(s); delta != 0 {
		fl.endpoints.add(endpoint, delta)
	}
	fl.services.add(service, serviceCounts(n)-serviceCounts(s))
	if flowstate.InHandshake(s) && !flowstate.CountsAsOpen(n) {
		fl.failed.add(service, 1)
	}
	return true
}

// TrackTCP follows segment g of the entry r. The caller has verified the checksum of a
// segment with SYN, FIN or RST. TrackTCP keeps no reference to g.
//
// README.md beside this file compares the states with nf_conntrack's, and lists the effects
// of forged segments.
func (fl *flows) TrackTCP(r Ref, g *tcp.Segment, tick uint32) flowstate.Verdict {
	c := fl.Conn(r)
	s := atomic.LoadUint32(&c.state)
	g.Forward = r.Forward()
	if s&(flowstate.Mask|flowstate.Slow) == uint32(flowstate.Established) && !g.Has(tcp.FlagFIN|tcp.FlagSYN|tcp.FlagRST) {
		if (c.LastSeen() != tick || Milestone(g.Seq, g.Length)) && g.Has(tcp.FlagACK) {
			c.Sample(g.Forward, g.Seq, g.Seq+g.Length, g.Ack)
		}
		c.Touch(tick)
		return flowstate.Pass
	}
	return fl.track(c, s, g, tick)
}

// track is TrackTCP but for established connections that go on.
func (fl *flows) track(c *Conn, s uint32, g *tcp.Segment, tick uint32) flowstate.Verdict {
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
		if fl.setState(c, s, flowstate.Watched(k.Word&^flowstate.Changing)) {
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
func (fl *flows) Abort(r Ref, tick uint32) {
	c := fl.Conn(r)
	for {
		s := atomic.LoadUint32(&c.state)
		if s&flowstate.Published == 0 || s&flowstate.Superseded != 0 {
			return
		}
		if fl.setState(c, s, tcp.Abort(s, tick)) {
			c.Touch(tick)
			return
		}
	}
}

// Aborted reports whether [Table.Abort] has ended the connection.
func (c *Conn) Aborted() bool {
	return flowstate.IsAborted(atomic.LoadUint32(&c.state))
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
func (fl *flows) TrackSCTP(r Ref, g *sctp.Packet, tick uint32) flowstate.Verdict {
	c := fl.Conn(r)
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
		if fl.setState(c, s, n) {
			c.Touch(tick)
			return flowstate.Pass
		}
	}
}

// TrackUDP follows a UDP packet of the entry r: an answered flow that goes on for two
// seconds ages like a stream and not like a query.
func (fl *flows) TrackUDP(r Ref, tick uint32) {
	c := fl.Conn(r)
	c.Touch(tick)
	fl.Entry(r).Touch(tick)
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
		fl.setState(c, s, s&^(flowstate.Mask|flowstate.Slow)|uint32(flowstate.Replied))
		return
	}
	fl.current(r.Conn())
}

// SetIDs gives the connection that r belongs to another endpoint's and Service's
// numbers, and moves the counters: the numbers of a restored table are those of another
// process, and a Service's UDP flows may follow it. For a single control goroutine,
// from inside Range: beside packets for a UDP flow, else only while no packet changes
// the connection's state.
func (fl *flows) SetIDs(r Ref, endpoint, service uint32) {
	c := fl.Conn(r)
	s := atomic.LoadUint32(&c.state)
	if fl.entries[r-1].Key.Proto() == ProtoUDP {
		s = c.renumbering(true)
		defer c.renumbering(false)
	}
	fl.services.move(&c.ServiceID, service, serviceCounts(s))
	fl.endpoints.move(&c.EndpointID, endpoint, endpointCounts(s))
}

// renumbering keeps the state of a UDP flow, and so the counters, as they are until it is
// called again: see TrackUDP. It returns the state word.
func (c *Conn) renumbering(begins bool) uint32 {
	for {
		s := atomic.LoadUint32(&c.state)
		if s&flowstate.Published == 0 {
			return s // deleted
		}
		n := s&^flowstate.SinceMask | (s+1<<flowstate.SinceShift)&flowstate.SinceMask
		if begins {
			n |= flowstate.Renumbered
		} else {
			n &^= flowstate.Renumbered
		}
		if atomic.CompareAndSwapUint32(&c.state, s, n) {
			return n
		}
	}
}
