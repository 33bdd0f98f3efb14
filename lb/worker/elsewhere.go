package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// tryElsewhere has the connection of packet p begin anew, at another endpoint of the pool, if p is a SYN
// that the client sends again and the endpoint of entry ref has not answered, or has refused it; the
// refusal is dropped. It passes any other packet. A SYN-ACK of the first endpoint that comes late finds no
// flow: the kernel answers it with a RST, in mode dnat that of the client. Where endpoints answer past Weir,
// that they are silent is not known.
func (w *flows) tryElsewhere(p *pkt, ref conntrack.Ref) verdict {
	if p.Proto != header.ProtoTCP || w.dryRun || w.node.Draining || w.conns.Entry(ref).Mode.DSR() {
		return pass
	}
	if !ref.Forward() {
		return w.holdRefusal(p, ref)
	}
	if !opens(&p.Packet) {
		return pass
	}
	c := w.conns.Conn(ref)
	if c.State() != flowstate.SynSent || w.tick-c.Created() < answerTicks {
		return pass
	}
	if fe := w.frontendOf(ref); fe == nil || fe.Pool.PickOther(0, atomic.LoadUint32(&c.EndpointID)) == nil {
		return pass
	}
	p.silent = atomic.LoadUint32(&c.EndpointID)
	if w.watch.before(c, w.tick).silent {
		w.noteUnanswered(c, ref)
	}
	w.watch.countResent(c, p.Flags)
	w.conntrack.Delete(ref)
	return again
}

// holdRefusal drops packet p if it is the RST by which the endpoint of entry ref refuses a connection that
// another endpoint may take. It passes any other packet.
func (w *flows) holdRefusal(p *pkt, ref conntrack.Ref) verdict {
	if p.Flags&(header.RST|header.ACK) != header.RST|header.ACK {
		return pass
	}
	c := w.conns.Conn(ref)
	next, known := c.Next(true)
	if _, answered := c.Next(false); !known || answered || !tcp.Acks(header.TCP(p.data[p.L4:]).Ack(), next) || !w.othersMayAnswer(c, ref) {
		return pass
	}
	if c.LastSeen() == c.Created() { // the RST may come twice
		w.noteRefused(c, ref)
	}
	w.noteFailed(c)
	return drop(DropRefused)
}

// othersMayAnswer reports whether the connection c of entry ref waits for the answer of its endpoint, and
// the pool has another whose last attempt has not failed. A refusal is kept from the client then: it takes
// the endpoint to be silent, and sends its SYN again after a second, which tryElsewhere has go to the other.
// Where no endpoint answers, clients are to hear it at once, and so where the failure does not count.
func (w *connMaker) othersMayAnswer(c *conntrack.Conn, ref conntrack.Ref) bool {
	if c.State() != flowstate.SynSent || w.dryRun || w.node.Draining || w.conns.Entry(ref).Mode.DSR() {
		return false
	}
	fe := w.frontendOf(ref)
	if fe == nil || !w.failureCounts(ref) {
		return false
	}
	_, answers := w.endpointBeside(fe, &w.conns.Entry(ref.Other()).Key, atomic.LoadUint32(&c.EndpointID))
	return answers
}

// noteFailed notes that the failure of connection c has been counted: see attemptWatch.before. It may be
// of the tick in which the connection was made.
func (w *connMaker) noteFailed(c *conntrack.Conn) {
	created := c.Created()
	c.Touch(created + uint32(max(1, int32(w.tick-created))))
}

// otherTries is the number of endpoints that endpointBeside looks at.
const otherTries = 4

// endpointBeside is an endpoint for the tuple with another number, if possible one whose last attempt has
// not failed; nil if there is no other. It is the same for each SYN of a tuple while no attempt fails.
func (w *connMaker) endpointBeside(fe *table.FrontendEntry, k *conntrack.Key, number uint32) (ep *table.EndpointEntry, answers bool) {
	hash := table.Hash(&k.W)
	for i := range uint64(otherTries) {
		e := fe.Pool.PickOther(hash+i, number)
		if e == nil {
			break
		}
		if w.watch.attempts.Of(e.ID).InARow == 0 {
			return e, true
		}
		if ep == nil {
			ep = e
		}
	}
	return ep, false
}

// selectOther is the endpoint for a new flow of the tuple where the endpoint with a number does not
// answer: another one, if there is another.
func (w *connMaker) selectOther(fe *table.FrontendEntry, k *conntrack.Key, silent uint32) *table.EndpointEntry {
	ep, _ := w.endpointBeside(fe, k, silent)
	if ep == nil {
		return w.selectEndpoint(fe, k)
	}
	if fe.Pool.AffinitySeconds() != 0 {
		w.affinity.Put(fe.AffinityKey(&k.W), ep.ID, w.tick/secondTicks)
	}
	return ep
}
