package conntrack

import "github.com/weirlb/weir/conntrack/tcp"

// The ends of a TCP connection as RFC 9293 and RFC 5961 have them, for the model test:
// they take segments in order only, keep no data, and know nothing of the table.

// end is one of them.
type end struct {
	client  bool
	phase   phase
	una     uint32 // the first byte that is not acknowledged
	next    uint32 // the next to be sent
	want    uint32 // the next to be received
	fin     bool   // has sent FIN, its number is next-1
	heard   bool   // has taken the other's FIN
	answers []wire // what it sends in answer
}

type phase int

const (
	closed phase = iota // of an endpoint: listening
	synSent
	synReceived
	talking
	over // FINs exchanged and acknowledged
)

// wire is a segment between the ends.
type wire struct {
	fromClient bool
	flags      uint8
	seq, ack   uint32
	length     uint32
}

func (g *wire) has(flag uint8) bool { return g.flags&flag != 0 }

const receiveWindow = 1 << 16

func (e *end) send(flags uint8, seq, length uint32) wire {
	return wire{fromClient: e.client, flags: flags, seq: seq, ack: e.want, length: length}
}

func (e *end) reply(flags uint8, seq uint32) { e.answers = append(e.answers, e.send(flags, seq, 0)) }

// receive takes one segment; what is to be answered is in e.answers.
func (e *end) receive(g *wire, iss uint32) {
	switch e.phase {
	case closed, over:
		e.unexpected(g, iss)
	case synSent:
		e.inSynSent(g)
	case synReceived:
		e.inSynReceived(g)
	case talking:
		e.inOpen(g)
	}
}

// unexpected deals with a segment where there is no connection, or TIME_WAIT.
func (e *end) unexpected(g *wire, iss uint32) {
	switch {
	case g.has(tcp.FlagRST):
	case e.phase == over && !g.has(tcp.FlagSYN):
		if g.length != 0 || g.has(tcp.FlagFIN) {
			e.reply(tcp.FlagACK, e.next)
		}
	case g.flags == tcp.FlagSYN && !e.client && (e.phase == closed || int32(g.seq-e.want) > 0):
		*e = end{phase: synReceived, una: iss, next: iss + 1, want: g.seq + 1, answers: e.answers}
		e.reply(tcp.FlagSYN|tcp.FlagACK, iss)
	case g.has(tcp.FlagACK):
		e.answers = append(e.answers, wire{fromClient: e.client, flags: tcp.FlagRST, seq: g.ack})
	default:
		e.answers = append(e.answers, wire{fromClient: e.client, flags: tcp.FlagRST | tcp.FlagACK, ack: g.seq + g.length + 1})
	}
}

func (e *end) inSynSent(g *wire) {
	switch acked := g.has(tcp.FlagACK) && g.ack == e.next; {
	case g.has(tcp.FlagACK) && !acked:
		if !g.has(tcp.FlagRST) {
			e.answers = append(e.answers, wire{fromClient: e.client, flags: tcp.FlagRST, seq: g.ack})
		}
	case g.has(tcp.FlagRST):
		if acked {
			e.phase = closed
		}
	case g.flags == tcp.FlagSYN|tcp.FlagACK:
		e.phase, e.una, e.want = talking, g.ack, g.seq+1
		e.reply(tcp.FlagACK, e.next)
	}
}

func (e *end) inSynReceived(g *wire) {
	switch {
	case g.has(tcp.FlagRST):
		if g.seq == e.want {
			e.phase = closed
		}
	case g.flags == tcp.FlagSYN && g.seq+1 == e.want:
		e.reply(tcp.FlagSYN|tcp.FlagACK, e.una)
	case g.has(tcp.FlagSYN) || g.seq != e.want:
		e.reply(tcp.FlagACK, e.next) // RFC 5961, section 4
	case g.has(tcp.FlagACK) && g.ack != e.next:
		e.answers = append(e.answers, wire{fromClient: e.client, flags: tcp.FlagRST, seq: g.ack})
	case g.has(tcp.FlagACK):
		e.phase = talking
		e.inOpen(g)
	}
}

func (e *end) inOpen(g *wire) {
	ahead := g.seq - e.want
	switch {
	case g.has(tcp.FlagRST):
		switch { // RFC 5961, section 3
		case ahead == 0:
			e.phase = closed
		case ahead < receiveWindow:
			e.reply(tcp.FlagACK, e.next)
		}
		return
	case g.has(tcp.FlagSYN), ahead != 0, !g.has(tcp.FlagACK):
		if ahead != 0 || g.has(tcp.FlagSYN) {
			e.reply(tcp.FlagACK, e.next) // a challenge, a duplicate, or a hole
		}
		if !g.has(tcp.FlagACK) || g.has(tcp.FlagSYN) || ahead < 1<<31 && ahead >= receiveWindow {
			return
		}
	}
	if int32(g.ack-e.next) > 0 || int32(g.ack-e.una) < -receiveWindow { // RFC 5961, section 5
		e.reply(tcp.FlagACK, e.next)
		return
	}
	if int32(g.ack-e.una) > 0 {
		e.una = g.ack
	}
	if ahead == 0 && !e.heard {
		e.want += g.length
		if g.has(tcp.FlagFIN) {
			e.want++
			e.heard = true
		}
		if g.length != 0 || g.has(tcp.FlagFIN) {
			e.reply(tcp.FlagACK, e.next)
		}
	}
	if e.fin && e.heard && e.una == e.next {
		e.phase = over
	}
}

// unacknowledged returns the segment that is sent again, if any.
func (e *end) unacknowledged() (wire, bool) {
	switch {
	case e.phase == synSent:
		return wire{fromClient: e.client, flags: tcp.FlagSYN, seq: e.una}, true
	case e.phase == synReceived:
		return e.send(tcp.FlagSYN|tcp.FlagACK, e.una, 0), true
	case e.phase != talking || e.una == e.next:
		return wire{}, false
	}
	length, flags := e.next-e.una, uint8(tcp.FlagACK)
	if e.fin {
		length, flags = length-1, flags|tcp.FlagFIN
	}
	return e.send(flags, e.una, length), true
}
