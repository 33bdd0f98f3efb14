package worker

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/header"
)

// The two ends of connections through a load balancer in memory: as much of TCP as
// shows whether a connection is made, goes on and ends. A tick is the clock; what one
// end sends in a tick reaches the other in the same, and is answered in the next.

// segment is a TCP segment, or a datagram, as an end sees it.
type segment struct {
	src, dst netip.AddrPort
	proto    uint8
	flags    uint8
	seq, ack uint32
	length   int
}

func (g *segment) frame(t testing.TB, srcMAC, dstMAC []byte) []byte {
	return packet{srcMAC: srcMAC, dstMAC: dstMAC, src: g.src, dst: g.dst, proto: g.proto, flags: g.flags,
		seq: g.seq, ack: g.ack, payload: g.length, df: true}.build(t)
}

// parseSegment reads an IPv4 frame without options.
func parseSegment(f []byte) segment {
	g := segment{proto: f[23],
		src: ap(srcOf(f), binary.BigEndian.Uint16(f[34:])), dst: ap(dstOf(f), binary.BigEndian.Uint16(f[36:]))}
	total := int(binary.BigEndian.Uint16(f[16:]))
	if g.proto == header.ProtoUDP {
		g.length = total - header.IPv4Len - header.UDPLen
		return g
	}
	g.seq, g.ack, g.flags = binary.BigEndian.Uint32(f[38:]), binary.BigEndian.Uint32(f[42:]), f[47]
	g.length = total - header.IPv4Len - int(f[46]>>4)*4
	return g
}

// answer is a segment back to the sender of g.
func (g *segment) answer(flags uint8, seq, ack uint32, length int) segment {
	return segment{src: g.dst, dst: g.src, proto: g.proto, flags: flags, seq: seq, ack: ack, length: length}
}

// server is an endpoint: it answers data with data, and every query.
type server struct {
	rng   *rand.Rand
	tick  uint32
	conns map[netip.AddrPort]*serverConn // by peer
	out   []segment                      // of the next tick
	cold  int                            // SYNs that found another connection's state
}

type serverConn struct {
	state        serverState
	next, expect uint32
	since        uint32
	retries      int
	local        netip.AddrPort
}

type serverState uint8

const (
	synReceived serverState = iota
	serverOpen
	lastACK
	serverTimeWait
)

func (s *server) receive(g segment) {
	if g.proto == header.ProtoUDP {
		s.out = append(s.out, g.answer(0, 0, 0, 50))
		return
	}
	c := s.conns[g.src]
	has := func(flags uint8) bool { return g.flags&flags != 0 }
	switch {
	case has(header.RST):
		if c != nil && g.seq == c.expect {
			delete(s.conns, g.src)
		}
	case c == nil && has(header.SYN), c != nil && has(header.SYN) && c.state == serverTimeWait && int32(g.seq-c.expect) > 0:
		c = &serverConn{next: s.rng.Uint32(), expect: g.seq + 1, since: s.tick, local: g.dst}
		s.conns[g.src] = c
		s.out = append(s.out, g.answer(header.SYN|header.ACK, c.next-1, c.expect, 0))
	case c == nil:
		s.out = append(s.out, g.answer(header.RST, g.ack, 0, 0))
	case has(header.SYN) && c.state == synReceived && g.seq+1 == c.expect:
		s.out = append(s.out, g.answer(header.SYN|header.ACK, c.next-1, c.expect, 0))
	case has(header.SYN):
		s.cold++
		s.out = append(s.out, g.answer(header.ACK, c.next, c.expect, 0)) // challenge ACK
	case g.ack != c.next && c.state == synReceived:
		s.out = append(s.out, g.answer(header.RST, g.ack, 0, 0))
	case g.ack == c.next:
		s.inOrder(c, &g)
	}
}

