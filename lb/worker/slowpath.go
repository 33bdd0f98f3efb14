package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
)

// flows finds, makes, follows and ends flows, and forwards their packets.
type flows struct {
	forwarder
	conntrack         *conntrack.Worker
	pending           pendingConns
	tcpSamples        tcpSamples
	datagrams         fragtrack.Tracker
	settling          settling
	exhausted         exhaustion // endpoints without an SNAT port left
	failedTries       failedTries
	anyRemoved        bool // an endpoint is gone that a flow may name
	removalActs       bool // and a Service does not keep TCP flows to such an endpoint
	removalGraceTicks uint32
	handshakes        *handshakeTimes
	clock             handshakeClock
	attempts          *attempts.Table
}

// slowPath takes packet p, which the fast path left, to an outcome. ref is the flow entry, 0
// if there is none.
func (w *flows) slowPath(p *pkt, ref conntrack.Ref) {
	w.conclude(p, w.handle(p, ref))
}

// onParseError takes packet p, which is not a whole TCP, UDP or SCTP packet, to an outcome.
// Packets that the kernel may handle are punted, malformed packets dropped.
func (w *Worker) onParseError(p *pkt, problem header.Problem) {
	p.Partial = false // stacks leave no other checksum to the device, and none of a fragment
	var v verdict
	switch problem {
	case header.NotIP:
		v = punt(DropNotIP)
	case header.IsFragment:
		v = w.onFragment(p)
	case header.NotTransport:
		v = punt(DropUnsupportedProtocol)
		if p.Proto == header.ProtoICMP || p.Proto == header.ProtoICMPv6 {
			v = w.icmp(p)
		}
	default:
		v = drop(parseDrop(problem))
	}
	w.conclude(p, v)
	p.state = consumed // the stages are not to do it again
}

// parseDrop is the reason to drop a malformed packet.
func parseDrop(problem header.Problem) Drop {
	switch problem {
	case header.Truncated:
		return DropTruncated
	case header.BadIPHeader:
		return DropBadIPHeader
	case header.Martian:
		return DropMartian
	case header.BadExtension:
		return DropExtension
	case header.SourceRouted:
		return DropSourceRoute
	case header.BadFragment:
		return DropBadFragment
	case header.TinyFragment:
		return DropTinyFragment
	}
	return DropBadTransport
}

// handle is the verdict on packet p with the flow entry ref, 0 if there is none.
func (w *flows) handle(p *pkt, ref conntrack.Ref) verdict {
	if ref == 0 {
		return w.miss(p)
	}
	v := w.handleFlow(p, ref)
	if v.kind() >= kindDrop {
		p.service = atomic.LoadUint32(&w.conns.Changing(ref).ServiceID)
	}
	return v
}

// handleFlow is handle of a packet with a flow.
func (w *flows) handleFlow(p *pkt, ref conntrack.Ref) verdict {
	if v := w.checkTCPSum(p); v != pass {
		return v
	}
	if w.anyRemoved {
		if v := w.endpointRemoved(p, ref); v != pass {
			return v
		}
	}
	if w.conns.Changing(ref).Aborted() {
		if v := w.onAborted(p, ref); v != pass {
			return v
		}
	}
	if v := tryElsewhere(w, p, ref); v != pass {
		return v
	}
	return w.forwardSlow(p, ref)
}

// conclude takes packet p to its outcome, also after the flow by which it was to go on ended.
func (w *flows) conclude(p *pkt, v verdict) {
	for v == again {
		v = w.lookUpAgain(p)
	}
	w.act(p, v)
}

// maxLookups bounds how often a packet is looked up again: a worker that ends a flow may be
// preempted between the two steps, and workers do not wait.
const maxLookups = 8

// lookUpAgain handles a packet whose flow went away after it was looked up: ended by another
// worker, by ageing, or by a packet of this very batch.
func (w *flows) lookUpAgain(p *pkt) verdict {
	if p.lookups++; p.lookups > maxLookups {
		return drop(DropNoConntrackEntry)
	}
	return w.handle(p, w.conntrack.Lookup(p.hash, &p.key))
}

// forwardSlow sends packet p on by its flow entry: the only tail of the slow path, but for ICMP
// errors and for packets without a flow.
func (w *flows) forwardSlow(p *pkt, ref conntrack.Ref) verdict {
	if p.TTL <= 1 {
		return rejectICMP(header.TimeExceeded, 0, DropTTL)
	}
	var out egress
	if v := w.egressOf(p, ref, &out); v != pass {
		return v
	}
	if p.state != untracked {
		if v := w.track(p, ref); v != pass {
			return v
		}
	}
	e := w.conns.Entry(ref)
	if p.Frag != 0 {
		if v := w.acceptFragment(p, e); v != pass {
			return v
		}
	}
	if !out.dsr {
		w.translate(p, e)
	}
	if p.state == untracked {
		w.conns.Conn(ref).Touch(w.tick)
	} else {
		w.settle(p, ref, out.nextHop)
	}
	return w.output(p, &out)
}

// acceptFragment is called for every fragment before it is forwarded by an entry. It passes
// the fragment unless that overlaps with an earlier fragment, and writes the datagram's new
// identification.
func (w *flows) acceptFragment(p *pkt, e *conntrack.Entry) verdict {
	d := p.datagram
	fr := p.Fragment(p.data)
	if d.Proto == header.ProtoSCTP && !mayFragmentSCTP(d, e) {
		return drop(DropUnsupported)
	}
	if v := d.Take(&fr); v != fragtrack.Pass {
		return drop(fragmentDrops[v])
	}
	w.counts[counter.Fragments]++
	if !e.Mode.DSR() {
		if !d.IDRewritten {
			d.ID, d.IDRewritten = w.nextID(p.ref), true
		}
		p.SetID(p.data, d.ID)
	}
	if d.Complete() {
		d.Forget()
	}
	return pass
}
