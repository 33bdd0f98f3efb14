package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
)

// flows finds, makes, follows and ends flows, and forwards their packets.
type flows struct {
	connMaker
	pending   pendingConns
	datagrams fragtrack.Tracker
	endings   endings
	settling  settling
}

// slowPath takes packet p, which the fast path left, to an outcome. ref is the flow entry, 0
// if there is none.
func (w *flows) slowPath(p *pkt, ref conntrack.Ref) {
	w.conclude(p, w.handle(p, ref))
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
	if w.removed.any {
		if v := w.endings.endpointRemoved(p, ref); v != pass {
			return v
		}
	}
	if w.conns.Changing(ref).Aborted() {
		if v := w.endings.onAborted(p, ref); v != pass {
			return v
		}
	}
	if v := w.tryElsewhere(p, ref); v != pass {
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
// errors, packets without a flow, and those that end a connection.
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
		w.conntrack.CountPacket(ref, uint32(p.Len))
	}
	if !out.dsr {
		w.translate(p, e)
	}
	switch {
	case p.state == untracked:
		w.conns.Conn(ref).Touch(w.tick)
	case w.conns.IsShared():
		w.settling.ask(p, ref, out.nextHop)
	default:
		w.conns.Settle(ref, out.nextHop)
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
