package worker

import (
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
)

// Arrivals are the interfaces by which the packets of clients came that began the connections, shared
// by all workers. Only the slow path asks: a flow has the next hop of the answers. After a start the client's
// first packet on the slow path tells the interface.
type Arrivals struct {
	by []atomic.Uint32 // by connection: 1 + the kernel's index, 1 for none; 0: not known
}

// NewArrivals makes those of a flow table, of which none is known.
func NewArrivals(flows *conntrack.Table) *Arrivals {
	return &Arrivals{make([]atomic.Uint32, flows.MaxFlows())}
}

// of is the interface by which answers of an entry are to leave; 0: any, or the entry is not that of
// answers.
func (a *Arrivals) of(ref conntrack.Ref) int {
	if a == nil || ref.Forward() {
		return 0
	}
	return max(int(a.by[ref.Conn()].Load())-1, 0)
}

// noteArrival notes the interface by which packet p, of the client, came.
func (w *forwarder) noteArrival(p *pkt, ref conntrack.Ref) {
	if w.arrivals == nil || w.dryRun {
		return
	}
	came := 0
	if p.in != w.hostVeth {
		came = max(arrivalInterface(w.ports, p.in, p.data[:p.L3]), 0)
	}
	w.arrivals.by[ref.Conn()].Store(uint32(came) + 1)
}

// answeredBy is the interface by which packet p leaves as an answer to packets that came by it; 0: p is no
// answer, or the interface not known. A packet of the client tells the interface of a connection where it is
// not known: then the next answer is looked up again.
func (w *forwarder) answeredBy(p *pkt, ref conntrack.Ref) int {
	if w.arrivals == nil {
		return 0
	}
	if !ref.Forward() || w.conns.Entry(ref).Mode.DSR() {
		return w.arrivals.of(ref)
	}
	if w.arrivals.by[ref.Conn()].Load() == 0 {
		w.noteArrival(p, ref)
		answers := ref.Other()
		if was := w.conns.NextHop(answers); was>>32 != 0 && !w.dryRun {
			w.conns.Conn(answers) // has the TCP numbers of the entries, which Resettle forgets
			w.conns.Resettle(answers, was, 0)
		}
	}
	return 0
}
