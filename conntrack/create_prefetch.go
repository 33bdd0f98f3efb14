package conntrack

import (
	"math/bits"
	"sync/atomic"
)

// prefetched is a new connection's part that is known before Create touches the table: it
// tells which lines of memory Create needs.
type prefetched struct {
	hash    uint64 // of NewFlow.Client
	reverse Key    // of the endpoint's packets, in ModeNAT with port 0; none in the modes of DSR
	group   uint64 // hash of reverse
	port    uint16 // the first port to try, if picked
	first   uint64 // hash of reverse with that port
	valid   bool
	picked  bool
}

// Prefetch is the first step of Create, for a caller that makes several connections:
// Prefetch for each of them, then PickPort for each, then Create for each. The cache lines
// of a connection, most of them in no cache, are fetched while the other connections are
// processed. h is the Hash of f.Client, which the caller has looked up: Create does not do so
// again, and finds a connection that another worker makes meanwhile when it publishes this one.
// f stays as it is until Create.
func (w *Worker) Prefetch(f *NewFlow, h uint64) {
	t, d := w.t, &f.prefetched
	d.hash, d.valid, d.picked = h, true, false
	switch f.Mode {
	case ModeNAT:
		d.reverse.set(f.Endpoint.Addr(), f.SNAT)
		d.reverse.W[4] |= uint64(bits.ReverseBytes16(f.Endpoint.Port())) | f.Client.W[4]&(0xff<<32)
		d.group = t.Hash(&d.reverse)
		prefetchCursor(t.ports.cursor(d.group))
	case ModeDNAT:
		d.reverse = MakeKey(f.Endpoint, f.Client.Src(), f.Client.Proto())
		d.group = t.Hash(&d.reverse)
		prefetchBuckets(&t.index.buckets[0], uint64(len(t.index.buckets)), &d.group, 1)
	default:
		d.reverse = Key{}
	}
}

// PickPort is the second step: it picks the port that Create tries first. A picked port
// that Create does not need is skipped.
func (w *Worker) PickPort(f *NewFlow) {
	t, d := w.t, &f.prefetched
	if f.Mode != ModeNAT || !f.hasPorts() {
		return
	}
	at := &t.ports.cursor(d.group).at
	if d.port = f.portAt(d.group, at.Add(1)); f.Except.Has(d.port) {
		if d.port, _ = f.nextPort(d.group, at); d.port == 0 {
			return
		}
	}
	d.picked = true
	setDstPort(&d.reverse, d.port)
	d.first = t.Hash(&d.reverse)
	setDstPort(&d.reverse, 0)
	prefetchBuckets(&t.index.buckets[0], uint64(len(t.index.buckets)), &d.first, 1)
}

// FirstPort is where a range goes on that ends below its begin: the first of the user ports
// (RFC 6335).
const FirstPort = 1024

func (f *NewFlow) hasPorts() bool {
	return f.PortLo != 0 && (f.PortLo <= f.PortHi || f.PortHi >= FirstPort)
}

// ports is the number of ports in the range.
func (f *NewFlow) ports() uint32 {
	n := uint32(f.PortHi) - uint32(f.PortLo) + 1
	if f.PortHi < f.PortLo {
		n += 1<<16 - FirstPort
	}
	return n
}

// portAt returns the port at a step of a group's rotation. Each group begins elsewhere in
// the range (RFC 6056, algorithm 4).
func (f *NewFlow) portAt(group uint64, step uint32) uint16 {
	port := uint32(f.PortLo) + (uint32(group>>16)+step)%f.ports()
	if port >= 1<<16 {
		port -= 1<<16 - FirstPort
	}
	return uint16(port)
}

// nextPort moves a rotation on to the next port that is not in Except, by so many steps. The port is
// 0 if all of the range are.
func (f *NewFlow) nextPort(group uint64, at *atomic.Uint32) (port uint16, steps uint32) {
	for n := f.ports(); steps < n; {
		port = f.portAt(group, at.Add(1))
		steps++
		if !f.Except.Has(port) {
			return port, steps
		}
	}
	return 0, steps
}

func (p *ports) cursor(group uint64) *cursor { return &p.cursors[group%uint64(len(p.cursors))] }