// inOrder handles a segment of a connection that acknowledges all that was sent.
func (s *server) inOrder(c *serverConn, g *segment) {
	if c.state == synReceived {
		c.state = serverOpen
	}
	fin := g.flags&header.FIN != 0
	switch {
	case g.seq != c.expect:
		s.out = append(s.out, g.answer(header.ACK, c.next, c.expect, 0))
	case c.state == lastACK:
		delete(s.conns, g.src)
	case c.state == serverOpen && fin:
		c.expect++
		c.state = lastACK
		s.out = append(s.out, g.answer(header.FIN|header.ACK, c.next, c.expect, 0))
		c.next++
	case c.state == serverOpen && g.length > 0:
		c.expect += uint32(g.length)
		s.out = append(s.out, g.answer(header.ACK, c.next, c.expect, g.length))
		c.next += uint32(g.length)
	}
}

// timers sends SYN-ACKs again, as Linux does (tcp_synack_retries 5), and forgets.
func (s *server) timers() {
	for peer, c := range s.conns {
		age := s.tick - c.since
		switch {
		case c.state == synReceived && age >= 63*secondTicks:
			delete(s.conns, peer)
		case c.state == synReceived && age == (2<<c.retries-1)*secondTicks:
			c.retries++
			s.out = append(s.out, segment{src: c.local, dst: peer, proto: header.ProtoTCP, flags: header.SYN | header.ACK, seq: c.next - 1, ack: c.expect})
		}
	}
}

// client is one connection's client, or one query's.
type client struct {
	addr, to     netip.AddrPort
	proto        uint8
	begun        uint32
	sent         int // SYNs or queries
	open         bool
	done         bool
	failed       string
	next, expect uint32
	unanswered   uint32 // tick of the oldest segment without an answer + 1
	say          uint32 // ticks between two segments; 0: says one thing and closes
	last         uint32
}

// receive handles what comes, and returns what the client says to that.
func (c *client) receive(g *segment, tick uint32) (out []segment) {
	if c.proto == header.ProtoUDP {
		c.open, c.unanswered = true, 0
		c.done = c.say == 0
		return nil
	}
	switch has := func(flags uint8) bool { return g.flags&flags != 0 }; {
	case has(header.RST):
		if c.open && !c.done && g.seq == c.expect || !c.open && g.ack == c.next {
			c.failed = "reset"
		}
	case !c.open && has(header.SYN) && g.ack == c.next:
		c.open, c.expect, c.unanswered = true, g.seq+1, 0
		return append(out, c.speak(header.ACK, 100, tick))
	case !c.open:
		return append(out, segment{src: c.addr, dst: c.to, proto: c.proto, flags: header.RST, seq: g.ack})
	case g.seq != c.expect || has(header.SYN):
		return append(out, c.speak(header.ACK, 0, tick))
	case has(header.FIN):
		c.done, c.unanswered = true, 0
		c.expect++
		return append(out, c.speak(header.ACK, 0, tick))
	case g.length > 0:
		c.expect += uint32(g.length)
		c.unanswered = 0
		if c.say == 0 {
			return append(out, c.speak(header.FIN|header.ACK, 0, tick))
		}
	}
	return nil
}

// speak makes the next segment of the connection.
func (c *client) speak(flags uint8, length int, tick uint32) segment {
	g := segment{src: c.addr, dst: c.to, proto: c.proto, flags: flags, seq: c.next, ack: c.expect, length: length}
	c.next += uint32(length)
	if flags&header.FIN != 0 {
		c.next++
	}
	if length > 0 || flags&header.FIN != 0 {
		c.unanswered, c.last = tick+1, tick
	}
	return g
}

// timers returns what the client sends by itself at tick.
func (c *client) timers(tick uint32) []segment {
	switch {
	case c.failed != "" || c.done:
	case !c.open && (c.sent == 0 || tick-c.begun == uint32(1<<c.sent-1)*secondTicks):
		c.sent++
		g := segment{src: c.addr, dst: c.to, proto: c.proto, length: 40}
		if c.proto == header.ProtoTCP {
			g.flags, g.seq, g.length = header.SYN, c.next-1, 0
		}
		return []segment{g}
	case c.open && c.unanswered != 0 && tick+1-c.unanswered > 2*secondTicks:
		c.failed = "no answer"
	case c.open && c.say != 0 && tick-c.last >= c.say:
		return []segment{c.speak(header.ACK, 100, tick)}
	}
	return nil
}
