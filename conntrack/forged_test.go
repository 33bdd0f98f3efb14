package conntrack

import (
	"os"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// crossing is a client and an endpoint with the table between them.
type crossing struct {
	rt     *rapid.T
	tab    *Table
	w      *Worker
	tick   uint32
	ends   [2]end // 0 the client
	flying []wire // between the table and the ends
	answer Key    // of the endpoint's segments
	isn    uint32
	step   uint32 // between the initial numbers
	// obscured says that a segment was lost, or that somebody has come near the numbers
	// without seeing them: then the table may not know a RST for what it is.
	obscured bool
	// paths has the paths that segments of a steady connection take in turn.
	paths  []path
	passed int
}

func newCrossing(rt *rapid.T, tab *Table) *crossing {
	x := &crossing{rt: rt, tab: tab, w: tab.Worker(0), tick: rapid.Uint32Range(1, 1<<20).Draw(rt, "tick")}
	x.w.Online()
	x.ends[0].client, x.step = true, 7919*64
	x.isn = rapid.SampledFrom([]uint32{0, 1 << 20, 1<<32 - 1000}).Draw(rt, "first number")
	x.paths = rapid.SampledFrom(allPaths).Draw(rt, "paths")
	return x
}

func (x *crossing) endOf(client bool) *end {
	if client {
		return &x.ends[0]
	}
	return &x.ends[1]
}

// alive reports whether both ends believe in one and the same connection, and have not
// both closed it.
func (x *crossing) alive() bool {
	c, s := &x.ends[0], &x.ends[1]
	near := func(a, b uint32) bool { return tcp.Span(a-b) < 1<<24 }
	return c.phase == talking && s.phase == talking && !(c.fin && s.fin) && near(c.next, s.want) && near(s.next, c.want)
}

// pass takes a segment through the table, as the packet path does, and lets it fly on.
func (x *crossing) pass(g wire) {
	f := natFlow(1)
	f.Tick, f.Seq = x.tick, g.seq
	key := x.answer
	if g.fromClient {
		key = f.Client
	}
	for range 3 {
		r := x.tab.lookup(key)
		if r == 0 {
			if !g.fromClient || g.flags != tcp.FlagSYN {
				if x.alive() {
					x.rt.Fatalf("a segment of a living connection is refused: %+v", g)
				}
				if !g.has(tcp.FlagRST) && g.has(tcp.FlagACK) {
					x.fly(wire{fromClient: !g.fromClient, flags: tcp.FlagRST, seq: g.ack})
				}
				return
			}
			if r, _ = x.w.Create(f); r == 0 {
				x.rt.Fatal("no connection is made")
			}
			x.moved(r)
			x.fly(g)
			return
		}
		if x.steadily(r, &g) {
			x.fly(g)
			return
		}
		s := tcp.Segment{Flags: g.flags, Seq: g.seq, Ack: g.ack, Length: g.length}
		switch v := x.tab.TrackTCP(r, &s, x.tick); v {
		case flowstate.Pass, flowstate.Restart:
			settle(x.tab, r)
			x.fly(g)
			return
		case flowstate.Reopen:
			if x.alive() {
				x.rt.Fatalf("a SYN replaces a living connection: %+v", g)
			}
			x.w.Supersede(r)
		case flowstate.Stale:
			return
		default:
			x.rt.Fatalf("verdict %d", v)
		}
	}
	x.rt.Fatal("no end of verdicts")
}

// moved notes where the connection's endpoint answers to. At another port it has no
// connection.
func (x *crossing) moved(r Ref) {
	if x.alive() {
		x.rt.Fatal("a living connection moves")
	}
	answer := MakeKey(x.tab.NewDst(r), x.tab.NewSrc(r), ProtoTCP)
	if answer != x.answer {
		x.answer, x.ends[1] = answer, end{}
		kept := x.flying[:0]
		for _, g := range x.flying {
			if g.fromClient {
				continue // to the old port
			}
			kept = append(kept, g)
		}
		x.flying = kept
	}
}

func knownNumbers(c *Conn) tcp.Numbers {
	return tcp.Numbers{Client: c.clientNext, Endpoint: c.endpointNext, Extra: c.extra}
}

// trace logs the table's connection after a step: rapid prints it of a program that fails.
func (x *crossing) trace(step string, g wire) {
	if r := x.tab.lookup(natFlow(1).Client); r != 0 {
		c := x.tab.Changing(r)
		x.rt.Logf("%d %s %+v: %v %#x %+v", x.tick, step, g, c.State(), c.state, knownNumbers(c))
		return
	}
	x.rt.Logf("%d %s %+v: none", x.tick, step, g)
}

func (x *crossing) fly(g wire) {
	x.trace("passed", g)
	if len(x.flying) < 32 {
		x.flying = append(x.flying, g)
	}
}

// deliver lets segment i arrive, and its answers set out.
func (x *crossing) deliver(i int) {
	g := x.flying[i]
	x.flying = append(x.flying[:i:i], x.flying[i+1:]...)
	e := x.endOf(!g.fromClient)
	x.isn += x.step
	e.receive(&g, x.isn)
	x.rt.Logf("delivered %+v: %+v", g, *e)
	answers := e.answers
	e.answers = nil
	for _, a := range answers {
		x.pass(a)
	}
}

// settle lets everything arrive and be sent again until nothing is under way.
func (x *crossing) settle() {
	for range 200 {
		for n := 0; len(x.flying) > 0 && n < 64; n++ {
			x.deliver(0)
		}
		x.flying = nil
		quiet := true
		for i := range x.ends {
			if g, ok := x.ends[i].unacknowledged(); ok {
				quiet = false
				x.tick += 4
				x.pass(g)
			}
		}
		if quiet {
			return
		}
	}
	// A half-open end whose client is gone gives up.
	for i := range x.ends {
		if x.ends[i].phase != talking {
			x.ends[i].phase = closed
		}
	}
	x.flying = nil
}

// check looks for the connection both ways.
func (x *crossing) check(when string) {
	if !x.alive() {
		return
	}
	there, back := x.tab.lookup(natFlow(1).Client), x.tab.lookup(x.answer)
	if there == 0 || back != there.Other() {
		x.rt.Fatalf("%s: the living connection is found as %d and %d", when, there, back)
	}
}

// idle lets time pass in which nobody has anything to say.
func (x *crossing) idle(ticks uint32) {
	x.tick += ticks
	x.w.Offline()
	x.tab.Sweep(x.tick, 1000)
	x.w.Online()
}

// forge returns a segment of somebody who does not see the connection. What he guesses
// right, so that the ends take it, or that nobody could tell from theirs, is left out.
func (x *crossing) forge(rt *rapid.T) (wire, bool) {
	g := wire{fromClient: rapid.Bool().Draw(rt, "from the client"), length: rapid.Uint32Range(0, 100).Draw(rt, "length")}
	g.flags = rapid.SampledFrom([]uint8{tcp.FlagRST, tcp.FlagRST | tcp.FlagACK, tcp.FlagFIN | tcp.FlagACK, tcp.FlagSYN, tcp.FlagSYN | tcp.FlagACK, tcp.FlagACK,
		tcp.FlagFIN, tcp.FlagFIN | tcp.FlagRST, tcp.FlagSYN | tcp.FlagRST, 0}).Draw(rt, "flags")
	g.seq, g.ack = rapid.Uint32().Draw(rt, "seq"), rapid.Uint32().Draw(rt, "ack")
	from, to := x.endOf(g.fromClient), x.endOf(!g.fromClient)
	if rapid.Bool().Draw(rt, "near") && g.has(tcp.FlagRST|tcp.FlagFIN) && x.alive() {
		// He has a number within the window, but not the one.
		x.obscured = true
		g.seq = to.want + rapid.Uint32Range(2, 1<<20).Draw(rt, "off")
		g.ack = to.next + rapid.Uint32Range(0, 8).Draw(rt, "ack off")
	}
	r := x.tab.lookup(natFlow(1).Client)
	if r == 0 {
		return g, true
	}
	n := knownNumbers(x.tab.Conn(r))
	own, other := *n.Of(g.fromClient), *n.Of(!g.fromClient)
	switch {
	case tcp.Span(g.seq-to.want) < 4 || tcp.Span(g.seq-own) < 4 || tcp.Span(g.seq-from.next) < 4: // he knows it
		return g, false
	case g.has(tcp.FlagACK) && int32(g.ack-from.want) > 0 && int32(g.ack-to.next) <= 0:
		return g, false // the receiver takes it: the ends no longer agree on what has arrived
	case g.has(tcp.FlagFIN) && g.ack == other && !to.fin && x.tab.Conn(r).state&flowstate.FinBits != 0:
		return g, false // it acknowledges his own forged FIN (README.md, forges both sides)
	case g.flags == tcp.FlagFIN|tcp.FlagACK: // one that is near is allowed
		return g, to.phase == talking
	case g.has(tcp.FlagACK) && !g.has(tcp.FlagRST) && tcp.Span(g.seq-own)*tcp.Span(g.ack-other) <= tcp.Nearby:
		return g, false
	case g.flags == tcp.FlagSYN|tcp.FlagACK && (x.ends[0].phase == synSent || x.ends[1].phase == synReceived): // both ends', within a round trip
		return g, false
	case g.fromClient && g.has(tcp.FlagACK) && g.ack == n.Extra && x.tab.Conn(r).state&flowstate.SynAckNoted != 0:
		// It agrees with a SYN-ACK before it. If that was forged too, the pair replaces the
		// numbers (README.md, forges both sides). The draw is often 0 or 1 twice.
		return g, false
	case g.flags == tcp.FlagSYN|tcp.FlagACK && tcp.Acks(g.ack, n.Client), g.has(tcp.FlagACK) && tcp.Acks(g.ack, n.Extra):
		return g, false
	}
	return g, true
}

// keepalive is the longest silence of an end with TCP keepalive, RFC 5382's bound.
const keepalive = (2*60 + 4) * 60 * TicksPerSecond

func (x *crossing) steps() map[string]func(*rapid.T) {
	side := func(rt *rapid.T) *end { return x.endOf(rapid.Bool().Draw(rt, "client")) }
	return map[string]func(*rapid.T){
		"connect": func(rt *rapid.T) {
			if c := &x.ends[0]; c.phase == closed || c.phase == over {
				for len(x.flying) > 0 { // as far as TCP is concerned: RFC 9293, section 3.4.3
					x.deliver(0)
				}
				x.isn += 1 << 20
				*c = end{client: true, phase: synSent, una: x.isn, next: x.isn + 1}
				x.pass(wire{fromClient: true, flags: tcp.FlagSYN, seq: x.isn})
			}
		},
		"send": func(rt *rapid.T) {
			if e := side(rt); e.phase == talking && !e.fin && e.next-e.una < receiveWindow/2 {
				n := rapid.Uint32Range(1, 1400).Draw(rt, "length")
				g := e.send(tcp.FlagACK|tcp.FlagPSH, e.next, n)
				e.next += n
				x.pass(g)
			}
		},
		"close": func(rt *rapid.T) {
			if e := side(rt); e.phase == talking && !e.fin {
				g := e.send(tcp.FlagFIN|tcp.FlagACK, e.next, 0)
				e.next++
				e.fin = true
				x.pass(g)
			}
		},
		"abort": func(rt *rapid.T) {
			if e := side(rt); e.phase == talking {
				g := e.send(tcp.FlagRST|tcp.FlagACK, e.next, 0)
				e.phase = closed
				x.pass(g)
			}
		},
		"arrive": func(rt *rapid.T) {
			if n := len(x.flying); n > 0 {
				x.deliver(rapid.IntRange(0, n-1).Draw(rt, "which"))
			}
		},
		"lose": func(rt *rapid.T) {
			x.obscured = true
			if n := len(x.flying); n > 0 {
				i := rapid.IntRange(0, n-1).Draw(rt, "which")
				x.flying = append(x.flying[:i:i], x.flying[i+1:]...)
			}
		},
		"send again": func(rt *rapid.T) {
			if g, ok := side(rt).unacknowledged(); ok {
				x.pass(g)
			}
		},
		"forge": func(rt *rapid.T) {
			if g, ok := x.forge(rt); ok {
				x.pass(g)
			}
		},
		"forge again": func(rt *rapid.T) {
			if g, ok := x.forge(rt); ok {
				x.pass(g)
			}
		},
		"a while": func(rt *rapid.T) { x.idle(rapid.SampledFrom([]uint32{0, 1, 1, 3, 8}).Draw(rt, "ticks")) },
		"rest":    func(rt *rapid.T) { x.rest(rt) },
		"":        func(rt *rapid.T) { x.check("after a step") },
	}
}

// rest lets the ends finish what is under way and fall silent. A connection that lives
// is there afterwards, one that is over is forgotten.
func (x *crossing) rest(rt *rapid.T) {
	x.settle()
	x.check("settled")
	c, s := &x.ends[0], &x.ends[1]
	switch {
	case x.alive() && !c.fin && !s.fin:
		x.say(c)
		x.forgeSome(rt)
		x.idle(rapid.SampledFrom([]uint32{64, 11 * 16, 121 * 16, 3601 * 16, keepalive}).Draw(rt, "silence"))
	case x.alive() && c.fin != s.fin:
		if x.say(c); c.fin {
			x.say(s)
		}
		x.forgeSome(rt)
		x.idle(rapid.SampledFrom([]uint32{64, 11 * 16, 121 * 16, 3590 * 16}).Draw(rt, "silence"))
	case c.phase != talking && s.phase != talking && c.phase != synSent && s.phase != synReceived:
		bound := uint32(oneSided)
		if x.obscured {
			bound = x.tab.timeouts[flowstate.Established]
		}
		x.idle(bound + 1)
		if r := x.tab.lookup(natFlow(1).Client); r != 0 {
			rt.Fatalf("a connection that is over is remembered as %v", x.tab.Conn(r).State())
		}
	}
	x.check("rested")
}

// say has an end send a byte, unless it has sent FIN, and the other take it: the last
// before a silence.
func (x *crossing) say(e *end) {
	if !e.fin {
		g := e.send(tcp.FlagACK|tcp.FlagPSH, e.next, 1)
		e.next++
		x.pass(g)
		x.settle()
	}
}

// forgeSome has forged segments pass, and whatever the ends answer them.
func (x *crossing) forgeSome(rt *rapid.T) {
	for range rapid.IntRange(0, 3).Draw(rt, "forged") {
		if g, ok := x.forge(rt); ok {
			x.pass(g)
		}
	}
	x.settle()
}

// Whatever forged segments pass between those of a connection: while both ends believe
// that it lives it keeps its entry, endpoint and SNAT port, also over silences up to
// that of keepalive; and once both know that it is over it is forgotten.
// WEIR_MODEL_MINUTES (make model) has it run for longer.
func TestForgedSegmentsAgainstTheModel(t *testing.T) {
	minutes, _ := strconv.ParseFloat(os.Getenv("WEIR_MODEL_MINUTES"), 64)
	until := time.Now().Add(time.Duration(minutes * float64(time.Minute)))
	for rounds := 0; rounds == 0 || time.Now().Before(until) && !t.Failed(); rounds++ {
		rapid.Check(t, func(rt *rapid.T) {
			tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
			x := newCrossing(rt, tab)
			rt.Repeat(x.steps())
		})
	}
}
