package conntrack

import (
	"net/netip"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// A scratch table is for a caller that tries a packet: Create and Track change it in place of
// the table that packets are forwarded by. It has the hash, the clock and the time-outs of that
// table, and of the connections copies of those that the packet can meet.

// Ports is a range of ports, both ends included, from which connections to an endpoint are
// translated.
type Ports struct {
	Endpoint netip.AddrPort
	SNAT     netip.Addr
	Lo, Hi   uint16
	Proto    uint8
}

// Scratch returns a scratch table of t for a worker. It has the connections whose SNAT ports
// are in the ranges, the position in each range, and the numbers of connections of endpoints.
func (t *Table) Scratch(ranges []Ports, endpoints []uint32) (*Table, error) {
	w := t.acquire()
	if w == nil {
		return nil, ErrInUse
	}
	defer t.yield(w)
	var refs []Ref
	for i := range ranges {
		refs = t.translatedFrom(&ranges[i], refs)
	}
	last := uint32(0)
	for _, n := range endpoints {
		last = max(last, n)
	}
	s, err := Open(Config{MaxFlows: scratchFlows + 2*len(refs), Workers: 1, MaxEndpoints: int(last) + 1})
	if err != nil {
		return nil, err
	}
	s.seed, s.timeouts, s.base, s.baseTick = t.seed, t.timeouts, t.base, t.baseTick
	for i := range ranges {
		group := t.Hash(ranges[i].key(0))
		s.ports.cursor(group).at.Store(t.ports.cursor(group).at.Load())
	}
	for _, n := range endpoints {
		copyCount(s.endpoints, t.endpoints, n)
	}
	for _, r := range refs {
		s.adopt(t, r)
	}
	return s, nil
}

// scratchFlows is the number of connections that a scratch table has room for beside those of
// the ranges: more than a packet meets, and so many that it never evicts.
const scratchFlows = 256

// key returns the key of the packets from the endpoint to a port of the range.
func (p *Ports) key(port uint16) *Key {
	k := MakeKey(p.Endpoint, netip.AddrPortFrom(p.SNAT, port), p.Proto)
	return &k
}

// translatedFrom appends the connections that have a port of the range. Preconditions: the
// caller is online.
func (t *Table) translatedFrom(p *Ports, refs []Ref) []Ref {
	f := NewFlow{PortLo: p.Lo, PortHi: p.Hi}
	for i := range f.ports() {
		k := p.key(f.portAt(0, i))
		if r := t.index.find(t.Hash(k), k); r != 0 {
			refs = append(refs, r)
		}
	}
	return refs
}

func copyCount(to, from flowCounts, n uint32) {
	if uint64(n) < uint64(min(len(to), len(from))) {
		to[n].Store(from[n].Load())
	}
}

// CopyService copies the number of open connections of a Service into the scratch table s.
func (t *Table) CopyService(s *Table, service uint32) { copyCount(s.services, t.services, service) }

// Copy copies the connection that the tuple belongs to into the scratch table s, unless that
// has it. It reports whether there is such a connection.
func (t *Table) Copy(s *Table, k *Key) bool {
	w := t.acquire()
	if w == nil {
		return false
	}
	defer t.yield(w)
	r := t.index.find(t.Hash(k), k)
	if r == 0 {
		return false
	}
	s.adopt(t, r)
	return true
}

// adopt copies the connection of entry r of table t. Preconditions: the caller is online in t,
// and no other goroutine uses s.
func (s *Table) adopt(t *Table, r Ref) {
	fr, rr := forwardRef(r.Conn()), reverseRef(r.Conn())
	forward := t.entries[fr-1].Tuple()
	if s.index.find(s.Hash(&forward), &forward) != 0 {
		return
	}
	w := s.Worker(0)
	conn, ok := w.alloc(s.Tick())
	if !ok {
		return
	}
	s.entries[2*conn].copyFrom(t, fr)
	s.entries[2*conn+1].copyFrom(t, rr)
	from, to := &t.conns[r.Conn()], &s.conns[conn]
	for _, word := range [][2]*uint32{
		{&to.state, &from.state}, {&to.lastSeen, &from.lastSeen}, {&to.EndpointID, &from.EndpointID},
		{&to.ServiceID, &from.ServiceID}, {&to.created, &from.created},
		{&to.clientNext, &from.clientNext}, {&to.endpointNext, &from.endpointNext}, {&to.extra, &from.extra},
	} {
		*word[0] = atomic.LoadUint32(word[1])
	}
	if to.state&flowstate.Published == 0 { // deleted since
		w.release(conn)
		return
	}
	if to.state&flowstate.Superseded == 0 {
		s.index.insert(s.Hash(&forward), forwardRef(conn), true)
	}
	if reverse := s.entries[2*conn+1].Tuple(); !s.entries[2*conn].Mode.DSR() {
		s.index.insert(s.Hash(&reverse), reverseRef(conn), true)
	}
}

// copyFrom copies entry r of table t.
func (e *Entry) copyFrom(t *Table, r Ref) {
	from := &t.entries[r-1]
	e.Key = from.Key.copied()
	e.Addr4 = atomic.LoadUint64(&from.Addr4) // the next-hop word is in either
	e.NewPorts, e.AddrDelta, e.L4Delta = from.NewPorts, from.AddrDelta, from.L4Delta
	e.Mode, e.Flags = from.Mode, from.Flags
	e.seen = atomic.LoadUint32(&from.seen)
}

func (k *Key) copied() Key {
	return Key{W: [5]uint64{k.W[0], atomic.LoadUint64(&k.W[1]), atomic.LoadUint64(&k.W[2]), k.W[3], k.W[4]}}
}

// Has reports whether the tuple belongs to a connection.
func (t *Table) Has(k *Key) bool {
	w := t.acquire()
	if w == nil {
		return false
	}
	defer t.yield(w)
	return t.index.find(t.Hash(k), k) != 0
}
