package worker

import (
	"errors"
	"net/netip"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/fragtrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/pcapfilter"
)

// tracedFragment is a fragment that is traced.
type tracedFragment struct {
	key      conntrack.Key // of the datagram
	later    bool          // it is not the first
	known    bool          // the worker knows the datagram
	datagram fragtrack.Datagram
}

// errWorkerBusy is the error of a trace that needs the answer of a worker that does not answer.
var errWorkerBusy = errors.New("the worker that has the other fragments of the datagram does not finish a round")

// findDatagram copies what the worker of a fragment's datagram knows of the datagram.
func (t *tracer) findDatagram() error {
	var p header.Packet
	if header.Parse(t.frame, len(t.frame), &p) != header.IsFragment {
		return nil
	}
	fr, f, owner := p.Fragment(t.frame), &t.fragment, t.live
	f.later, f.key = fr.Offset > 0, datagramKey(t.frame, &p, fr.ID)
	h := t.live.conns.Hash(&f.key)
	if n := len(t.live.links); n > 0 {
		if l := t.live.links[h>>32%uint64(n)]; l != nil {
			owner = l.to
		}
	}
	if !ask(owner, func(w *Worker) {
		if d := w.datagrams.Find(h, &f.key, w.conns.Tick()); d != nil {
			f.known, f.datagram = true, *d
		}
	}) {
		return errWorkerBusy
	}
	return nil
}

// copyDatagram lets the worker of the trace know the datagram of a fragment.
func (t *tracer) copyDatagram(w *Worker) {
	if f := &t.fragment; f.known {
		*w.datagrams.Add(w.conns.Hash(&f.key), &f.key, w.conns.Tick()) = f.datagram
	}
}

// tuple returns the tuple of the connection that the packet belongs to or would begin, and
// whether it has ports. Of a later fragment it is that of the first, and of an ICMP error that
// of the packets that the other end sends.
func (t *tracer) tuple() (key conntrack.Key, ports bool) {
	var p header.Packet
	problem := header.Parse(t.frame, len(t.frame), &p)
	if f := &t.fragment; f.later && f.known {
		key = addressPair(t.frame[p.L3:], p.Family)
		key.W[4] |= uint64(f.datagram.Ports) | uint64(f.datagram.Proto)<<32
		return key, f.datagram.Proto != 0 && !f.datagram.Echo
	}
	if problem == header.NotTransport && ofICMP(&p) && header.ICMPMessage(t.frame, &p) == header.MessageError {
		if key, ok := t.quoted(&p); ok {
			return key, false
		}
	}
	var f pcapfilter.Packet
	pcapfilter.Read(t.frame, len(t.frame), &f)
	key = conntrack.MakeKey(netip.AddrPortFrom(f.Src, f.SrcPort), netip.AddrPortFrom(f.Dst, f.DstPort), f.Proto)
	return key, f.Ports
}

// quoted returns the tuple of the connection that packet p, an ICMP error, is about.
func (t *tracer) quoted(p *header.Packet) (key conntrack.Key, ok bool) {
	var q, in header.Quote
	problem := header.ParseQuote(t.frame, p, &q)
	if problem != header.OK && problem != header.NotTransport {
		return key, false
	}
	if _, tooBig := header.TooBigMTU(t.frame, p); tooBig { // perhaps of a tunnel packet
		if family, problem := q.Inner(t.frame, &in); problem == header.OK {
			key = quotedKey(t.frame, family, &in)
			if t.live.conns.Has(&key) {
				return key, true
			}
		}
	}
	if problem != header.OK {
		return key, false
	}
	key = quotedKey(t.frame, p.Family, &q)
	return key.Reverse(), true
}
